"""The steps of a run around a window's rows, their order, and the counts in the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Literal

import pytest
from support.cutting import CuttingProxy
from support.mariadb import MariaDb, execute, rows
from support.windows import NAME, Window, apply, target_of

from binlake.common.sections import LoopbackSection
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, ConfigError, Drift, TargetUnavailable
from binlake.statements.batch import INJECTED, REPLACED
from binlake.statements.render import format_copy_prefix
from binlake.target import ExpectedState, SegmentPlan, StatementSource, TargetSession, apply_window
from binlake.target.apply.apply import choose_mode
from binlake.target.claim.writers import LoopbackMarks
from binlake.target.definitions.definitions import read_definitions
from binlake.window.manifest import ApplyManifest

NOWHERE = TargetSection(host="127.0.0.1", port=1, user="nobody", db_type="mariadb", connect_timeout_s=1.0)
T = ("app", "t")


def with_ends(*ends: int) -> Window:
    """A window (100, 200] whose segments end at `ends`."""
    return Window(100, 200, [SegmentPlan(number, end, 1) for number, end in enumerate(ends)])


@pytest.mark.parametrize(
    "window",
    [
        with_ends(190),
        with_ends(210),
        with_ends(199, 150, 200),
        with_ends(99, 200),
        Window(100, 200, [SegmentPlan(1, 200, 1)]),
    ],
    ids=["ends early", "ends late", "not ascending", "starts early", "starts with number 1"],
)
def test_segments_that_do_not_fill_the_window_are_refused_without_asking_the_target(window: Window) -> None:
    #
    with pytest.raises(CheckpointConflict, match="not those of the manifest"):
        apply(NOWHERE, window)


@pytest.mark.parametrize(
    "window",
    [with_ends(200), with_ends(150, 200), with_ends(100, 150, 150, 200, 200)],
    ids=["one segment", "two segments", "empty segments"],
)
def test_empty_segments_are_valid(window: Window) -> None:
    # A DDL right after lo, two DDLs at one commit_ts, one DDL at hi.
    with pytest.raises(TargetUnavailable):
        apply(NOWHERE, window)


@pytest.mark.parametrize(
    ("mode", "sizes", "chosen"),
    [
        ("atomic", (11, 101), "atomic"),
        ("parallel", (1, 1), "parallel"),
        ("auto", (10, 100), "atomic"),
        ("auto", (11, 100), "parallel"),
        ("auto", (10, 101), "parallel"),
        ("auto", (None, None), "atomic"),
        # The mode was configured after this window was derived, so its statements are not in commit order.
        ("ordered", (10, 100), "atomic"),
        ("ordered", (11, 100), "parallel"),
    ],
)
def test_mode_auto_depends_on_configuration_and_segment_size(
    mode: str, sizes: tuple[int | None, int | None], chosen: str
) -> None:
    #
    target = TargetSection.model_validate({"mode": mode, "max_segment_rows": 10, "max_segment_bytes": 100})
    plan = SegmentPlan(0, 200, 1, rows=sizes[0], bytes=sizes[1])
    assert choose_mode(target, plan) == chosen
    assert choose_mode(target, replace(plan, ordered=True)) == "ordered"


@pytest.mark.mariadb
def test_unknown_mode_is_refused_before_the_first_row(server: MariaDb, target: TargetSection) -> None:
    with pytest.raises(ConfigError, match="not in this build"):
        apply(target.model_copy(update={"mode": "sideways"}), Window(0, 1).put((1, "a")))
    assert rows(server, "SELECT * FROM app.t") == []


@pytest.mark.mariadb
def test_relay_is_written_before_the_target_and_deleted_after(target: TargetSection) -> None:
    # Invariant 10
    steps: list[str] = []

    class Relay:
        """Records its calls."""

        def write_ahead(self, manifest: ApplyManifest, source: StatementSource, check: Callable[[], None]) -> None:
            check()
            steps.append(f"kept {manifest.window}, {len(source.list_segments())} segment")

        def delete_applied(self, commit_ts: int) -> None:
            steps.append(f"applied {commit_ts}")

    apply(target, Window(0, 100).put((1, "a")), steps.append, Relay())
    assert steps[0] == "kept 0-100, 1 segment"
    assert steps[-2:] == ["closed", "applied 100"]


@pytest.mark.mariadb
def test_loopback_control_marks_each_transaction_from_the_first_window(server: MariaDb, target: TargetSection) -> None:
    config = LoopbackSection(loopback_control=True, sync_ddl=True, channel_id=7, mark_schema="tidb_binlog")
    window = Window(0, 100).put((1, "a"))
    apply_window(target, window.manifest(), window, marks=LoopbackMarks.of(config, NAME))
    marked = f"SELECT channel_id, val FROM tidb_binlog.{config.mark_table}"
    # The first transaction opens the window, the second is its only segment.
    assert rows(server, marked) == [(7, 2)]


@pytest.mark.mariadb
def test_result_counts_the_work_of_this_run(server: MariaDb, target: TargetSection) -> None:
    window = Window(0, 500).put((1, "a"), (2, "b")).log("x").into(target, T)
    with closing(TargetSession(target)) as session:
        log = ExpectedState(tables=read_definitions(session, [("app", "log")], target.db_type).tables)
    window.ddl(100, "ALTER TABLE t ADD COLUMN w INT", [T])
    window.ddl(200, "ALTER TABLE t ADD COLUMN x INT", [T])
    window.ddl(300, "ALTER TABLE t ADD COLUMN y INT", [T])
    # The target already has the DDL's result, so its error is ignored.
    window.ddl(400, "CREATE TABLE log (line VARCHAR(40))", [("app", "log")], log).put((3, "c"))
    for number, kind in ((2, REPLACED), (3, INJECTED)):
        ddl = window.plans[number].ddl
        assert ddl is not None
        window.plans[number] = replace(window.plans[number], ddl=replace(ddl, kind=kind))
    began = time.monotonic()
    result = apply(target, window)
    assert 0 < result.seconds <= time.monotonic() - began
    assert (result.segments, result.modes) == (5, {"atomic": 5})
    assert (result.rows, result.batches) == (4, 3)
    assert (result.ddls, result.replaced, result.injected) == (4, 1, 1)
    assert [text.split(":")[0] for text in result.ignored] == ["1050"]
    assert result.tables == {T, ("app", "log")}
    assert rows(server, "SELECT id, y FROM app.t") == [(1, None), (2, None), (3, None)]


@pytest.mark.mariadb
def test_ddl_that_left_another_table_than_the_sources_stops_before_the_next_rows(
    server: MariaDb, target: TargetSection
) -> None:
    # later rows would lose every value that the target's definition lacks
    execute(server, "CREATE TABLE app.wider (id BIGINT PRIMARY KEY, v VARCHAR(20), w INT)")
    with closing(TargetSession(target)) as session:
        wider = read_definitions(session, [("app", "wider")], target.db_type).tables["app", "wider"]
    window = Window(0, 200).ddl(100, "ALTER TABLE t ADD COLUMN other INT", [T], ExpectedState(tables={T: wider}))
    with pytest.raises(Drift, match=r"app\.t: .*\bw\b") as stopped:
        apply(target, window.put((1, "a")))
    assert (stopped.value.where["segment"], stopped.value.tables) == ("1", (T,))
    assert rows(server, "SELECT * FROM app.t") == []


@pytest.mark.mariadb
def test_copies_of_a_window_exist_for_its_batches_and_are_dropped_with_it(
    server: MariaDb, target: TargetSection
) -> None:
    #
    copy = f"`tidb_binlog`.`{format_copy_prefix(NAME)}t`"
    execute(server, "INSERT INTO app.t VALUES (1, 'old')")
    window = Window(0, 100).put((1, "new")).statement(f"INSERT INTO {copy} SELECT * FROM app.t")
    window.plans = [replace(window.plans[0], copies=((copy, "`app`.`t`"),))]
    apply(target, window)
    kept = "SELECT COUNT(*) FROM information_schema.tables WHERE table_name LIKE 'binlake_kept%%'"
    assert rows(server, kept) == [(0,)]


@pytest.mark.servers("mariadb")  # MariaDB answers SHOW MASTER STATUS as a TiDB does
@pytest.mark.mariadb
@pytest.mark.parametrize("lose", ["request", "answer"])
def test_tidb_timestamp_is_recorded_even_if_the_connection_is_lost(
    server: MariaDb, target: TargetSection, lose: Literal["request", "answer"], monkeypatch: pytest.MonkeyPatch
) -> None:
    # S3-07, R-61: this transaction does not change the progress, so the progress cannot tell whether it was committed
    real = TargetSession.fetch_rows

    def answer(self: TargetSession, sql: str, arguments: Sequence[object] = ()) -> list[tuple[object, ...]]:
        return [("tidb-binlog", 7, "", "", "")] if sql == "SHOW MASTER STATUS" else real(self, sql, arguments)

    monkeypatch.setattr(TargetSession, "fetch_rows", answer)
    steps: list[str] = []
    with CuttingProxy(target.host, target.port, at=4, lose=lose) as proxy:
        through = target_of(server, port=proxy.port, host="127.0.0.1", db_type="tidb")
        apply(through, Window(0, 100).put((1, "a")), steps.append)
        assert proxy.cuts == 1
    repeated = ["before_commit", "after_commit"] if lose == "request" else []
    assert steps[steps.index("batch") :] == [
        "batch",
        "before_commit",
        "after_commit",
        "before_commit",
        *repeated,
        "closed",
    ]
    expected = '{"consistent":true,"commitTS":100,"ts-map":{"primary-ts":100,"secondary-ts":7},"schema-version":1}'
    assert rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint") == [(expected,)]
