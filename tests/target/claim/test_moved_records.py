"""Binlake's rows beside the checkpoint, changed by another hand: each is refused until it is back, or is harmless.

The table in docs/operate/faults.md lists these cases.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from support.mariadb import MariaDb, execute, rows
from support.windows import CLUSTER, NAME, Crash, Window, apply, at

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, CheckpointMoved
from binlake.target.commands.checkpoint import CheckpointCommand

pytestmark = pytest.mark.mariadb

PROGRESS = "tidb_binlog.binlake_progress"
LINES = [("four",), ("one",), ("three",), ("two",)]


def crash() -> None:
    raise Crash


def build_window() -> Window:
    """Two segments on a table without a key: rows that are written twice stay."""
    window = Window(100, 300).log("one").log("two").ddl(200, "ALTER TABLE t ADD COLUMN w INT", [("app", "t")])
    return window.log("three").log("four")


def read_lines(server: MariaDb) -> list[tuple[str]]:
    return rows(server, "SELECT line FROM app.log ORDER BY 1")


PROGRESS_CHANGES: dict[str, list[str]] = {
    "removed": [f"DELETE FROM {PROGRESS}"],
    "lost": [f"DROP TABLE {PROGRESS}"],
    "ahead": [f"UPDATE {PROGRESS} SET segment = 1"],
    "closed": [f"UPDATE {PROGRESS} SET open_lo = NULL, open_hi = NULL, manifest = NULL, segment = 0"],
    "with a lower exit_ts": [f"UPDATE {PROGRESS} SET exit_ts = 1"],
    "another's": [f"UPDATE {PROGRESS} SET task = 'other', clusterID = 5"],
}


@pytest.mark.parametrize("how", PROGRESS_CHANGES)
def test_changed_progress_of_a_cut_apply_is_refused_until_it_is_back(
    server: MariaDb, target: TargetSection, how: str
) -> None:
    mode = target.model_copy(update={"mode": "parallel", "worker_count": 1})
    with pytest.raises(Crash):
        apply(mode, build_window(), at("batch", 2, crash))  # one of the first segment's batches is stored
    assert len(read_lines(server)) == 1
    ((_, create),) = rows(server, f"SHOW CREATE TABLE {PROGRESS}")
    execute(server, "DROP TABLE IF EXISTS app.saved", f"CREATE TABLE app.saved AS SELECT * FROM {PROGRESS}",
            *PROGRESS_CHANGES[how])  # fmt: skip
    for _ in range(2):
        with pytest.raises(CheckpointMoved, match="binlake_progress is not as Binlake wrote it") as refused:
            apply(mode, build_window())
        assert "checkpoint adopt" in refused.value.hint
    assert len(read_lines(server)) == 1
    execute(server, f"DROP TABLE {PROGRESS}", create.replace("CREATE TABLE ", "CREATE TABLE tidb_binlog."),
            f"INSERT INTO {PROGRESS} SELECT * FROM app.saved")  # fmt: skip
    apply(mode, build_window())
    assert read_lines(server) == LINES


def test_changed_progress_is_believed_once_adopted(server: MariaDb, target: TargetSection, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        apply(target, build_window(), at("opened", 1, crash))
    execute(server, *PROGRESS_CHANGES["removed"])
    with pytest.raises(CheckpointMoved):
        apply(target, build_window())
    file = tmp_path / "r.toml"
    file.write_text(
        f'name = "{NAME}"\n[lake]\npath = "{tmp_path / "lake"}"\n[target]\ndb-type = "{target.db_type}"\n'
        f'host = "{target.host}"\nport = {target.port}\nuser = "{target.user}"\n'
    )
    parser, command = argparse.ArgumentParser(), CheckpointCommand()
    command.add_arguments(parser)
    assert command.run(parser.parse_args(["adopt", "--replication", str(file), "--cluster-id", str(CLUSTER)])) == 0
    assert apply(target, build_window()).state == "applied"
    assert read_lines(server) == LINES


HARMLESS: dict[str, list[str]] = {
    "fence ahead": ["UPDATE tidb_binlog.binlake_fence SET epoch = epoch + 100"],
    "fence back": ["UPDATE tidb_binlog.binlake_fence SET epoch = 0, val = 0"],
    "fence removed": ["DELETE FROM tidb_binlog.binlake_fence"],
    "fence lost": ["DROP TABLE tidb_binlog.binlake_fence"],
    "lease back": ["UPDATE tidb_binlog.binlake_lease SET epoch = 0"],
    "lease removed": ["DELETE FROM tidb_binlog.binlake_lease"],
    "ledger removed": ["DELETE FROM tidb_binlog.binlake_ledger"],
    "ledger lost": ["DROP TABLE tidb_binlog.binlake_ledger"],
    "ledger ahead": ["UPDATE tidb_binlog.binlake_ledger SET lo = 300, hi = 400"],
    "owner removed": ["DELETE FROM tidb_binlog.binlake_owner"],
    "opened removed": ["DELETE FROM tidb_binlog.binlake_opened"],
    "opened lost": ["DROP TABLE tidb_binlog.binlake_opened"],
}


@pytest.mark.parametrize("how", HARMLESS)
def test_change_between_two_windows_is_harmless(server: MariaDb, target: TargetSection, how: str) -> None:
    apply(target, build_window())
    execute(server, *HARMLESS[how])
    again = Window(300, 400).log("five").log("six")
    assert apply(target, again).state == "applied"
    assert apply(target, again).state == "already"
    assert read_lines(server) == sorted([*LINES, ("five",), ("six",)])


STOPPED: dict[str, tuple[list[str], str]] = {
    "ledger removed": (["DELETE FROM tidb_binlog.binlake_ledger"], "a copy with gaps"),
    "ledger lost": (["DROP TABLE tidb_binlog.binlake_ledger"], "a copy with gaps"),
    "another's owner": (["UPDATE tidb_binlog.binlake_owner SET task = 'other'"], "belongs to the replication other"),
}


@pytest.mark.parametrize("how", STOPPED)
def test_change_below_an_open_window_is_refused(server: MariaDb, target: TargetSection, how: str) -> None:
    with pytest.raises(Crash):
        apply(target, build_window(), at("ddl_done", 1, crash))
    before = read_lines(server)
    execute(server, *STOPPED[how][0])
    for _ in range(2):
        with pytest.raises(CheckpointConflict, match=STOPPED[how][1]):
            apply(target, build_window())
    assert read_lines(server) == before
