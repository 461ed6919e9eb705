"""Mode parallel: many connections and transactions, but still exactly once, in two phases, under one fence.

A comment `Mutant:` names a change to the code with which the test was seen to fail.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace

import pymysql
import pytest
from support.children import wait_for_exit
from support.cutting import CuttingProxy
from support.mariadb import MariaDb, execute, rows
from support.windows import (
    NAME,
    Crash,
    Window,
    apply,
    apply_in_child,
    apply_in_runs,
    at,
    crashing,
    is_stopped,
    signal_me,
    wait_until,
)

from binlake.common.sqllink import VARIABLES
from binlake.config.servers import TargetSection
from binlake.errors import Drift, Fenced, TargetBusy, TargetRefused, TargetUnavailable, Transient
from binlake.statements.batch import Phase, StatementBatch
from binlake.target import TargetSession, apply_window
from binlake.target.claim.fence import Fence, format_lock_name, take_fence
from binlake.target.session.tables import create_tables

pytestmark = pytest.mark.mariadb

LEDGER = "tidb_binlog.binlake_ledger"


@pytest.fixture
def parallel(target: TargetSection) -> TargetSection:
    """The target in mode parallel with three connections."""
    return target.model_copy(update={"mode": "parallel", "worker_count": 3})


def window() -> Window:
    """Two segments, keyed and keyless rows, presence checks before a DDL: reveals duplicates, losses and deadlocks."""
    found = Window(100, 300).put((1, "a"), (2, "b"), verify=True).log("one", "two", "two").put((3, "c"), verify=True)
    found.ddl(200, "ALTER TABLE t ADD COLUMN w INT DEFAULT 5", [("app", "t")], repeatable=False)
    return found.delete(1).unlog("two").put((2, "B"), verify=True).log("three")


END = ([(2, "B", 5), (3, "c", 5)], [("one",), ("three",), ("two",)])


def assert_whole(server: MariaDb) -> None:
    found = rows(server, "SELECT * FROM app.t ORDER BY id"), rows(server, "SELECT line FROM app.log ORDER BY line")
    assert found == END
    text = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
    assert text == '{"consistent":true,"commitTS":300,"ts-map":{},"schema-version":2}'


def checkpoint(server: MariaDb) -> tuple[int, bool]:
    return rows(
        server,
        "SELECT JSON_VALUE(checkPoint, '$.commitTS'), checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint",
    )[0]


def count_transactions(server: MariaDb) -> list[int]:
    """The number of transactions that each worker connection has proved."""
    found = rows(server, "SELECT val FROM tidb_binlog.binlake_fence WHERE worker > 0 AND val > 0 ORDER BY worker")
    return [int(val) for (val,) in found]


@pytest.mark.soak_on("mysql")
def test_each_batch_is_one_transaction_on_one_of_all_connections(server: MariaDb, parallel: TargetSection) -> None:
    # S3-01, S0-65, S0-66: three transactions are open at once; readers see consistent=false until the end (S3-05)
    together, seen = threading.Barrier(3, timeout=120), []
    big = Window(0, 100)
    for start in range(0, 900, 100):
        big.put(*((key, "v") for key in range(start, start + 100)), verify=True)

    def hook(step: str) -> None:
        if step == "batch":
            together.wait()
            seen.append(checkpoint(server))

    result = apply(parallel, big, hook)
    assert (result.rows, result.batches, result.modes) == (900, 9, {"parallel": 1})
    assert count_transactions(server) == [3, 3, 3]
    assert set(seen) == {("0", 0)}
    assert checkpoint(server) == ("100", 1)
    assert rows(server, f"SELECT COUNT(*), MAX(atomic) FROM {LEDGER}") == [(9, 0)]
    assert apply(parallel, big).state == "already"


def test_source_transaction_stays_whole_only_in_atomic_mode(server: MariaDb, target: TargetSection) -> None:
    # S3-01, R-30: the ledger says which mode was used
    apply(target.model_copy(update={"mode": "atomic"}), Window(0, 1).put((1, "a")).put((2, "b")))
    assert count_transactions(server) == []
    assert rows(server, f"SELECT COUNT(*), MIN(atomic) FROM {LEDGER}") == [(2, 1)]


@pytest.mark.parametrize("limits", [{"max_segment_rows": 2}, {"max_segment_bytes": 80}], ids=["rows", "bytes"])
def test_auto_mode_is_atomic_up_to_the_limit_and_reports_the_mode(
    server: MariaDb, target: TargetSection, limits: dict[str, int]
) -> None:
    # no silent fallback
    auto = target.model_copy(update={"mode": "auto", **limits})
    found = Window(0, 300).put((1, "a"))
    found.ddl(200, "ALTER TABLE t ADD COLUMN w INT DEFAULT 5", [("app", "t")]).put((2, "b")).put((3, "c"), (4, "d"))
    sizes = [(1, 45), (3, 100)]
    found.plans = [replace(p, rows=n, bytes=size) for p, (n, size) in zip(found.plans, sizes, strict=True)]
    assert apply(auto, found).modes == {"atomic": 1, "parallel": 1}
    assert rows(server, f"SELECT segment, atomic FROM {LEDGER} GROUP BY 1, 2 ORDER BY 1") == [(0, 1), (1, 0)]
    assert checkpoint(server) == ("300", 1)


class Watching(Window):
    """Records how much of phase 1 is stored when phase 2 is first requested."""

    def __init__(self, server: MariaDb, of: Window) -> None:
        super().__init__(of.lo, of.hi, of.plans, of.written)
        self.server = server
        self.stored: list[tuple[int, ...]] = []

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        if phase == Phase.WRITE:
            self.stored += rows(self.server, f"SELECT COUNT(*), MAX(phase) FROM {LEDGER} WHERE lo = {self.lo}")
        yield from super().read_batches(segment, phase)


def test_deletes_are_stored_before_the_first_write(server: MariaDb, parallel: TargetSection) -> None:
    # U-14, S0-67, S0-71, invariant 6. Mutants: the phases swapped; both phases in one call of `each`
    execute(server, "ALTER TABLE app.t ADD UNIQUE (v)")
    apply(parallel, Window(0, 1).put(*((key, f"old{key}") for key in range(1, 6))))
    moves = Window(1, 2)
    for key in range(1, 6):
        # A new row takes the unique value of a deleted row, and one key is deleted and inserted.
        moves.delete(key).put((key + 5, f"old{key}"), verify=True)
    moves.statement("DELETE FROM app.t WHERE id = 9", Phase.DELETE)
    watching = Watching(server, moves)
    apply_window(parallel, moves.manifest(), watching)
    assert watching.stored == [(len(moves.written) - 5, 1)]
    assert rows(server, "SELECT id, v FROM app.t ORDER BY id") == [(key + 5, f"old{key}") for key in range(1, 6)]


def test_missing_written_key_fails_the_segment(server: MariaDb, parallel: TargetSection) -> None:
    # Mutant: `each(presence.groups…)` removed from parallel.apply_rows
    execute(server, "ALTER TABLE app.t ADD UNIQUE (v)")
    lost = Window(0, 1).put((1, "same"), verify=True).put((2, "same"), verify=True)
    with pytest.raises(Drift, match="0 of 1 written rows are on the target"):
        apply(parallel, lost)
    assert checkpoint(server) == ("0", 0)
    # A retry executes no batch again, but repeats the check.
    with pytest.raises(Drift):
        apply(parallel, lost)
    assert sum(count_transactions(server)) == 2


def test_statements_changed_after_their_application_are_refused(server: MariaDb, parallel: TargetSection) -> None:
    # Mutant: the comparison of digests removed from progress.is_recorded
    found = Window(0, 10).put((1, "a")).statement("REPLACE INTO app.nowhere VALUES (1)")
    single = parallel.model_copy(update={"worker_count": 1})
    with pytest.raises(TargetRefused):
        apply(single, found)
    manifest = found.manifest()
    other = Window(0, 10).put((1, "another")).put((2, "b"))
    with pytest.raises(Exception, match="another batch with this number"):
        apply_window(single, manifest, other)
    assert rows(server, "SELECT * FROM app.t") == [(1, "a")]


STEPS = [
    ("opened", 1),
    ("batch", 1),
    ("before_commit", 2),
    ("after_commit", 2),
    ("batch", 3),
    ("after_commit", 4),
    ("before_commit", 5),
    ("after_commit", 5),
    ("intent", 1),
    ("ddl_done", 1),
    ("batch", 4),
    ("after_commit", 9),
    ("before_commit", 10),
    ("batch", 7),
    ("before_commit", 12),
    ("after_commit", 12),
]


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize(("step", "number"), STEPS)
def test_killed_process_is_resumed_exactly_once(
    server: MariaDb, parallel: TargetSection, step: str, number: int
) -> None:
    # R-17, S3-20, invariant 9: kill -9 around every kind of transaction, several in flight; the keyless table is exact
    pid = apply_in_child(parallel, window(), at(step, number, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    assert checkpoint(server)[1] == (number == 12 and step == "after_commit") if step != "opened" else True
    apply(parallel, window())
    assert_whole(server)


@pytest.mark.soak_on("mysql")
@pytest.mark.parametrize("seed", range(4))
def test_window_is_exact_in_any_mix_of_modes_with_random_crashes(
    server: MariaDb, target: TargetSection, seed: int
) -> None:
    # S4-36, S4-48, R-17: a window started in one mode may be finished in another
    chance = random.Random(seed)
    hook = crashing(chance, 0.12)
    delivered = 0
    while delivered < 2:
        mode = chance.choice(["atomic", "parallel"])
        try:
            apply(target.model_copy(update={"mode": mode, "worker_count": chance.choice([1, 3])}), window(), hook)
            delivered += 1
        except Crash:
            continue
    assert_whole(server)


@pytest.mark.parametrize("lose", ["request", "answer"])
@pytest.mark.parametrize("commit", [3, 5, 6, 11])
def test_lost_commit_is_checked_and_not_repeated(
    server: MariaDb, parallel: TargetSection, commit: int, lose: str
) -> None:
    # whichever batch it is. Mutant: `_is_stored` of a batch returns False
    with CuttingProxy(parallel.host, parallel.port, at=commit, lose=lose) as proxy:
        through = parallel.model_copy(update={"port": proxy.port, "worker_count": 2})
        # A run does not repeat the proof before a DDL.
        apply_in_runs(through, window)
        assert proxy.cuts == 1
    apply(parallel, window())
    assert_whole(server)


def test_fence_is_held_only_by_connections_that_a_takeover_can_end(
    server: MariaDb, parallel: TargetSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a process stopped while it holds the fence would block each takeover until the server's lock timeout
    real, unnamed, named = Fence.prove, [], []

    def prove(self: Fence, session: TargetSession) -> int:
        count = real(self, session)
        row = f"SELECT 1 FROM tidb_binlog.binlake_fence WHERE task = '{NAME}' AND worker = {self.worker}"
        try:
            rows(server, f"{row} FOR UPDATE NOWAIT")
        except pymysql.err.OperationalError:
            holder = session.fetch_value(
                "SELECT IS_USED_LOCK(%s)", (format_lock_name("tidb_binlog", NAME, self.worker),)
            )
            (named if holder == session.connection_id else unnamed).append(self.worker)
        return count

    monkeypatch.setattr(Fence, "prove", prove)
    with CuttingProxy(parallel.host, parallel.port, at=5, lose="answer") as proxy:
        apply_in_runs(parallel.model_copy(update={"port": proxy.port, "worker_count": 2}), window)
        assert proxy.cuts == 1
    assert unnamed == []
    assert {0, 1} <= set(named)
    assert_whole(server)


def test_process_taken_over_writes_no_further_batch(server: MariaDb, parallel: TargetSection) -> None:
    # the takeover did not end its sessions (a proxy hides them). Mutant: fence.prove removed from FencedWriter
    def taken_over() -> None:
        execute(server, "UPDATE tidb_binlog.binlake_fence SET epoch = epoch + 1")

    single = parallel.model_copy(update={"worker_count": 1})
    with pytest.raises(Fenced, match="took over"):
        apply(single, Window(0, 1).log("first").log("second").log("third"), at("after_commit", 2, taken_over))
    assert rows(server, "SELECT line FROM app.log") == [("first",)]
    apply(single, Window(0, 1).log("first").log("second").log("third"))
    assert len(rows(server, "SELECT line FROM app.log")) == 3


def test_takeover_waits_for_the_transactions_of_all_connections(server: MariaDb, parallel: TargetSection) -> None:
    # the claim raises the epoch in the rows of all workers, so no worker may hold a lock on its row
    one, two, three = TargetSession(parallel), TargetSession(parallel), TargetSession(parallel)
    create_tables(one, "tidb_binlog")
    fence = take_fence(one, parallel, NAME)
    worker = fence.with_worker(3)
    two.begin()
    worker.prove(two)
    fence.abandon()
    execute(server, "UPDATE tidb_binlog.binlake_lease SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    three.execute("SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(TargetBusy):
        take_fence(three, parallel, NAME)
    three.rollback()
    two.commit()
    newer = take_fence(three, parallel.model_copy(update={"worker_count": 1}), NAME)
    two.begin()
    with pytest.raises(Fenced):
        worker.prove(two)
    newer.release(three)
    for session in (one, two, three):
        session.close()


def test_takeover_ends_the_sessions_of_all_workers(server: MariaDb, parallel: TargetSection) -> None:
    # a stopped process keeps transactions open on every connection
    stopped = apply_in_child(parallel, window(), at("batch", 2, signal_me(signal.SIGSTOP)))
    wait_until(lambda: is_stopped(stopped), 60)
    execute(server, "UPDATE tidb_binlog.binlake_lease SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
    apply(parallel, window())
    os.kill(stopped, signal.SIGCONT)
    assert wait_for_exit(stopped) == 1
    assert_whole(server)


def test_deadlock_repeats_only_the_affected_batch(server: MariaDb, parallel: TargetSection) -> None:
    # the batch holds row 1 and waits for row 50; the other holds row 50, asks for row 1, and weighs more
    execute(server, f"INSERT INTO app.t VALUES {', '.join(f'({key}, 0)' for key in range(1, 200))}")
    execute(server, "DROP TABLE IF EXISTS app.heavy", "CREATE TABLE app.heavy (a INT)")
    heavy = ", ".join(["(1)"] * 2000)
    other = server.connect(autocommit=False)
    cursor = other.cursor()
    cursor.execute(f"INSERT INTO app.heavy VALUES {heavy}")
    cursor.execute("UPDATE app.t SET v = 'other' WHERE id = 50")
    found = Window(0, 1).log("keyless").put((1, "x"))
    last = found.written[-1]
    sql = ("REPLACE INTO app.t (id, v) VALUES (1, 'x')", "REPLACE INTO app.t (id, v) VALUES (50, 'y')")
    found.written[-1] = replace(last, sql=sql, expect=(-1, -1))
    tried: list[str] = []
    applying = threading.Thread(target=lambda: apply(parallel, found, tried.append))
    applying.start()
    try:
        # The server caches this answer as long as it is queried more often than every 0.1 s.
        waits = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        wait_until(lambda: rows(server, waits) == [(1,)], 60, every=0.25)
        # Whichever transaction is the victim, the batch is stored once, after the other.
        cursor.execute("UPDATE app.t SET v = 'other' WHERE id = 1")
        other.commit()
    finally:
        other.close()
        applying.join(180)
    assert rows(server, "SELECT v FROM app.t WHERE id IN (1, 50)") == [("x",), ("y",)]
    assert rows(server, "SELECT line FROM app.log") == [("keyless",)]
    assert sum(count_transactions(server)) == 2


@pytest.mark.soak_on("mysql")
def test_permanent_lock_fails_the_run_and_leaves_the_checkpoint(
    server: MariaDb, parallel: TargetSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VARIABLES, "innodb_lock_wait_timeout", "0")
    execute(server, "INSERT INTO app.t VALUES (3, 'old')")
    other = server.connect(autocommit=False)
    other.cursor().execute("UPDATE app.t SET v = 'held' WHERE id = 3")
    try:
        with pytest.raises(TargetBusy):
            apply(parallel, window())
    finally:
        other.close()
    assert checkpoint(server) == ("100", 0)
    apply(parallel, window())
    assert_whole(server)


def test_refused_batch_stops_all_workers_and_leaves_the_checkpoint(server: MariaDb, parallel: TargetSection) -> None:
    # S0-72: rows of other tables may be on the target; after the fix a rerun completes the window
    found = Window(0, 10).log("x").put((1, "b" * 30)).log("y")
    with pytest.raises(TargetRefused, match="too long"):
        apply(parallel, found)
    assert checkpoint(server) == ("0", 0)
    execute(server, "ALTER TABLE app.t MODIFY v VARCHAR(40)")
    apply(parallel, found)
    assert rows(server, "SELECT line FROM app.log ORDER BY line") == [("x",), ("y",)]
    assert checkpoint(server) == ("10", 1)


def test_error_while_reading_batches_fails_the_segment(server: MariaDb, parallel: TargetSection) -> None:
    # a batch that cannot be read, or is not the pinned one, stops the segment
    class Broken(Window):
        def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
            yield from super().read_batches(segment, phase)
            if phase == Phase.WRITE:
                raise Transient("the lake is away")

    found = Window(0, 10).put((1, "a"))
    with pytest.raises(Transient, match="the lake is away"):
        apply_window(parallel, found.manifest(), Broken(0, 10, found.plans, found.written))
    assert checkpoint(server) == ("0", 0)


def test_sigterm_completes_running_batches_and_releases_the_lease(server: MariaDb, parallel: TargetSection) -> None:
    # R-60, S4-34, S4-35: running batches are stored whole, the others are not started
    pid = apply_in_child(parallel, window(), at("batch", 1, signal_me(signal.SIGTERM)))
    assert wait_for_exit(pid) == 1
    assert rows(server, "SELECT owner FROM tidb_binlog.binlake_lease") == [("",)]
    # The segment depends on when the main thread, which handles signals, gets to run.
    assert rows(server, "SELECT exit_ts, open_lo FROM tidb_binlog.binlake_progress") == [(300, 100)]
    apply(parallel, window())
    assert_whole(server)


def test_server_killed_within_a_commit_is_resumed_exactly_once(server: MariaDb, parallel: TargetSection) -> None:
    # The server has what was committed and nothing else, and the next run looks it up
    def die() -> None:
        server.kill9()
        server.restart()

    with pytest.raises(TargetUnavailable):
        apply(parallel.model_copy(update={"worker_count": 1}), window(), at("before_commit", 3, die))
    apply(parallel, window())
    assert_whole(server)
