"""A window is applied only from the checkpoint, in whole segments, and the checkpoint is always true."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from support.mariadb import MariaDb, execute, rows
from support.windows import CLUSTER, NAME, Window, apply, target_of

from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, Drift, Permanent, TargetRefused, TargetUnavailable
from binlake.statements.batch import Phase
from binlake.target import TargetSession, apply_window, expect_tables

pytestmark = pytest.mark.mariadb


def checkpoint(server: MariaDb) -> dict[str, object]:
    """The JSON of the checkpoint row."""
    found = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint WHERE clusterID = %s", (CLUSTER,))
    return json.loads(found[0][0])


def read_table(server: MariaDb) -> list[tuple[int, str]]:
    return rows(server, "SELECT id, v FROM app.t ORDER BY id")


def test_window_applies_rows_and_moves_checkpoint(server: MariaDb, target: TargetSection) -> None:
    first = Window(100, 200).put((1, "a"), (2, "b")).log("x", "x")
    second = Window(200, 300).delete(1).put((2, "c")).unlog("x")
    result = apply(target, first)
    assert (result.state, result.rows, result.batches, result.segments) == ("applied", 4, 2, 1)
    assert read_table(server) == [(1, "a"), (2, "b")]
    apply(target, second)
    assert read_table(server) == [(2, "c")]
    assert rows(server, "SELECT line FROM app.log") == [("x",)]
    # S3-06: the original's keys
    assert checkpoint(server) == {"consistent": True, "commitTS": 300, "ts-map": {}, "schema-version": 1}


def test_empty_window_moves_the_checkpoint(server: MariaDb, target: TargetSection) -> None:
    # U-05, DESIGN 4: an empty window still moves commitTS and consistent
    assert apply(target, Window(0, 50)).rows == 0
    assert (checkpoint(server)["commitTS"], checkpoint(server)["consistent"]) == (50, True)


def test_checkpoint_is_inconsistent_while_a_window_runs(server: MariaDb, target: TargetSection) -> None:
    # S3-05, R-22: false is committed separately before the first write; true is committed with the new commitTS
    seen: list[tuple[str, object, object, int]] = []

    def look(step: str) -> None:
        now = checkpoint(server)
        seen.append((step, now["consistent"], now["commitTS"], len(read_table(server))))

    apply(target, Window(100, 200).put((1, "a")))
    # The hook runs before the opening's COMMIT, so the checkpoint still shows the clean end of the previous window.
    seen.clear()
    apply(target, Window(200, 300).put((2, "b")), look)
    assert seen == [
        ("before_commit", True, 200, 1),
        ("after_commit", False, 200, 1),
        ("opened", False, 200, 1),
        ("batch", False, 200, 1),
        ("before_commit", False, 200, 1),
        ("after_commit", True, 300, 2),
        ("closed", True, 300, 2),
    ]
    assert rows(server, "SELECT exit_ts, open_lo FROM tidb_binlog.binlake_progress") == [(300, None)]


def test_applied_windows_are_not_applied_again(server: MariaDb, target: TargetSection) -> None:
    # rerun every finalize of a history in any order; nothing may be written
    history = [Window(n, n + 1).put((7, f"v{n}")).log(str(n)) for n in range(5)]
    for window in history:
        apply(target, window)
    before = rows(server, "SELECT * FROM tidb_binlog.binlake_fence")
    for number in (3, 0, 4, 1, 2):
        assert apply(target, history[number]).state == "already"
    assert read_table(server) == [(7, "v4")]
    assert len(rows(server, "SELECT line FROM app.log")) == 5
    assert rows(server, "SELECT * FROM tidb_binlog.binlake_fence") == before


def test_window_that_does_not_start_at_the_checkpoint_is_refused(server: MariaDb, target: TargetSection) -> None:
    apply(target, Window(100, 200).put((1, "a")))
    for window in (Window(150, 300).put((1, "b")), Window(250, 300).put((1, "b"))):
        with pytest.raises(CheckpointConflict, match="does not start at the checkpoint 200"):
            apply(target, window)
    assert read_table(server) == [(1, "a")]


@pytest.mark.parametrize("hi", [150, 200, 300])
def test_open_window_is_retried_only_with_its_own_manifest(server: MariaDb, target: TargetSection, hi: int) -> None:
    # a shorter window, a longer one, and the same bounds with other statements
    opened = Window(100, 200).put((1, "a")).statement("REPLACE INTO app.nowhere VALUES (1)")
    with pytest.raises(TargetRefused):
        apply(target, opened)
    with pytest.raises(CheckpointConflict, match="100-200 is open"):
        apply(target, Window(100, hi).put((1, "a")))
    assert (checkpoint(server)["commitTS"], checkpoint(server)["consistent"]) == (100, False)
    execute(server, "CREATE TABLE app.nowhere (a INT)")
    assert apply(target, opened).state == "applied"


def test_refused_row_leaves_checkpoint_at_the_last_whole_segment(server: MariaDb, target: TargetSection) -> None:
    # S0-72: the value is too long for the column; after the fix a rerun completes the window
    window = Window(100, 300).put((1, "a"))
    window.ddl(200, "ALTER TABLE t ADD COLUMN w INT", [("app", "t")]).put((2, "b" * 30), (3, "c"))
    with pytest.raises(TargetRefused, match="too long"):
        apply(target, window)
    assert checkpoint(server)["commitTS"] == 200
    assert checkpoint(server)["consistent"] is False
    assert read_table(server) == [(1, "a")]
    execute(server, "ALTER TABLE app.t MODIFY v VARCHAR(40)")
    assert apply(target, window).rows == 2
    assert checkpoint(server)["commitTS"] == 300


def test_unexpected_number_of_affected_rows_is_refused(server: MariaDb, target: TargetSection) -> None:
    # a keyless delete that matches no row is detected
    with pytest.raises(TargetRefused, match="touched 0 rows instead of 1"):
        apply(target, Window(0, 1).put((1, "a")).unlog("never there"))
    assert read_table(server) == []


def test_missing_written_key_fails_the_segment(server: MariaDb, target: TargetSection) -> None:
    # with a unique key that only the target has, REPLACE silently removes a row
    execute(server, "ALTER TABLE app.t ADD UNIQUE (v)")
    with pytest.raises(Drift, match="1 of 2 written rows are on the target"):
        apply(target, Window(0, 1).put((1, "same"), (2, "same"), verify=True))
    assert read_table(server) == []
    assert checkpoint(server)["commitTS"] == 0


def test_unexpected_table_is_drift_before_the_first_write(server: MariaDb, target: TargetSection) -> None:
    # definitions are compared per segment
    window = Window(0, 1).put((1, "a"))
    window.plans[0] = replace(window.plans[0], expected=expect_tables([], target.db_type, absent=[("app", "t")]))
    with pytest.raises(Drift, match="still there"):
        apply(target, window)
    assert read_table(server) == []


def test_too_many_rows_for_one_transaction_are_refused(server: MariaDb, target: TargetSection) -> None:
    # no silent fallback to several transactions
    small = target.model_copy(update={"max_segment_rows": 2})
    with pytest.raises(Permanent, match="above the limit of 2: too many"):
        apply(small, Window(0, 1).put((1, "a"), (2, "b")).put((3, "c")))
    assert read_table(server) == []
    assert apply(target, Window(0, 1).put((1, "a"), (2, "b")).put((3, "c"))).rows == 3


def test_two_replications_cannot_share_a_checkpoint_row(server: MariaDb, target: TargetSection) -> None:
    #
    apply(target, Window(0, 100).put((1, "a")))
    other = Window(100, 200).put((1, "b"))
    theirs = replace(other.manifest(), replication="other")
    with pytest.raises(CheckpointConflict, match=f"belongs to the replication {NAME}"):
        apply_window(target, theirs, other)
    apart = target.model_copy(update={"checkpoint_schema": "other_binlog"})
    try:
        assert apply_window(apart, theirs, other).state == "applied"
    finally:
        execute(server, "DROP DATABASE other_binlog")
    assert checkpoint(server)["commitTS"] == 100


def test_checkpoint_moved_by_another_writer_is_detected(server: MariaDb, target: TargetSection) -> None:
    # a real drainer writes the same row
    moved = '{"consistent":true,"commitTS":150,"ts-map":{}}'

    def interfere(step: str) -> None:
        if step == "opened":
            execute(server, f"UPDATE tidb_binlog.checkpoint SET checkPoint = '{moved}'")

    with pytest.raises(CheckpointConflict, match="the checkpoint row is not as Binlake wrote it"):
        apply(target, Window(100, 200).put((1, "a")), interfere)
    assert read_table(server) == []
    assert checkpoint(server)["commitTS"] == 150


def test_checkpoint_row_of_a_drainer_is_resumed(server: MariaDb, target: TargetSection) -> None:
    # S3-06: the article's row, written by hand; int64 values stay exact
    ts = 414529105591271429
    by_hand = f'{{"consistent":false,"commitTS":{ts},"ts-map":{{}}}}'
    execute(
        server,
        "CREATE DATABASE tidb_binlog",
        "CREATE TABLE tidb_binlog.checkpoint (clusterID BIGINT UNSIGNED PRIMARY KEY, checkPoint MEDIUMTEXT)",
        f"INSERT INTO tidb_binlog.checkpoint VALUES ({CLUSTER}, '{by_hand}')",
    )
    minute = 60_000 << 18
    apply(target, Window(ts, ts + 1).put((1, "a")))
    text = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
    # S4-41: it is unknown how far the drainer got, so the target may be ahead of its checkpoint for a minute.
    assert text == f'{{"consistent":false,"commitTS":{ts + 1},"ts-map":{{}},"schema-version":1}}'
    apply(target, Window(ts + 1, ts + minute).put((1, "a")))
    text = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
    assert text == f'{{"consistent":true,"commitTS":{ts + minute},"ts-map":{{}},"schema-version":1}}'
    columns = rows(server, "SHOW COLUMNS FROM tidb_binlog.checkpoint")
    assert [column[0] for column in columns] == ["clusterID", "checkPoint"]


def test_first_writes_are_safe_forms_and_checkpoint_is_written_last(server: MariaDb, target: TargetSection) -> None:
    # C-03, checked in the target's general log; S0-03: the number of statements depends on batches, not on rows
    apply(target, Window(0, 100))
    execute(server, "SET GLOBAL log_output = 'TABLE'", "TRUNCATE mysql.general_log", "SET GLOBAL general_log = 1")
    window = Window(100, 200).delete(1, 2)
    for start in range(0, 1000, 100):
        window.put(*((key, "v") for key in range(start, start + 100)), verify=True)
    try:
        apply(target, window)
    finally:
        execute(server, "SET GLOBAL general_log = 0")
    logged = rows(
        server,
        "SELECT CONVERT(argument USING utf8mb4) FROM mysql.general_log"
        " WHERE command_type = 'Query' AND argument NOT LIKE '%%general_log%%' ORDER BY event_time",
    )
    texts = [text for (text,) in logged]
    data = [text for text in texts if "app." in text and not text.startswith("SELECT")]
    assert data[0].startswith("DELETE FROM app.t")
    assert {text.split()[0] for text in data[1:]} == {"REPLACE"}
    last_commit = max(n for n, text in enumerate(texts) if text == "COMMIT" and n < _release(texts))
    assert texts[last_commit - 1].startswith("REPLACE INTO `tidb_binlog`.`checkpoint`")
    assert len(texts) < 80


def _release(texts: list[str]) -> int:
    return next(n for n, text in enumerate(texts) if "owner = ''" in text)


def test_deletes_run_before_writes(server: MariaDb, target: TargetSection) -> None:
    # Invariant 6: the lake may return batches in any order, but phase 1 ends before phase 2
    window = Window(0, 1).put((1, "new")).statement("DELETE FROM app.t WHERE id = 1", Phase.DELETE)
    apply(target, window)
    assert read_table(server) == [(1, "new")]


def test_wrong_password_is_refused_with_the_user_name(server: MariaDb) -> None:
    execute(server, "CREATE USER IF NOT EXISTS 'reader'@'%' IDENTIFIED BY 'right'")
    with pytest.raises(TargetRefused, match=r"login.*reader"):
        apply(target_of(server, user="reader", password="wrong"), Window(0, 1))


def test_unreachable_target_is_a_retryable_error(target: TargetSection) -> None:
    nowhere = target.model_copy(update={"port": 1, "connect_timeout_s": 1.0})
    with pytest.raises(TargetUnavailable, match="cannot be reached"):
        apply(nowhere, Window(0, 1))


def test_segments_that_differ_from_the_manifest_are_refused(server: MariaDb, target: TargetSection) -> None:
    # finalize executes only the pinned plan
    window = Window(0, 10).put((1, "a"))
    with pytest.raises(CheckpointConflict, match="not those of the manifest"):
        apply_window(target, replace(window.manifest(), segments=2), window)
    assert read_table(server) == []


@pytest.mark.servers("mariadb")  # MariaDB answers SHOW MASTER STATUS as a TiDB does
def test_ts_map_stays_empty_without_a_secondary_timestamp(server: MariaDb, target: TargetSection) -> None:
    # S3-07: a TiDB answers SHOW MASTER STATUS with its own timestamp; here the answer is empty, so the map stays empty
    apply(target.model_copy(update={"db_type": "tidb"}), Window(0, 10))
    assert checkpoint(server)["ts-map"] == {}


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_tidb_timestamp_is_read_after_the_last_batch(
    server: MariaDb, target: TargetSection, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S3-07: TiDB's form of the answer; all rows are visible at the time of the query
    real, seen = TargetSession.fetch_rows, []

    def answer(self: TargetSession, sql: str, arguments: Sequence[object] = ()) -> list[tuple[object, ...]]:
        if sql != "SHOW MASTER STATUS":
            return real(self, sql, arguments)
        seen.append(len(read_table(server)))
        return [("tidb-binlog", 414529105591271430, "", "", "")]

    monkeypatch.setattr(TargetSession, "fetch_rows", answer)
    like_tidb = target.model_copy(update={"db_type": "tidb", "mode": mode, "worker_count": 2})
    apply(like_tidb, Window(0, 10).put((1, "a")).put((2, "b")))
    assert seen == [2]
    assert checkpoint(server)["ts-map"] == {"primary-ts": 10, "secondary-ts": 414529105591271430}
    # A target of another type keeps the map unchanged.
    apply(target, Window(10, 20))
    assert checkpoint(server)["ts-map"] == {"primary-ts": 10, "secondary-ts": 414529105591271430}
