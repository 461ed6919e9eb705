"""Exactly once despite any crash: repeated and interrupted deliveries give the same result as one delivery."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable

import pymysql
import pytest
from support.children import wait_for_exit
from support.cutting import CuttingProxy
from support.mariadb import MariaDb, execute, rows
from support.windows import Crash, Window, apply, apply_in_child, apply_in_runs, at, crashing, signal_me

from binlake.common.sqllink import VARIABLES
from binlake.config.servers import TargetSection
from binlake.errors import TargetBusy, TargetUnavailable
from binlake.target import read_position
from binlake.target.claim.writers import TRIES

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]


def window() -> Window:
    """Two segments with keyed and keyless rows; app.log reveals duplicate or lost rows."""
    found = Window(100, 300).put((1, "a"), (2, "b")).log("one", "two", "two").put((3, "c"))
    found.ddl(200, "ALTER TABLE t ADD COLUMN w INT DEFAULT 5", [("app", "t")], repeatable=False)
    return found.delete(1).unlog("two").put((2, "B")).log("three")


END = ([(2, "B", 5), (3, "c", 5)], [("one",), ("three",), ("two",)])


def state(server: MariaDb) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    return rows(server, "SELECT * FROM app.t ORDER BY id"), rows(server, "SELECT line FROM app.log ORDER BY line")


def assert_whole(server: MariaDb) -> None:
    assert state(server) == END
    text = rows(server, "SELECT checkPoint FROM tidb_binlog.checkpoint")[0][0]
    assert text == '{"consistent":true,"commitTS":300,"ts-map":{},"schema-version":2}'


def crash() -> None:
    raise Crash


STEPS = [
    ("opened", 1),
    ("batch", 1),
    ("batch", 3),
    ("before_commit", 1),
    ("before_commit", 2),
    ("before_commit", 3),
    ("before_commit", 4),
    ("after_commit", 1),
    ("after_commit", 2),
    ("after_commit", 3),
    ("after_commit", 4),
    ("intent", 1),
    ("ddl_executed", 1),
    ("ddl_done", 1),
    ("batch", 5),
    ("before_commit", 5),
    ("after_commit", 5),
    ("closed", 1),
]


@pytest.mark.parametrize(("step", "number"), STEPS)
def test_killed_process_is_resumed_exactly_once(server: MariaDb, target: TargetSection, step: str, number: int) -> None:
    # U-32, R-17, invariant 9: kill -9 before, in and after each transaction; the keyless table is exact
    pid = apply_in_child(target, window(), at(step, number, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    if step != "closed" and (step, number) != ("after_commit", 5):
        consistent = rows(server, "SELECT checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint")
        assert consistent in ([(0,)], [(None,)], [])
    apply(target, window())
    assert_whole(server)


@pytest.mark.parametrize("seed", range(6))
def test_window_delivered_three_times_with_random_crashes(server: MariaDb, target: TargetSection, seed: int) -> None:
    # S4-36, S4-48
    chance = random.Random(seed)
    hook = crashing(chance, 0.12)
    delivered = 0
    while delivered < 3:
        try:
            apply(target, window(), hook)
            delivered += 1
        except Crash:
            continue
    assert_whole(server)


@pytest.mark.parametrize("lose", ["request", "answer"])
@pytest.mark.parametrize("commit", range(1, 9))
def test_lost_commit_is_checked_and_not_repeated(
    server: MariaDb, target: TargetSection, commit: int, lose: str
) -> None:
    # both outcomes of every COMMIT of an apply, including those of the fence and the opening
    with CuttingProxy(target.host, target.port, at=commit, lose=lose) as proxy:
        through = target.model_copy(update={"port": proxy.port})
        # A run does not repeat the claim and the proof before a DDL, so several runs may be needed.
        apply_in_runs(through, window)
        assert proxy.cuts == 1
    apply(target, window())
    assert_whole(server)


def test_session_killed_outside_commit_is_transient(server: MariaDb, target: TargetSection) -> None:
    # S0-03: the link is cut once; the retry ends with equal data
    def cut() -> None:
        for (session,) in rows(server, "SELECT id FROM information_schema.processlist WHERE info IS NULL"):
            # Sessions of earlier tests may end meanwhile.
            with contextlib.suppress(pymysql.err.OperationalError):
                execute(server, f"KILL {session}")

    with pytest.raises(TargetUnavailable):
        apply(target, window(), at("batch", 2, cut))
    apply(target, window())
    assert_whole(server)


def test_sigterm_stops_between_batches_and_releases_the_lease(server: MariaDb, target: TargetSection) -> None:
    # R-60, S4-35
    pid = apply_in_child(target, window(), at("batch", 1, signal_me(signal.SIGTERM)))
    assert wait_for_exit(pid) == 1
    assert rows(server, "SELECT owner FROM tidb_binlog.binlake_lease") == [("",)]
    assert rows(server, "SELECT exit_ts, open_lo, segment FROM tidb_binlog.binlake_progress") == [(300, 100, 0)]
    assert state(server) == ([], [])
    apply(target, window())
    assert_whole(server)


def test_lock_wait_timeout_repeats_the_whole_segment(
    server: MariaDb, target: TargetSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the lock wait times out twice, then the other transaction ends
    monkeypatch.setitem(VARIABLES, "innodb_lock_wait_timeout", "1")
    execute(server, "INSERT INTO app.t VALUES (3, 'old')")
    other = server.connect(autocommit=False)
    other.cursor().execute("UPDATE app.t SET v = 'held' WHERE id = 3")
    # Each try executes two batches; the second one waits for the lock.
    try:
        apply(target, window(), at("batch", 5, other.rollback))
    finally:
        other.close()
    assert_whole(server)


def test_permanent_lock_fails_after_a_bounded_number_of_tries(
    server: MariaDb, target: TargetSection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(VARIABLES, "innodb_lock_wait_timeout", "0")
    execute(server, "INSERT INTO app.t VALUES (3, 'old')")
    other = server.connect(autocommit=False)
    other.cursor().execute("UPDATE app.t SET v = 'held' WHERE id = 3")
    begun: list[str] = []
    try:
        with pytest.raises(TargetBusy):
            apply(target, window(), lambda step: begun.append(step))
    finally:
        other.close()
    assert begun.count("batch") == 2 * TRIES
    apply(target, window())
    assert_whole(server)


def test_killed_server_is_resumed_exactly_once(server: MariaDb, target: TargetSection) -> None:
    # The target is durable too: it keeps what was committed and nothing else
    def die(restart: Callable[[], object]) -> Callable[[], None]:
        def act() -> None:
            server.kill9()
            restart()

        return act

    with pytest.raises(TargetUnavailable):
        apply(target, window(), at("batch", 4, die(server.restart)))
    apply(target, window())
    assert_whole(server)


def test_open_window_can_be_read(target: TargetSection) -> None:
    # plan and compact take the open window before any other
    assert read_position(target, "shop", 0).window is None
    with pytest.raises(Crash):
        apply(target, window(), at("opened", 1, crash))
    assert read_position(target, "shop", 0).window == (100, 300)
    apply(target, window())
    assert read_position(target, "shop", 0).window is None


def test_cost_of_a_slow_link_is_per_batch(server: MariaDb, target: TargetSection) -> None:
    # S0-03: 10,000 rows in batches of 100 over a link with a delay
    big = Window(0, 100)
    for start in range(0, 10_000, 100):
        big.put(*((key, "v") for key in range(start, start + 100)), verify=True)
    with CuttingProxy(target.host, target.port, delay_s=0.005) as proxy:
        started = time.monotonic()
        apply(target.model_copy(update={"port": proxy.port}), big)
        assert proxy.requests <= 250
        assert time.monotonic() - started < 300
    assert rows(server, "SELECT COUNT(*) FROM app.t") == [(10_000,)]
