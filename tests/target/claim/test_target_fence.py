"""One writer at a time: a process that lost its claim writes nothing more, and a live process keeps its claim."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import ClassVar, cast

import pymysql
import pytest
from support.children import wait_for_exit
from support.mariadb import MariaDb, execute, rows
from support.windows import NAME, Window, apply, apply_in_child, at, is_stopped, signal_me, wait_until

from binlake.config.servers import TargetSection
from binlake.errors import Fenced, LeaseHeld, TargetRefused, TargetUnavailable
from binlake.target import TargetSession
from binlake.target.claim import fence as fence_module
from binlake.target.claim.claim import LeaseKeeper
from binlake.target.claim.fence import Fence, LeaseHolder, describe_holder, format_lock_name, take_fence
from binlake.target.session.tables import create_tables

pytestmark = pytest.mark.mariadb

SCHEMA = "tidb_binlog"


@pytest.fixture
def sessions(target: TargetSection) -> Callable[[], TargetSession]:
    """Opens sessions on a target whose tables exist."""
    first = TargetSession(target)
    create_tables(first, SCHEMA)
    first.close()
    return lambda: TargetSession(target)


def pretend_remote_holder(server: MariaDb) -> None:
    """Make the holder look as if it were on another host, so that only its lease shows whether it lives."""
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET owner = 'elsewhere:1:1'")


def expire_lease(server: MariaDb) -> None:
    """Set the end of the lease to a second ago."""
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")


def test_epochs_rise_and_only_the_newest_is_valid(target: TargetSection, sessions: Callable[[], TargetSession]) -> None:
    #
    one, two = sessions(), sessions()
    old = take_fence(one, target, NAME)
    old.release(one)
    new = take_fence(two, target, NAME)
    assert new.epoch == old.epoch + 1
    two.begin()
    new.prove(two)
    two.commit()
    one.begin()
    with pytest.raises(Fenced, match="took over"):
        old.prove(one)
    one.rollback()
    new.release(two)


def test_remote_holder_blocks_until_its_lease_expires(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    one, two = sessions(), sessions()
    take_fence(one, target, NAME)
    pretend_remote_holder(server)
    with pytest.raises(LeaseHeld, match=r"elsewhere:1:1 applies this replication until \d{4}-"):
        take_fence(two, target, NAME)
    expire_lease(server)
    take_fence(two, target, NAME).release(two)


def test_process_does_not_take_over_its_own_claim(target: TargetSection, sessions: Callable[[], TargetSession]) -> None:
    one, two = sessions(), sessions()
    fence = take_fence(one, target, NAME)
    with pytest.raises(LeaseHeld):
        take_fence(two, target, NAME)
    # An interrupted run gives up its claim, whether or not it reaches the server.
    fence.abandon()
    take_fence(two, target, NAME).release(two)


def test_another_replication_is_not_blocked(target: TargetSection, sessions: Callable[[], TargetSession]) -> None:
    one, two = sessions(), sessions()
    first, second = take_fence(one, target, NAME), take_fence(two, target, "other")
    first.release(one)
    second.release(two)


def test_dead_local_process_is_taken_over_at_once(server: MariaDb, target: TargetSection) -> None:
    pid = apply_in_child(target, Window(0, 1).put((1, "a")), at("batch", 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    assert rows(server, f"SELECT lease_until > UTC_TIMESTAMP(6) FROM {SCHEMA}.binlake_lease") == [(1,)]
    assert apply(target, Window(0, 1).put((1, "a"))).state == "applied"


def test_live_local_process_is_not_taken_over(target: TargetSection) -> None:
    pid = apply_in_child(target, Window(0, 1).put((1, "a")), at("batch", 1, signal_me(signal.SIGSTOP)))
    wait_until(lambda: is_stopped(pid))
    with pytest.raises(LeaseHeld, match=f":{pid}:"):
        apply(target, Window(0, 1).put((1, "a")))
    os.kill(pid, signal.SIGCONT)
    assert wait_for_exit(pid) == 0


STOPS = ["opened", "batch", "before_commit", "after_commit"]


@pytest.mark.parametrize(("step", "later"), list(itertools.product(STOPS, [False, True])))
def test_stopped_process_writes_nothing_after_a_takeover(
    server: MariaDb, target: TargetSection, step: str, later: bool
) -> None:
    # stopped at any point, taken over, then continued; `later`: a newer window was applied meanwhile
    old = Window(0, 1).put((1, "w1")).log("once")
    number = 2 if step in ("before_commit", "after_commit") else 1
    pid = apply_in_child(target, old, at(step, number, signal_me(signal.SIGSTOP)))
    wait_until(lambda: is_stopped(pid))
    expire_lease(server)
    apply(target, old)
    if later:
        apply(target, Window(1, 2).put((1, "w2")))
    before = rows(server, f"SELECT * FROM {SCHEMA}.binlake_fence")
    os.kill(pid, signal.SIGCONT)
    assert wait_for_exit(pid) == (0 if step == "after_commit" else 1)
    assert rows(server, "SELECT * FROM app.t") == [(1, "w2" if later else "w1")]
    assert rows(server, "SELECT * FROM app.log") == [("once",)]
    assert rows(server, f"SELECT * FROM {SCHEMA}.binlake_fence") == before


def test_takeover_waits_for_a_transaction_that_proved_the_fence(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    # a session whose lock the takeover cannot see (behind a proxy) is still fenced by its row lock
    one, two = sessions(), sessions()
    fence = take_fence(one, target, NAME)
    one.fetch_rows("SELECT RELEASE_ALL_LOCKS()")
    one.begin()
    fence.prove(one)
    expire_lease(server)
    two.execute("SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(Exception, match="Lock wait timeout"):
        take_fence(two, target, NAME)
    one.commit()
    fence.abandon()
    two.rollback()
    take_fence(two, target, NAME).release(two)


def test_keeper_renews_the_lease_and_notices_a_takeover(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    # a long statement does not let the lease expire
    short = target.model_copy(update={"lease_s": 1})
    one = sessions()
    fence = take_fence(one, short, NAME)

    def until() -> object:
        return rows(server, f"SELECT lease_until FROM {SCHEMA}.binlake_lease")[0][0]

    with LeaseKeeper(short, fence) as keeper:
        # The transaction that proved the fence does not lock the lease's row.
        one.begin()
        fence.prove(one)
        first = until()
        wait_until(lambda: until() != first)
        one.rollback()
        execute(server, f"UPDATE {SCHEMA}.binlake_lease SET epoch = epoch + 1")
        assert keeper.lost.wait(60)
    fence.abandon()


def test_keeper_survives_a_server_outage(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    short = target.model_copy(update={"lease_s": 1})
    fence = take_fence(sessions(), short, NAME)
    with LeaseKeeper(short, fence) as keeper:
        server.kill9()
        server.restart()
        first = rows(server, f"SELECT lease_until FROM {SCHEMA}.binlake_lease")[0][0]
        wait_until(lambda: rows(server, f"SELECT lease_until FROM {SCHEMA}.binlake_lease")[0][0] != first)
        assert not keeper.lost.is_set()
    fence.abandon()


def test_unknown_epoch_is_fenced(target: TargetSection, sessions: Callable[[], TargetSession]) -> None:
    session = sessions()
    session.begin()
    with pytest.raises(Fenced):
        Fence(SCHEMA, NAME, 99, target.lease_s).prove(session)
    session.close()


def test_connection_is_opened_only_for_the_current_holder(
    target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    # checked before a further connection takes its name, outside a transaction
    one, two = sessions(), sessions()
    old = take_fence(one, target, NAME)
    old.require_current(one)
    old.release(one)
    new = take_fence(two, target, NAME)
    new.with_worker(3).require_current(two)
    with pytest.raises(Fenced, match="took over"):
        old.require_current(one)
    new.release(two)


def test_lost_session_loses_its_name_to_the_holders_next_session(
    target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    # the server may keep a lost connection; a takeover must find the session that writes now
    lost, again = sessions(), sessions()
    fence = take_fence(lost, target, NAME)
    fence.register(again)
    name = format_lock_name(target.checkpoint_schema, NAME)
    assert again.fetch_rows("SELECT IS_USED_LOCK(%s)", (name,)) == [(again.connection_id,)]
    with pytest.raises(TargetUnavailable):
        lost.fetch_rows("SELECT 1")


@pytest.mark.parametrize(
    ("text", "holder"),
    [
        ("host:7:9", LeaseHolder("host", 7, 9)),
        ("fe80::1:7:9", LeaseHolder("fe80::1", 7, 9)),
        ("host:x:9", None),
        ("host:7:x", None),
        ("host:7", None),
        ("", None),
    ],
)
def test_lease_holder_is_parsed_only_from_its_own_form(text: str, holder: LeaseHolder | None) -> None:
    assert LeaseHolder.parse(text) == holder
    assert holder is None or str(holder) == text


def lease(server: MariaDb) -> tuple[int, str, object]:
    return rows(server, f"SELECT epoch, owner, lease_until FROM {SCHEMA}.binlake_lease")[0]


def test_renewed_lease_is_visible_at_once_and_a_lost_one_is_not_renewed(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    one = sessions()
    fence = take_fence(one, target, NAME)
    expire_lease(server)
    before = lease(server)
    assert fence.renew(one) is True
    after = lease(server)
    assert after[:2] == before[:2]
    assert rows(server, f"SELECT lease_until > UTC_TIMESTAMP(6) FROM {SCHEMA}.binlake_lease") == [(1,)]
    # No lock remains, so a takeover can read the lease.
    assert rows(server, f"SELECT 1 FROM {SCHEMA}.binlake_lease FOR UPDATE NOWAIT") == [(1,)]
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET epoch = epoch + 1")
    later = lease(server)
    assert fence.renew(one) is False
    assert lease(server) == later
    fence.abandon()


def test_claim_counts_as_forgotten_only_on_an_older_copy_of_the_server(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    one = sessions()
    take_fence(one, target, NAME).release(one)
    fence = take_fence(one, target, NAME)
    assert fence.is_forgotten(one) is False
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET epoch = epoch + 1")
    assert fence.is_forgotten(one) is False
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET epoch = epoch - 2")
    assert fence.is_forgotten(one) is True
    execute(server, f"DELETE FROM {SCHEMA}.binlake_lease")
    assert fence.is_forgotten(one) is True
    fence.abandon()


def test_each_connection_of_a_holder_proves_its_own_fence_row(
    target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    one, two = sessions(), sessions()
    two.execute("SET SESSION innodb_lock_wait_timeout = 1")
    fence = take_fence(one, target, NAME)
    worker = fence.with_worker(2)
    assert worker == Fence(SCHEMA, NAME, fence.epoch, fence.lease_s, 2)
    one.begin()
    two.begin()
    # Neither blocks the other, and each counts its own transactions.
    assert (fence.prove(one), worker.prove(two)) == (1, 1)
    two.commit()
    two.begin()
    assert worker.prove(two) == 2
    two.rollback()
    one.rollback()
    fence.release(one)


def test_name_taken_again_by_another_session_is_not_retried_twice(target: TargetSection) -> None:
    class Taken:
        """A server on which another session always holds the name, but has ended when it is to be killed."""

        connection_id = 1
        asked: ClassVar[list[str]] = []

        def fetch_value(self, sql: str, _arguments: object) -> int:
            self.asked.append(sql)
            return 0

        def fetch_rows(self, *_: object) -> list[tuple[None]]:
            return [(None,)]

    with pytest.raises(LeaseHeld, match="another session took the holder's name"):
        Fence(SCHEMA, NAME, 1, target.lease_s).register(cast(TargetSession, Taken()))
    assert len(Taken.asked) == 2


def test_release_that_does_not_reach_the_server_does_not_block_this_process(
    target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    one, two = sessions(), sessions()
    fence = take_fence(one, target, NAME)
    two.kill(one.connection_id)
    with pytest.raises(TargetUnavailable):
        fence.release(one)
    # The lease still names this process, which has given it up.
    take_fence(two, target, NAME).release(two)


def test_release_gives_up_only_the_lease_and_name_of_its_epoch(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    one, two = sessions(), sessions()
    name = format_lock_name(target.checkpoint_schema, NAME)
    fence = take_fence(one, target, NAME)
    assert lease(server)[1] != ""
    fence.release(one)
    assert lease(server)[1] == ""
    assert rows(server, "SELECT IS_USED_LOCK(%s)", (name,)) == [(None,)]
    newer = take_fence(two, target, NAME)
    fence.release(one)
    assert lease(server)[1] != ""
    newer.release(two)


def test_claim_locks_the_lease_until_it_has_raised_the_epoch(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def look(*_: object) -> None:
        with pytest.raises(pymysql.err.OperationalError) as error:
            rows(server, f"SELECT 1 FROM {SCHEMA}.binlake_lease WHERE task = '{NAME}' FOR UPDATE NOWAIT")
        refused.append(error.value.args[0])

    monkeypatch.setattr("binlake.target.claim.fence._end_sessions", look)
    one = sessions()
    take_fence(one, target, NAME).release(one)
    # MySQL has a separate error number for NOWAIT.
    assert refused == [3572 if target.db_type == "mysql" else 1205]


def test_takeover_invalidates_all_connections_of_the_old_holder(
    target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    # also connections of former workers
    one, two = sessions(), sessions()
    old = take_fence(one, target, NAME)
    old.release(one)
    new = take_fence(two, target, NAME)
    for number in range(target.worker_count + 1):
        one.begin()
        with pytest.raises(Fenced):
            old.with_worker(number).prove(one)
        one.rollback()
        two.begin()
        new.with_worker(number).prove(two)
        two.commit()
    new.release(two)


def test_holder_in_an_unknown_form_counts_as_alive(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    one = sessions()
    take_fence(one, target, NAME).abandon()
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET owner = 'somebody'")
    with pytest.raises(LeaseHeld, match="somebody applies this replication until"):
        take_fence(one, target, NAME)
    assert describe_holder(target, NAME).startswith("somebody applies this replication until 2")


def test_describing_the_holder_fails_for_a_foreign_lease_table(
    server: MariaDb, target: TargetSection, sessions: Callable[[], TargetSession]
) -> None:
    assert describe_holder(target, NAME) == ""
    sessions()
    execute(server, f"ALTER TABLE {SCHEMA}.binlake_lease RENAME COLUMN owner TO other")
    with pytest.raises(TargetRefused, match="owner"):
        describe_holder(target, NAME)


def test_session_that_does_not_end_is_named_and_the_lease_is_unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        """A server on which a session rolls back for hours."""

        connection_id = 1
        done: ClassVar[list[str]] = []

        def fetch_rows(self, *_: object) -> list[tuple[int, None]]:
            return [(7, None)]

        def kill(self, number: int) -> None:
            self.done.append(f"kill {number}")

        def rollback(self) -> None:
            self.done.append("rollback")

    monkeypatch.setattr(fence_module, "_KILL_WAIT_S", -1.0)
    with pytest.raises(LeaseHeld, match=r"the sessions \[7\] of the last holder do not end"):
        fence_module._end_sessions(cast(TargetSession, Stuck()), NAME, ["a", "b"])
    assert Stuck.done == ["kill 7", "rollback"]
