"""A copy replaces the target during a run: missing transactions are detected, and the next run applies them (R-61)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from support.failover import TargetCopy, drop_copies, fail_over, take_copy
from support.mariadb import MariaDb, execute, rows
from support.windows import Window, apply, at

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, TargetUnavailable
from binlake.statements.batch import Phase
from binlake.target.claim.fence import take_fence
from binlake.target.claim.writers import ConfirmedTransactions
from binlake.target.session.session import TargetSession

pytestmark = pytest.mark.mariadb

EVERY = ("app", "tidb_binlog")
BATCHES = 8


@pytest.fixture(autouse=True)
def no_copies(server: MariaDb) -> Iterator[None]:
    yield
    drop_copies(server)


def window(*, ordered: bool = False) -> Window:
    """Batches for a keyless table, where no key conflict reveals a copy that lacks a batch."""
    found = Window(100, 300)
    for number in range(BATCHES):
        found.log(f"line {number}")
    if ordered:
        found.plans = [replace(found.plans[0], ordered=True)]
        found.written = [replace(b, phase=Phase.ORDERED, round=b.batch) for b in found.written]
    return found


class Failover:
    """A hook that copies the target at the `kept`-th batch, and replaces it by the copy before the `lost`-th COMMIT."""

    def __init__(self, server: MariaDb, kept: int, lost: int) -> None:
        self._server = server
        self._batches = 0
        self._kept, self._lost = kept, lost
        self._copy: TargetCopy | None = None

    def __call__(self, step: str) -> None:
        if step == "batch":
            self._batches += 1
        if step == "after_commit" and self._batches == self._kept and self._copy is None:
            self._copy = take_copy(self._server, *EVERY)
        if step == "before_commit" and self._batches == self._lost and self._copy is not None:
            fail_over(self._server, self._copy, *EVERY)
            self._batches = BATCHES * 10


def lines(server: MariaDb) -> list[str]:
    return [line for (line,) in rows(server, "SELECT line FROM app.log ORDER BY line")]


WHOLE = [f"line {number}" for number in range(BATCHES)]


@pytest.mark.parametrize("ordered", [False, True])
def test_copy_that_lacks_batches_ends_the_run_and_the_next_run_applies_them(
    server: MariaDb, target: TargetSection, ordered: bool
) -> None:
    parallel = target.model_copy(update={"mode": "parallel", "worker_count": 1})
    with pytest.raises(TargetUnavailable):
        apply(parallel, window(ordered=ordered), Failover(server, 3, 6))
    assert len(lines(server)) < BATCHES
    apply(parallel, window(ordered=ordered))
    assert lines(server) == WHOLE


def test_error_counts_the_lost_transactions(server: MariaDb, target: TargetSection) -> None:
    with pytest.raises(TargetUnavailable, match="lacks transactions that it had confirmed") as stopped:
        apply(target, window(ordered=True), Failover(server, 3, 6))
    assert stopped.value.where["transactions"] == "2"
    assert stopped.value.kind == "Transient"


def test_run_continues_on_a_copy_that_lacks_no_confirmed_transaction(server: MariaDb, target: TargetSection) -> None:
    apply(target, window(ordered=True), Failover(server, 5, 6))
    assert lines(server) == WHOLE


def test_copy_from_before_the_run_is_a_transient_error(server: MariaDb, target: TargetSection) -> None:
    # A Permanent error would prevent the next run from starting automatically.
    apply(target, Window(0, 100))
    copy = take_copy(server, *EVERY)

    def replace_server() -> None:
        fail_over(server, copy, *EVERY)

    parallel = target.model_copy(update={"mode": "parallel", "worker_count": 1})
    with pytest.raises(TargetUnavailable, match="an older copy replaced it"):
        apply(parallel, window(), at("before_commit", 4, replace_server))
    apply(parallel, window())
    assert lines(server) == WHOLE


def test_another_server_at_the_targets_address_ends_the_run(
    target: TargetSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may hold all data, but with connections to both servers, the run would write to two.
    first, second = TargetSession(target), TargetSession(target)
    shown: Callable[..., list[tuple[object, ...]]] = second.fetch_rows
    monkeypatch.setattr(
        second, "fetch_rows", lambda sql, *given: [("db2", 3306, 2)] if "@@hostname" in sql else shown(sql, *given)
    )
    apply(target, Window(0, 100))
    fence = take_fence(first, target, "shop")
    confirmed = ConfirmedTransactions(first, target)
    with pytest.raises(TargetUnavailable, match="is not the one on which this run began") as stopped:
        confirmed.require_all(second, fence)
    assert stopped.value.where["answers"] == "db2:3306:2"
    fence.release(first)
    for session in (first, second):
        session.close()


def test_copy_with_a_gap_before_later_batches_is_refused(server: MariaDb, target: TargetSection) -> None:
    found = window().ddl(200, "CREATE TABLE n (id INT PRIMARY KEY)", [("app", "n")]).put((1, "a"))

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(target, found, at("ddl_done", 1, stop))
    execute(
        server, "DELETE FROM tidb_binlog.binlake_ledger WHERE batch = 3", "DELETE FROM app.log WHERE line = 'line 3'"
    )
    with pytest.raises(CheckpointConflict, match="a copy with gaps") as stopped:
        apply(target, found)
    assert stopped.value.where["batch"] == "3"
