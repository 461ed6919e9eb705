"""Mode atomic: one segment is one transaction. A failure leaves nothing of it, and the ledger records the mode."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.mariadb import MariaDb, rows
from support.windows import CLUSTER, NAME, Crash, Window, apply, at

from binlake.config.servers import TargetSection
from binlake.errors import Permanent, Transient
from binlake.spark_jobs.commands.table import set_aside
from binlake.target import apply_window
from binlake.target.session.session import StopFlag

pytestmark = pytest.mark.mariadb

LEDGER = "SELECT phase, batch, atomic FROM tidb_binlog.binlake_ledger WHERE lo = 100 ORDER BY phase, batch"


def three_batches() -> Window:
    return Window(100, 200).log("one").log("two").log("three")


@pytest.mark.parametrize(("limit", "most"), [("max_segment_rows", 2), ("max_segment_bytes", 80)])
def test_segment_found_too_large_while_applying_leaves_nothing(
    server: MariaDb, target: TargetSection, limit: str, most: int
) -> None:
    # the size was not counted before; each batch has one row and 34 characters, so the third exceeds the limit
    steps: list[str] = []
    with pytest.raises(Permanent, match="too many for one transaction"):
        apply(target.model_copy(update={limit: most}), three_batches(), steps.append)
    assert steps.count("batch") == 2
    assert rows(server, "SELECT * FROM app.log") == []
    assert apply(target, three_batches()).rows == 3


@pytest.mark.parametrize("known", [{"rows": 4}, {"bytes": 101}], ids=["rows", "bytes"])
def test_segment_known_to_be_too_large_is_refused_before_its_first_batch(
    server: MariaDb, target: TargetSection, known: dict[str, int]
) -> None:
    # not after minutes of work that must be rolled back
    window, steps = three_batches(), []
    window.plans = [replace(window.plans[0], **known)]
    with pytest.raises(Permanent, match="too many for one transaction"):
        apply(target.model_copy(update={"max_segment_rows": 3, "max_segment_bytes": 100}), window, steps.append)
    assert "batch" not in steps
    assert rows(server, "SELECT * FROM app.log") == []


def test_stop_request_ends_the_run_at_the_next_batch_and_leaves_nothing(server: MariaDb, target: TargetSection) -> None:
    # R-60, S4-35
    flag, window, steps = StopFlag(), three_batches(), []
    stop = at("batch", 2, flag.set)

    def hook(step: str) -> None:
        steps.append(step)
        stop(step)

    with pytest.raises(Transient, match="stopped on request"):
        apply_window(target, window.manifest(), window, hook=hook, stop=flag)
    assert steps.count("batch") == 2
    assert rows(server, "SELECT * FROM app.log") == []
    assert apply(target, window).rows == 3


def test_ledger_records_whether_a_segment_was_applied_atomically(server: MariaDb, target: TargetSection) -> None:
    # after a try in another mode, readers have seen the segment in part
    def crash() -> None:
        raise Crash

    parallel = target.model_copy(update={"mode": "parallel", "worker_count": 1})
    with pytest.raises(Crash):
        apply(parallel, three_batches(), at("batch", 2, crash))
    result = apply(target, three_batches())
    assert (result.batches, result.modes) == (2, {"atomic": 1})
    assert rows(server, LEDGER) == [(2, 0, 0), (2, 1, 0), (2, 2, 0)]
    apply(target, Window(200, 300).log("four").log("five"))
    assert rows(server, LEDGER.replace("100", "200")) == [(2, 0, 1), (2, 1, 1)]


@pytest.mark.parametrize(("mode", "applied_as"), [("atomic", 1), ("parallel", 0)])
def test_ledger_records_skipped_batches_of_a_table_set_aside(
    server: MariaDb, target: TargetSection, mode: str, applied_as: int
) -> None:
    # U-16, invariant 11; the presence of its keys is not checked either
    apply(target, Window(0, 100).put((1, "a")))
    set_aside(target, CLUSTER, NAME, [("app", "t")], "by hand", 0)
    window = Window(100, 200).log("one").put((2, "b"), verify=True).log("two")
    result = apply(target.model_copy(update={"mode": mode, "worker_count": 1}), window)
    assert (result.rows, result.batches, result.passed_over) == (2, 2, 1)
    assert rows(server, LEDGER) == [(2, 0, applied_as), (2, 1, 2), (2, 2, applied_as)]
    assert rows(server, "SELECT id FROM app.t") == [(1,)]
