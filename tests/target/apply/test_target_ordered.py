"""Mode ordered: every change in commit order over many connections, exactly once, with a true checkpoint."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.children import wait_for_exit
from support.cutting import CuttingProxy
from support.mariadb import MariaDb, execute, rows
from support.rowhistory import KEYED, History, plan
from support.tabledefs import col, primary, table
from support.windows import Crash, Window, apply, apply_ordered_in_child, at, crashing, signal_me

from binlake.changes.net import RowEvent
from binlake.changes.ordered import PlanOptions
from binlake.common.redaction import show_row_values
from binlake.config.servers import TargetSection
from binlake.errors import CheckpointConflict, TargetRefused
from binlake.statements import BatchLimits, StatementBatch
from binlake.statements.batch import compute_statement_digest
from binlake.target.apply import modes

pytestmark = pytest.mark.mariadb

SMALL = PlanOptions(workers=4, limits=BatchLimits(rows=3), round_rows=12)


@pytest.fixture
def ordered(target: TargetSection, server: MariaDb, monkeypatch: pytest.MonkeyPatch) -> TargetSection:
    """The target with the histories' tables, four connections, and a checkpoint that moves as often as possible."""
    monkeypatch.setattr(modes, "CHECKPOINT_S", 0.0)
    execute(
        server,
        "DROP DATABASE IF EXISTS d",
        "CREATE DATABASE d",
        "CREATE TABLE d.t (id INT PRIMARY KEY, u INT UNIQUE, v INT, UNIQUE (v, u))",
        "CREATE TABLE d.log (line INT, n INT)",
    )
    return target.model_copy(update={"mode": "ordered", "worker_count": 4})


def window(batches: list[StatementBatch], lo: int = 0, hi: int = 1000) -> Window:
    found = Window(lo, hi, written=list(batches))
    found.plans = [replace(found.plans[0], ordered=True)]
    return found


def state(server: MariaDb) -> tuple[list[object], list[object]]:
    return rows(server, "SELECT * FROM d.t"), rows(server, "SELECT * FROM d.log")


def assert_model(server: MariaDb, history: History) -> None:
    found = state(server)
    assert sorted(found[0], key=str) == sorted(history.rows.values(), key=str)
    assert sorted(found[1], key=str) == sorted(history.lines, key=str)


def checkpoint(server: MariaDb) -> tuple[int, bool]:
    found = json.loads(rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0])
    return found["commitTS"], found["consistent"]


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize("multiple_rows", [False, True])
def test_result_equals_serial_execution(
    server: MariaDb, ordered: TargetSection, safe: bool, multiple_rows: bool
) -> None:
    # S3-20, S4-21, R-36: swaps of unique values, moved keys, delete and insert, equal rows without a key
    for seed, strategy in enumerate(("causality", "flush")):
        execute(server, "DELETE FROM d.t", "DELETE FROM d.log", "DROP DATABASE IF EXISTS tidb_binlog")
        history = History(seed, 60)
        options = replace(SMALL, multiple_rows=multiple_rows, strategy=strategy)
        result = apply(ordered, window(plan(history.events, options, safe)))
        assert (result.rows, result.modes) == (len(history.events), {"ordered": 1})
        assert_model(server, history)
        assert checkpoint(server) == (1000, True)


STEPS = [
    *(("opened", 1), ("batch", 1), ("batch", 7), ("batch", 20), ("before_commit", 4), ("before_commit", 12)),
    *(("after_commit", 3), ("after_commit", 4), ("after_commit", 15), ("checkpoint", 1), ("checkpoint", 4)),
    ("closed", 1),
]


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize(("step", "number"), STEPS)
def test_killed_process_is_resumed_exactly_once(
    server: MariaDb, ordered: TargetSection, step: str, number: int
) -> None:
    # S3-20, R-17, invariant 9: kill -9 in and between the transactions of several connections; plain forms
    history = History(7, 60)
    found = window(plan(history.events, SMALL))
    pid = apply_ordered_in_child(ordered, found, at(step, number, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    if step != "closed":
        assert checkpoint(server)[1] is False
    apply(ordered, found)
    assert_model(server, history)
    assert checkpoint(server) == (1000, True)


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize("seed", range(3))
def test_random_crashes_neither_lose_nor_duplicate_rows(server: MariaDb, ordered: TargetSection, seed: int) -> None:
    # S4-36
    chance, history = random.Random(seed), History(seed + 20, 40)
    found = window(plan(history.events, SMALL))
    hook = crashing(chance, 0.03)
    for _ in range(200):
        try:
            apply(ordered, found, hook)
            break
        except Crash:
            continue
    assert_model(server, history)


@pytest.mark.parametrize("lose", ["request", "answer"])
def test_lost_commit_is_checked_and_not_repeated(server: MariaDb, ordered: TargetSection, lose: str) -> None:
    # COMMITs of a worker's batch, and of the checkpoint between two rounds
    history = History(3, 25)
    found = window(plan(history.events, SMALL))
    for commit in (4, 6, 9):
        execute(server, "DELETE FROM d.t", "DELETE FROM d.log", "DROP DATABASE IF EXISTS tidb_binlog")
        with CuttingProxy(ordered.host, ordered.port, at=commit, lose=lose) as proxy:
            apply(ordered.model_copy(update={"port": proxy.port}), found)
            assert proxy.cuts == 1
        assert_model(server, history)


def test_checkpoint_moves_over_whole_transactions_only(server: MariaDb, ordered: TargetSection) -> None:
    # S0-72, S3-05, S4-33: at any time, everything up to the checkpoint is on the target
    history = History(11, 50)
    batches = plan(history.events, SMALL)
    seen: list[int] = []

    def look(step: str) -> None:
        if step == "checkpoint":
            commit_ts, consistent = checkpoint(server)
            done = rows(server, "SELECT COALESCE(SUM(row_count), 0) FROM tidb_binlog.binlake_ledger")[0][0]
            assert sum(1 for _, event in history.events if event.commit_ts <= commit_ts) <= done
            assert not consistent
            seen.append(commit_ts)

    apply(ordered, window(batches), look)
    assert len(seen) > 3
    assert seen == sorted(seen)


def insert(key: int, commit_ts: int = 1) -> tuple[object, RowEvent]:
    return KEYED, RowEvent(commit_ts, 0, key, "insert", None, {"id": str(key), "u": None, "v": None})


def test_unrelated_groups_run_in_parallel(server: MariaDb, ordered: TargetSection) -> None:
    # S4-15: two unrelated groups are open at once
    together = threading.Barrier(2, timeout=120)
    options = PlanOptions(workers=2, limits=BatchLimits(rows=1))
    batches = plan([insert(1), insert(3)], options)
    assert len({batch.queue for batch in batches}) == 2, "these keys share a queue; pick other keys"
    apply(ordered, window(batches), lambda step: step == "batch" and together.wait() and None)
    assert rows(server, "SELECT COUNT(*) FROM d.t") == [(2,)]


def test_refused_row_leaves_the_checkpoint_before_it(server: MariaDb, ordered: TargetSection) -> None:
    # S0-72: rows of later transactions may be on the target; after the fix a rerun completes the window
    options = PlanOptions(workers=2, limits=BatchLimits(rows=2), round_rows=2)
    batches = plan([insert(n, n) for n in range(1, 9)], options)
    execute(server, "INSERT INTO d.t VALUES (5, NULL, NULL)")
    with pytest.raises(TargetRefused, match="Duplicate entry"):
        apply(ordered, window(batches))
    commit_ts, consistent = checkpoint(server)
    assert (commit_ts, consistent) == (4, False)
    execute(server, "DELETE FROM d.t WHERE id = 5")
    apply(ordered, window(batches))
    assert rows(server, "SELECT COUNT(*) FROM d.t") == [(8,)]


def test_keyless_delete_without_a_match_is_detected(ordered: TargetSection) -> None:
    #
    lines = table("log", col("line"), col("n"))
    events = [(lines, RowEvent(1, 0, 0, "delete", {"line": "7", "n": None}, None))]
    with pytest.raises(TargetRefused, match="touched 0 rows instead of 1"):
        apply(ordered, window(plan(events, SMALL)))


def update(before: tuple[int, int], after: tuple[int, int], commit_ts: int = 470548480001835008) -> Any:
    images = [{"id": str(key), "u": None, "v": str(v)} for key, v in (before, after)]
    return KEYED, RowEvent(commit_ts, 0, 0, "update", *images)


def delete(key: int, commit_ts: int = 470548480001835009) -> Any:
    return KEYED, RowEvent(commit_ts, 0, 0, "delete", {"id": str(key), "u": None, "v": "1"}, None)


@pytest.fixture
def _values_shown() -> Iterator[None]:
    show_row_values(True)
    yield
    show_row_values(False)


@pytest.mark.usefixtures("_values_shown")
@pytest.mark.parametrize("multiple_rows", [False, True])
@pytest.mark.parametrize(
    ("events", "row", "commit_ts"),
    [
        ([update((7, 1), (8, 1))], "`id` = 7", "470548480001835008"),
        ([update((1, 1), (1, 2), 5), update((7, 1), (9, 1))], "`id` = 7", "470548480001835008"),
        ([delete(7)], "`id` = 7", "470548480001835009"),
    ],
    ids=["update", "second update", "delete"],
)
def test_change_without_a_matching_row_names_the_row_outside_safe_mode(
    server: MariaDb, ordered: TargetSection, events: list[Any], row: str, commit_ts: str, multiple_rows: bool
) -> None:
    execute(server, "INSERT INTO d.t VALUES (1, NULL, 1)")
    options = replace(SMALL, multiple_rows=multiple_rows)
    with pytest.raises(TargetRefused, match="touched 0 rows instead of 1") as stopped:
        apply(ordered, window(plan(events, options), 0, 1 << 60))
    where = stopped.value.where
    assert (where["table"], where["row"], where["commit_ts"]) == ("d.t", row, commit_ts)
    execute(server, "DROP DATABASE tidb_binlog")
    # In safe mode a missing row was changed already by an earlier delivery.
    apply(ordered, window(plan(events, options, safe=True), 0, 1 << 60))


def test_multi_row_delete_with_a_missing_row_names_all_its_rows(server: MariaDb, ordered: TargetSection) -> None:
    execute(server, "INSERT INTO d.t VALUES (1, NULL, 1)")
    batches = plan([delete(1, 5), delete(7, 6)], replace(SMALL, multiple_rows=True, workers=1))
    with pytest.raises(TargetRefused, match="touched 1 rows instead of 2") as stopped:
        apply(ordered, window(batches))
    # The commit_ts identifies the row; values are logged only on demand.
    assert stopped.value.where["row"] == "(`id` = ?) OR (`id` = ?)"
    assert "7" not in stopped.value.where["statement"]
    assert stopped.value.where["commit_ts"] == "5 to 6"
    assert rows(server, "SELECT id FROM d.t") == [(1,)]


def test_update_that_changes_nothing_counts_as_found(server: MariaDb, ordered: TargetSection) -> None:
    # By default, servers count changed rows; the session asks them to count matched rows.
    execute(server, "INSERT INTO d.t VALUES (1, NULL, 1)", "INSERT INTO d.log VALUES (3, 3)")
    same = RowEvent(2, 0, 1, "update", {"line": "3", "n": "3"}, {"line": "3", "n": "3"})
    apply(ordered, window(plan([update((1, 1), (1, 1), 2), (table("log", col("line"), col("n")), same)], SMALL)))
    assert rows(server, "SELECT id, v FROM d.t") == [(1, 1)]


def test_batches_out_of_order_are_refused(ordered: TargetSection) -> None:
    #
    batches = plan([insert(n) for n in range(4)], PlanOptions(workers=1, limits=BatchLimits(rows=1)))
    with pytest.raises(CheckpointConflict, match="are out of order"):
        apply(ordered, window(batches[::-1]))


def test_example_of_the_documents_gives_the_documented_rows(server: MariaDb, ordered: TargetSection) -> None:
    # S0-21, S0-22: the six changes in order, in plain forms, on MariaDB
    execute(server, "CREATE TABLE d.test (id INT PRIMARY KEY, name INT)")
    test = table("test", col("id"), col("name"), keys=(primary("id"),))
    images: list[tuple[tuple[int, int] | None, tuple[int, int] | None]] = [
        (None, (1, 10)),
        (None, (2, 11)),
        ((1, 10), (1, 12)),
        ((2, 11), (2, 13)),
        ((2, 13), None),
        (None, (2, 12)),
    ]
    events = []
    for seq, (before, after) in enumerate(images):
        row = [None if i is None else {"id": str(i[0]), "name": str(i[1])} for i in (before, after)]
        op = "insert" if before is None else "delete" if after is None else "update"
        events.append((test, RowEvent(1, 0, seq, op, *row)))
    apply(ordered, window(plan(events, PlanOptions())))
    assert rows(server, "SELECT * FROM d.test ORDER BY id") == [(1, 12), (2, 12)]


def test_itest_example_gives_the_same_rows_with_slow_workers(server: MariaDb, ordered: TargetSection) -> None:
    # S0-69, S4-16: ends as {(4, 15), (5, 14)} whichever connection is slow
    itest = table("itest", col("id"), col("age"), keys=(primary("id"),))
    history = [((3, 2), (4, 15)), ((2, 1), (5, 14)), ((3, 2), None)]
    texts: Callable[[tuple[int, int]], dict[str, str]] = lambda r: {"id": str(r[0]), "age": str(r[1])}  # noqa: E731
    events = [
        (itest, RowEvent(n, 0, 0, "update" if after else "delete", texts(before), texts(after) if after else None))
        for n, (before, after) in enumerate(history, 1)
    ]
    for strategy in ("causality", "flush"):
        execute(
            server,
            "DROP DATABASE IF EXISTS tidb_binlog",
            "DROP TABLE IF EXISTS d.itest",
            "CREATE TABLE d.itest (id INT PRIMARY KEY, age INT)",
            "INSERT INTO d.itest VALUES (2, 1), (3, 2)",
        )
        options = PlanOptions(workers=4, limits=BatchLimits(rows=1), strategy=strategy)
        # Safe mode: the article deletes the row (3, 2) after it has moved.
        apply(ordered, window(plan(events, options, safe=True)), at("batch", 1, lambda: time.sleep(0.1)))
        assert rows(server, "SELECT * FROM d.itest ORDER BY id") == [(4, 15), (5, 14)]


def test_statements_derived_for_another_mode_are_applied_as_derived(ordered: TargetSection) -> None:
    # the configuration changed between convert and finalize
    assert apply(ordered, Window(0, 1).put((1, "a"))).modes == {"atomic": 1}
    found = window(plan([insert(1)], SMALL), 1, 2)
    assert apply(ordered.model_copy(update={"mode": "parallel"}), found).modes == {"ordered": 1}
    assert compute_statement_digest(found.written[0].sql) == found.written[0].digest
