"""The target's position is read without writes, in the original's form, for people and programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from support.mariadb import MariaDb, execute, rows
from support.windows import CLUSTER, NAME, Window, apply

from binlake.cli import run as main
from binlake.config.model import LakeSection, Replication
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, TargetRefused, TargetUnavailable
from binlake.spark_jobs.commands.table import set_aside
from binlake.target import Checkpoint, read_checkpoint, read_checkpoint_ts, read_open_window, read_position
from binlake.target.apply.position import read_tables_aside

pytestmark = pytest.mark.mariadb

BY_HAND = '{"consistent":false,"commitTS":414529105591271429,"ts-map":{}}'


def replication(target: TargetSection | None) -> Replication:
    return Replication(name=NAME, lake=LakeSection(path="/nowhere"), target=target)


def insert_by_hand(server: MariaDb, *clusters: int) -> None:
    execute(
        server,
        "CREATE DATABASE tidb_binlog",
        "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)",
        *(f"INSERT INTO tidb_binlog.checkpoint VALUES ({cluster}, '{BY_HAND}')" for cluster in clusters),
    )


def test_articles_checkpoint_row_is_read_exactly(server: MariaDb, target: TargetSection) -> None:
    # S3-06
    insert_by_hand(server, CLUSTER)
    found = read_checkpoint(replication(target), CLUSTER)
    assert found is not None
    assert (found.consistent, found.commit_ts, dict(found.ts_map)) == (False, 414529105591271429, {})
    assert found.to_json() == BY_HAND
    assert read_checkpoint_ts(replication(target), CLUSTER) == 414529105591271429


def test_missing_checkpoint_is_read_as_none(server: MariaDb, target: TargetSection) -> None:
    assert read_checkpoint_ts(replication(None), CLUSTER) is None
    assert read_checkpoint_ts(replication(target), CLUSTER) is None
    position = read_position(target, NAME, CLUSTER)
    assert (position.commit_ts, position.window) == (None, None)
    [(packet,)] = rows(server, "SELECT @@max_allowed_packet")
    assert position.max_packet == packet
    insert_by_hand(server, CLUSTER)
    assert read_checkpoint_ts(replication(target), CLUSTER + 1) is None
    assert rows(server, "SHOW TABLES IN tidb_binlog") == [("checkpoint",)]


def test_cluster_id_0_selects_the_only_row(server: MariaDb, target: TargetSection) -> None:
    # tidb-binlog 5.8
    insert_by_hand(server, CLUSTER)
    assert read_checkpoint_ts(replication(target), 0) == 414529105591271429
    execute(server, f"INSERT INTO tidb_binlog.checkpoint VALUES (1, '{BY_HAND}')")
    with pytest.raises(CheckpointConflict, match="several clusters"):
        read_checkpoint_ts(replication(target), 0)


def test_damaged_checkpoint_row_is_reported(server: MariaDb, target: TargetSection) -> None:
    insert_by_hand(server, CLUSTER)
    execute(server, "UPDATE tidb_binlog.checkpoint SET checkPoint = 'nonsense'")
    with pytest.raises(CheckpointConflict, match="nonsense"):
        read_checkpoint_ts(replication(target), CLUSTER)


def test_unreachable_target_is_not_taken_for_one_without_a_checkpoint(target: TargetSection) -> None:
    with pytest.raises(TargetUnavailable):
        read_checkpoint_ts(replication(target.model_copy(update={"port": 1})), CLUSTER)


@given(
    st.integers(0, 2**63 - 1),
    st.booleans(),
    st.dictionaries(st.text(st.characters(categories=("L",)), min_size=1), st.integers(), max_size=3),
)
def test_checkpoint_keeps_unknown_keys_and_large_numbers(ts: int, consistent: bool, more: dict[str, int]) -> None:
    # S3-06: keys of a newer drainer are kept
    raw = {"consistent": consistent, "commitTS": ts, "ts-map": {"primary-ts": ts, "secondary-ts": 1}, "x": more}
    text = json.dumps(raw, ensure_ascii=False, separators=(",", ":"))
    assert Checkpoint.from_json(text).to_json() == text


@pytest.fixture
def file(tmp_path: Path, target: TargetSection) -> Iterator[Path]:
    """The replication's TOML file."""
    path = tmp_path / "shop.toml"
    path.write_text(
        f'name = "{NAME}"\n[lake]\npath = "{tmp_path}"\n[target]\nhost = "{target.host}"\nport = {target.port}\n'
        f'user = "{target.user}"\ndb-type = "{target.db_type}"\n'
    )
    yield path
    # Reset logging, because the command line directs events to this test's stderr.
    structlog.reset_defaults()


def test_checkpoint_show_prints_timestamps_as_strings(
    target: TargetSection, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    apply(target, Window(0, 414529105591271429).put((1, "a")))
    capsys.readouterr()
    assert main(["checkpoint", "show", "--replication", str(file), "--output", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["checkpoint"]["commit_ts"] == "414529105591271429"
    assert shown["checkpoint"]["consistent"] is True
    assert shown["open_window"] is None
    assert main(["checkpoint", "show", "--replication", str(file), "--cluster-id", str(CLUSTER)]) == 0
    # S3-22
    assert "commit_ts       414529105591271429 (2020-02-10 02:50:45.621 UTC)" in capsys.readouterr().out


def test_checkpoint_adopt_takes_over_another_replications_row(
    server: MariaDb, target: TargetSection, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    #
    apply(target, Window(0, 1).put((1, "a")))
    execute(server, "UPDATE tidb_binlog.binlake_owner SET task = 'before'")
    with pytest.raises(CheckpointConflict, match="before"):
        apply(target, Window(1, 2).put((1, "b")))
    assert main(["checkpoint", "adopt", "--replication", str(file)]) == 1
    assert "--cluster-id" in capsys.readouterr().err
    assert main(["checkpoint", "adopt", "--replication", str(file), "--cluster-id", str(CLUSTER)]) == 0
    assert apply(target, Window(1, 2).put((1, "b"))).state == "applied"


def test_checkpoint_set_writes_the_position_of_a_restored_dump(
    target: TargetSection, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # S4-02
    (tmp_path / "metadata").write_text("SHOW MASTER STATUS:\n\tLog: tidb-binlog\n\tPos: 420747102018863124\n")
    words = ["checkpoint", "set", "--replication", str(file)]
    for more, why in (["--base", "1"], "--cluster-id"), (["--cluster-id", str(CLUSTER)], "--base"):
        assert main([*words, *more]) == 1
        assert why in capsys.readouterr().err
    words += ["--cluster-id", str(CLUSTER)]
    for _ in range(2):  # the second time it already exists
        assert main([*words, "--base", str(tmp_path)]) == 0
    assert read_checkpoint(replication(target), CLUSTER) == Checkpoint(420747102018863124, consistent=True)
    assert main([*words, "--base", "420747102018863125"]) == 1
    assert "has a checkpoint already" in capsys.readouterr().err
    lo = 420747102018863124
    assert apply(target, Window(lo, lo + 1).put((1, "a"))).state == "applied"


def test_checkpoint_set_refuses_a_mysql_dump_without_commit_ts(
    target: TargetSection, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "metadata").write_text("SHOW MASTER STATUS:\n\tLog: bin.000001\n\tPos: 4\n")
    words = ["checkpoint", "set", "--replication", str(file), "--cluster-id", str(CLUSTER), "--base", str(tmp_path)]
    assert main(words) == 1
    assert 'mode = "dump"' in capsys.readouterr().err
    assert read_checkpoint(replication(target), CLUSTER) is None


def _die(step: str) -> None:
    if step == "opened":
        raise ConnectionAbortedError("power cut")


def test_checkpoint_adopt_closes_a_window_that_the_other_replication_left_open(
    server: MariaDb, target: TargetSection, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # the adopting replication does not know its manifest
    apply(target, Window(0, 1).put((1, "a")))
    with pytest.raises(ConnectionAbortedError):
        apply(target, Window(1, 5).put((1, "b")), _die)
    for table in ("binlake_owner", "binlake_progress"):
        execute(server, f"UPDATE tidb_binlog.{table} SET task = 'before'")
    with pytest.raises(CheckpointConflict, match=r"before holds the window 1-5 open.*--close-window"):
        read_position(target, NAME, CLUSTER)
    adopt = ["checkpoint", "adopt", "--replication", str(file), "--cluster-id", str(CLUSTER)]
    assert main(adopt) == 1
    assert "--close-window" in capsys.readouterr().err
    execute(server, "UPDATE tidb_binlog.binlake_progress SET ddl_state = 'intent', ddl_sql = 'DROP TABLE t'")
    assert main([*adopt, "--close-window"]) == 1
    assert "DROP TABLE t" in capsys.readouterr().err
    execute(server, "UPDATE tidb_binlog.binlake_progress SET ddl_state = '', ddl_sql = NULL")
    assert main([*adopt, "--close-window"]) == 0
    assert read_position(target, NAME, CLUSTER).commit_ts == 1
    assert apply(target, Window(1, 3).put((1, "c"))).state == "applied"
    assert rows(server, "SELECT v FROM app.t") == [("c",)]


def test_checkpoint_adopt_refuses_a_segment_begun_in_parallel_mode(
    server: MariaDb, target: TargetSection, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # some of its batches are applied, and only its ledger and manifest can finish it exactly
    def die(step: str) -> None:
        if step == "batch":
            raise ConnectionAbortedError("power cut")

    parallel = target.model_copy(update={"mode": "parallel", "worker_count": 1})
    with pytest.raises(ConnectionAbortedError):
        apply(
            parallel, Window(0, 5).put((1, "b")).log("x"), lambda step: die(step) if count_ledger_rows(server) else None
        )
    for table in ("binlake_owner", "binlake_progress", "binlake_ledger"):
        execute(server, f"UPDATE tidb_binlog.{table} SET task = 'before'")
    adopt = ["checkpoint", "adopt", "--replication", str(file), "--cluster-id", str(CLUSTER), "--close-window"]
    assert main(adopt) == 1
    assert "in the middle of segment 0" in capsys.readouterr().err


def count_ledger_rows(server: MariaDb) -> int:
    return len(rows(server, "SELECT 1 FROM tidb_binlog.binlake_ledger"))


def test_own_open_window_is_read_before_that_of_another_replication(server: MariaDb, target: TargetSection) -> None:
    with pytest.raises(ConnectionAbortedError):
        apply(target, Window(1, 5).put((1, "b")), _die)
    execute(
        server,
        "INSERT INTO tidb_binlog.binlake_progress (task, clusterID, open_lo, open_hi, manifest, exit_ts, segment,"
        f" ddl_state) VALUES ('a', {CLUSTER}, 7, 9, 'm', 0, 0, '')",
    )
    position = read_position(target, NAME, CLUSTER)
    # The open window's manifest fixes its statement forms, so no exit point is derived for a new one.
    assert (position.window, position.exit_ts) == ((1, 5), 0)
    opened = read_open_window(replication(target), CLUSTER)
    assert opened is not None
    assert (opened.replication, opened.window) == (NAME, (1, 5))


def test_replication_without_sql_sink_has_no_open_window_and_no_tables_aside() -> None:
    assert read_open_window(replication(None), CLUSTER) is None
    assert read_tables_aside(replication(None), CLUSTER) == []


def test_tables_set_aside_are_listed(target: TargetSection) -> None:
    apply(target, Window(0, 100).put((1, "a")))
    assert read_tables_aside(replication(target), CLUSTER) == []
    set_aside(target, CLUSTER, NAME, [("app", "t"), ("app", "log")], "by hand", 0)
    found = read_tables_aside(replication(target), CLUSTER)
    assert [(one.db, one.table, one.since, one.by) for one in found] == [
        ("app", "log", 100, "command"),
        ("app", "t", 100, "command"),
    ]


def test_unreadable_progress_is_not_taken_for_no_open_window(server: MariaDb, target: TargetSection) -> None:
    # otherwise a window before the open one would be planned
    execute(server, "CREATE DATABASE tidb_binlog", "CREATE TABLE tidb_binlog.binlake_progress (task INT)")
    with pytest.raises(TargetRefused, match="open_lo"):
        read_position(target, NAME, CLUSTER)
