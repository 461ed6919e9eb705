"""How an apply ends (stop request, error, kill) decides whether the next one needs safe mode."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator

import pytest
from support.children import wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, primary, table
from support.windows import CLUSTER, NAME, Window, apply, apply_in_child, at, signal_me, target_of, wait_until

from binlake.changes.ordered.forms import RowForms
from binlake.config.servers import TargetSection
from binlake.errors import TargetRefused
from binlake.statements.batch import Phase
from binlake.target import read_position

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


@pytest.fixture(params=["atomic", "parallel"])
def auto(target: TargetSection, request: pytest.FixtureRequest) -> TargetSection:
    return target.model_copy(
        update={"safe_mode": "auto", "mode": request.param, "worker_count": 2, "graceful_stop_timeout_s": 1.0}
    )


def read_forms(target: TargetSection) -> str:
    return read_position(target, NAME, CLUSTER).forms


def read_progress(server: MariaDb) -> tuple[str, int, int | None]:
    """(checkPoint, exit_ts, open_lo)."""
    text = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
    return text, *rows(server, "SELECT exit_ts, open_lo FROM tidb_binlog.binlake_progress")[0]


def count_lock_waits(server: MariaDb) -> int:
    found = rows(server, "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
    return int(found[0][0])


def test_hanging_statement_is_killed_and_leaves_no_transaction(server: MariaDb, auto: TargetSection) -> None:
    # S4-35, R-60: it waits for another session's lock longer than graceful-stop-timeout-s
    window = Window(0, 300).put((1, "a")).put((2, "b")).put((3, "c"))
    execute(server, "INSERT INTO app.t VALUES (2, 'held')")
    other = server.connect(autocommit=False)
    try:
        other.cursor().execute("UPDATE app.t SET v = 'mine' WHERE id = 2")
        pid = apply_in_child(auto, window)
        wait_until(lambda: count_lock_waits(server) == 1, every=0.25)
        os.kill(pid, signal.SIGTERM)
        # The lock is still held, and the session waits for it for 50 s: only the kill ends the statement earlier.
        wait_until(lambda: count_lock_waits(server) == 0, 40, every=0.25)
        assert wait_for_exit(pid) == 1
        # The server ends the transactions of a lost client with some delay, but long before a lock wait times out.
        open_ = "SELECT COUNT(*) FROM information_schema.innodb_trx"
        wait_until(lambda: rows(server, open_) == [(1,)], 30, every=0.25)
    finally:
        other.rollback()
        other.close()
    assert read_progress(server)[1:] == (300, 0)
    apply(auto, window)
    assert rows(server, "SELECT * FROM app.t ORDER BY id") == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_stopped_or_killed_window_is_finished_as_it_was_and_the_next_is_plain(
    server: MariaDb, auto: TargetSection, how: signal.Signals
) -> None:
    # S4-34, S4-37 to S4-40: the exit point is ahead until the window is finished; after it no safe mode is needed
    apply(auto, Window(0, 100).put((1, "a")))
    window = Window(100, 300).put((1, "b"))
    for _ in range(30):
        window.log("one")
    pid = apply_in_child(auto, window, at("batch", 2, signal_me(how)))
    assert wait_for_exit(pid) == (1 if how == signal.SIGTERM else -how)
    text, exit_ts, open_lo = read_progress(server)
    assert '"consistent":false,"commitTS":100' in text
    # S4-38: every visible change has a commit_ts at or below the exit point
    assert (exit_ts, open_lo) == (300, 100)
    apply(auto, window)
    assert rows(server, "SELECT line FROM app.log") == [("one",)] * 30
    assert '"consistent":true,"commitTS":300' in read_progress(server)[0]
    assert read_forms(auto) == "plain"


def test_error_leaves_exit_point_and_checkpoint(server: MariaDb, auto: TargetSection) -> None:
    # S4-38: the article records the exit point at the pause; here it is recorded before the first row
    apply(auto, Window(0, 100).put((1, "a")))
    window = Window(100, 300).put((1, "b")).statement("REPLACE INTO app.missing VALUES (1)")
    with pytest.raises(TargetRefused):
        apply(auto, window)
    text, exit_ts, open_lo = read_progress(server)
    assert '"consistent":false,"commitTS":100' in text
    assert (exit_ts, open_lo) == (300, 100)
    execute(server, "CREATE TABLE app.missing (id INT PRIMARY KEY)")
    apply(auto, window)
    assert read_forms(auto) == "plain"


def test_replayed_safe_mode_changes_give_the_result_of_one_delivery(server: MariaDb, target: TargetSection) -> None:
    # S4-43, S4-44, S4-45: three times each, from before and from after; 0 affected rows are no error
    writer = RowForms(table("t", col("id", not_null=True), col("v"), keys=(primary("id"),), db="app"), target.db_type)
    old, new = {"id": "888", "v": "1"}, {"id": "999", "v": "1"}
    moved = [statement.sql for statement in writer.update_safely(old, new)]
    assert [text.split()[0] for text in moved] == ["DELETE", "REPLACE"]
    for before in (888, 999):
        execute(server, "DELETE FROM app.t", f"INSERT INTO app.t VALUES ({before}, '1')", *(moved * 3))
        assert rows(server, "SELECT id FROM app.t") == [(999,)]
    execute(server, *[writer.replace(new).sql] * 2)
    assert rows(server, "SELECT id FROM app.t") == [(999,)]
    gone = Window(0, 10)
    for _ in range(2):
        gone.statement(writer.delete(new, safe=True).text, Phase.DELETE)
    apply(target, gone)
    assert rows(server, "SELECT id FROM app.t") == []


@pytest.fixture(scope="module")
def logging_server() -> Iterator[MariaDb]:
    """A MariaDB with its binary log enabled."""
    with MariaDb(options=("--log-bin", "--binlog-format=ROW", "--server-id=1")) as server:
        yield server


def test_targets_binlog_shows_each_change_once(logging_server: MariaDb) -> None:
    # S4-47, R-59: auto mode, 100 updates in batches of 10, killed after the fourth batch and resumed
    server = logging_server
    target = target_of(server, mode="parallel", safe_mode="auto", worker_count=2)
    values = ", ".join(f"({key}, 'old')" for key in range(100))
    execute(
        server, "CREATE DATABASE app", "CREATE TABLE app.t (id BIGINT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO app.t VALUES {values}",
    )  # fmt: skip
    apply(target, Window(0, 100))
    assert read_forms(target) == "plain"
    window = Window(100, 200)
    for first in range(0, 100, 10):
        # A second delivery of a batch would add another event and another mark.
        window.statement(f"UPDATE app.t SET v = CONCAT(v, '+') WHERE id BETWEEN {first} AND {first + 9}")
    execute(server, "RESET MASTER")
    pid = apply_in_child(target, window, at("batch", 5, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    assert 0 < rows(server, "SELECT COUNT(*) FROM app.t WHERE v = 'old+'")[0][0] < 100
    apply(target, window)
    assert rows(server, "SELECT v, COUNT(*) FROM app.t GROUP BY v") == [("old+", 100)]
    seen: dict[str, int] = {}
    tables: dict[str, str] = {}
    for _, _, kind, _, _, info in rows(server, "SHOW BINLOG EVENTS"):
        number = re.search(r"table_id: (\d+)", str(info))
        if kind == "Table_map" and number:
            tables[number[1]] = str(info)
        elif number and "app.t" in tables.get(number[1], ""):
            seen[kind] = seen.get(kind, 0) + 1
    assert seen == {"Update_rows_v1": 10}
