"""Whether a window still has to be applied, and what a run checks when it opens or resumes the window."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from support.mariadb import MariaDb, execute, rows
from support.windows import CLUSTER, NAME, Crash, Window, apply, at

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict
from binlake.statements.batch import Phase
from binlake.statements.render import format_copy_prefix
from binlake.target import TargetSession
from binlake.target.apply.apply import is_window_applied
from binlake.target.session.tables import create_tables

pytestmark = pytest.mark.mariadb


def crash() -> None:
    raise Crash


def find_tables(server: MariaDb, name: str) -> list[tuple[str]]:
    return rows(server, "SELECT table_name FROM information_schema.tables WHERE table_name = %s", (name,))


def test_checkpoint_moved_past_the_window_by_another_tool_counts_as_applied(target: TargetSection) -> None:
    # a drainer's checkpoint, and no window of Binlake so far
    window = Window(100, 200).put((1, "a")).manifest()
    with closing(TargetSession(target)) as session:
        create_tables(session, target.checkpoint_schema)
        for commit_ts, applied in ((199, False), (200, True), (201, True)):
            text = f'{{"consistent":true,"commitTS":{commit_ts},"ts-map":{{}}}}'
            session.write(f"REPLACE INTO tidb_binlog.checkpoint VALUES ({CLUSTER}, %s)", (text,))
            session.commit()
            assert is_window_applied(session, target.checkpoint_schema, window) is applied


def test_window_ending_with_a_ddl_is_open_until_its_last_segment_is_applied(
    server: MariaDb, target: TargetSection
) -> None:
    # the DDL has moved the checkpoint to hi
    window = Window(100, 200).ddl(200, "ALTER TABLE t ADD COLUMN w INT", [("app", "t")]).log("behind")
    with pytest.raises(Crash):
        apply(target, window, at("ddl_done", 1, crash))
    # An earlier window counts as applied even while this one is open.
    assert apply(target, Window(50, 100).put((1, "old"))).state == "already"
    assert apply(target, window).state == "applied"
    assert rows(server, "SELECT line FROM app.log") == [("behind",)]
    assert rows(server, "SELECT checkPoint LIKE '%%\"consistent\":true%%' FROM tidb_binlog.checkpoint") == [(1,)]


def derive_ordered(window: Window) -> Window:
    """The window as convert derives it for mode ordered: every batch is of phase ORDERED."""
    numbered = enumerate(window.written)
    window.written = [replace(batch, phase=Phase.ORDERED, batch=n, round=n, whole_ts=0) for n, batch in numbered]
    window.plans = [replace(plan, ordered=True) for plan in window.plans]
    return window


def derive_unchanged(window: Window) -> Window:
    return window


@pytest.mark.parametrize("derived", [derive_unchanged, derive_ordered])
def test_open_window_with_a_gap_in_its_ledger_is_refused(
    server: MariaDb, target: TargetSection, derived: Callable[[Window], Window]
) -> None:
    # a copy with a gap replaced the target between two runs
    window = Window(100, 300).log("one").log("two").ddl(200, "ALTER TABLE t ADD COLUMN w INT", [("app", "t")])
    window = derived(window.log("three"))
    with pytest.raises(Crash):
        apply(target, window, at("ddl_done", 1, crash))
    stored = rows(server, "SELECT batch FROM tidb_binlog.binlake_ledger ORDER BY batch")
    execute(server, "CREATE TABLE app.saved AS SELECT * FROM tidb_binlog.binlake_ledger WHERE batch = 1")
    execute(server, "DELETE FROM tidb_binlog.binlake_ledger WHERE batch = 1")
    with pytest.raises(CheckpointConflict, match="a copy with gaps") as refused:
        apply(target, window)
    assert refused.value.where["batch"] == "1"
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("one",), ("two",)]
    execute(server, "INSERT INTO tidb_binlog.binlake_ledger SELECT * FROM app.saved")
    assert rows(server, "SELECT batch FROM tidb_binlog.binlake_ledger ORDER BY batch") == stored
    assert apply(target, window).state == "applied"
    assert rows(server, "SELECT line FROM app.log ORDER BY 1") == [("one",), ("three",), ("two",)]


def test_copied_values_stay_for_the_open_window_and_go_with_the_next(server: MariaDb, target: TargetSection) -> None:
    # a run that resumes the window reads the values from before its first write
    copy, window = f"{format_copy_prefix(NAME)}t", Window(100, 200).put((1, "a"))
    with pytest.raises(Crash):
        apply(target, window, at("opened", 1, crash))
    execute(server, f"CREATE TABLE tidb_binlog.{copy} (id INT)")
    apply(target, window)
    assert find_tables(server, copy)
    apply(target, Window(200, 300))
    assert not find_tables(server, copy)
