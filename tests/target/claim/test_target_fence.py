"""One writer: who was taken over writes nothing more, whatever it was doing, and who lives is not taken over."""

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

from binlake.config.model import Target
from binlake.errors import Fenced, LeaseHeld, TargetRefused, TargetUnavailable
from binlake.target import Session
from binlake.target.claim import fence as fence_module
from binlake.target.claim.claim import LeaseKeeper
from binlake.target.claim.fence import Fence, LeaseHolder, describe_holder, lock_name, take_fence
from binlake.target.session.tables import create_tables

pytestmark = pytest.mark.mariadb

SCHEMA = "tidb_binlog"


@pytest.fixture
def sessions(target: Target) -> Callable[[], Session]:
    """Opens sessions on a target whose tables exist."""
    first = Session(target)
    create_tables(first, SCHEMA)
    first.close()
    return lambda: Session(target)


def pretend_elsewhere(server: MariaDb) -> None:
    """The holder is on another host, so only its lease tells whether it lives."""
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET owner = 'elsewhere:1:1'")


def run_out(server: MariaDb) -> None:
    """The lease ended a second ago."""
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET lease_until = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")


def test_epochs_rise_and_the_newest_proves(target: Target, sessions: Callable[[], Session]) -> None:
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


def test_a_holder_elsewhere_is_waited_for_by_its_lease(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
) -> None:
    one, two = sessions(), sessions()
    take_fence(one, target, NAME)
    pretend_elsewhere(server)
    with pytest.raises(LeaseHeld, match=r"elsewhere:1:1 applies this replication until \d{4}-"):
        take_fence(two, target, NAME)
    run_out(server)
    take_fence(two, target, NAME).release(two)


def test_this_process_does_not_take_over_itself(target: Target, sessions: Callable[[], Session]) -> None:
    one, two = sessions(), sessions()
    fence = take_fence(one, target, NAME)
    with pytest.raises(LeaseHeld):
        take_fence(two, target, NAME)
    # A run that broke off gives its claim up, reachable server or not.
    fence.abandon()
    take_fence(two, target, NAME).release(two)


def test_another_replication_does_not_wait(target: Target, sessions: Callable[[], Session]) -> None:
    one, two = sessions(), sessions()
    first, second = take_fence(one, target, NAME), take_fence(two, target, "other")
    first.release(one)
    second.release(two)


def test_a_dead_process_of_this_host_is_taken_over_at_once(server: MariaDb, target: Target) -> None:
    pid = apply_in_child(target, Window(0, 1).put((1, "a")), at("batch", 1, signal_me(signal.SIGKILL)))
    assert wait_for_exit(pid) == -signal.SIGKILL
    assert rows(server, f"SELECT lease_until > UTC_TIMESTAMP(6) FROM {SCHEMA}.binlake_lease") == [(1,)]
    assert apply(target, Window(0, 1).put((1, "a"))).state == "applied"


def test_a_live_process_of_this_host_is_not_taken_over_even_if_its_lease_stands(target: Target) -> None:
    pid = apply_in_child(target, Window(0, 1).put((1, "a")), at("batch", 1, signal_me(signal.SIGSTOP)))
    wait_until(lambda: is_stopped(pid))
    with pytest.raises(LeaseHeld, match=f":{pid}:"):
        apply(target, Window(0, 1).put((1, "a")))
    os.kill(pid, signal.SIGCONT)
    assert wait_for_exit(pid) == 0


STOPS = ["opened", "batch", "before_commit", "after_commit"]


@pytest.mark.parametrize(("step", "later"), list(itertools.product(STOPS, [False, True])))
def test_a_stopped_process_that_wakes_up_writes_nothing(
    server: MariaDb, target: Target, step: str, later: bool
) -> None:
    # stopped at any point, taken over, continued; `later`: when a newer window is down as well
    old = Window(0, 1).put((1, "w1")).log("once")
    number = 2 if step in ("before_commit", "after_commit") else 1
    pid = apply_in_child(target, old, at(step, number, signal_me(signal.SIGSTOP)))
    wait_until(lambda: is_stopped(pid))
    run_out(server)
    apply(target, old)
    if later:
        apply(target, Window(1, 2).put((1, "w2")))
    before = rows(server, f"SELECT * FROM {SCHEMA}.binlake_fence")
    os.kill(pid, signal.SIGCONT)
    assert wait_for_exit(pid) == (0 if step == "after_commit" else 1)
    assert rows(server, "SELECT * FROM app.t") == [(1, "w2" if later else "w1")]
    assert rows(server, "SELECT * FROM app.log") == [("once",)]
    assert rows(server, f"SELECT * FROM {SCHEMA}.binlake_fence") == before


def test_a_take_over_waits_for_the_transaction_that_proved(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
) -> None:
    # a session that does not hold the lock (a proxy hides it) still fences by its row lock
    one, two = sessions(), sessions()
    fence = take_fence(one, target, NAME)
    one.rows("SELECT RELEASE_ALL_LOCKS()")
    one.begin()
    fence.prove(one)
    run_out(server)
    two.execute("SET SESSION innodb_lock_wait_timeout = 1")
    with pytest.raises(Exception, match="Lock wait timeout"):
        take_fence(two, target, NAME)
    one.commit()
    fence.abandon()
    two.rollback()
    take_fence(two, target, NAME).release(two)


def test_the_keeper_renews_and_learns_of_a_take_over(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
) -> None:
    # a long statement does not let the lease run out
    short = target.model_copy(update={"lease_s": 1})
    one = sessions()
    fence = take_fence(one, short, NAME)

    def until() -> object:
        return rows(server, f"SELECT lease_until FROM {SCHEMA}.binlake_lease")[0][0]

    with LeaseKeeper(short, fence) as keeper:
        # The transaction that proved the fence does not hold the lease's row.
        one.begin()
        fence.prove(one)
        first = until()
        wait_until(lambda: until() != first)
        one.rollback()
        execute(server, f"UPDATE {SCHEMA}.binlake_lease SET epoch = epoch + 1")
        assert keeper.lost.wait(60)
    fence.abandon()


def test_the_keeper_survives_a_server_that_is_gone_for_a_while(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
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


def test_an_epoch_that_never_was_proves_nothing(target: Target, sessions: Callable[[], Session]) -> None:
    session = sessions()
    session.begin()
    with pytest.raises(Fenced):
        Fence(SCHEMA, NAME, 99, target.lease_s).prove(session)
    session.close()


def test_a_connection_is_opened_for_the_present_holder_only(target: Target, sessions: Callable[[], Session]) -> None:
    # before a further connection takes its name, outside of a transaction
    one, two = sessions(), sessions()
    old = take_fence(one, target, NAME)
    old.require_current(one)
    old.release(one)
    new = take_fence(two, target, NAME)
    new.of_worker(3).require_current(two)
    with pytest.raises(Fenced, match="took over"):
        old.require_current(one)
    new.release(two)


def test_a_session_that_was_lost_gives_its_name_to_the_next_one_of_the_holder(
    target: Target, sessions: Callable[[], Session]
) -> None:
    # the server may keep a lost connection; a take-over must find the session that writes now
    lost, again = sessions(), sessions()
    fence = take_fence(lost, target, NAME)
    fence.register(again)
    name = lock_name(target.checkpoint_schema, NAME)
    assert again.rows("SELECT IS_USED_LOCK(%s)", (name,)) == [(again.connection_id,)]
    with pytest.raises(TargetUnavailable):
        lost.rows("SELECT 1")


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
def test_a_holder_is_read_from_what_it_wrote_and_from_nothing_else(text: str, holder: LeaseHolder | None) -> None:
    assert LeaseHolder.parse(text) == holder
    assert holder is None or str(holder) == text


def lease(server: MariaDb) -> tuple[int, str, object]:
    return rows(server, f"SELECT epoch, owner, lease_until FROM {SCHEMA}.binlake_lease")[0]


def test_a_renewed_lease_is_seen_by_others_at_once_and_a_lost_one_is_not_renewed(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
) -> None:
    one = sessions()
    fence = take_fence(one, target, NAME)
    run_out(server)
    before = lease(server)
    assert fence.renew(one) is True
    after = lease(server)
    assert after[:2] == before[:2]
    assert rows(server, f"SELECT lease_until > UTC_TIMESTAMP(6) FROM {SCHEMA}.binlake_lease") == [(1,)]
    # Nothing of it stays locked: a take-over may look.
    assert rows(server, f"SELECT 1 FROM {SCHEMA}.binlake_lease FOR UPDATE NOWAIT") == [(1,)]
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET epoch = epoch + 1")
    later = lease(server)
    assert fence.renew(one) is False
    assert lease(server) == later
    fence.abandon()


def test_a_claim_is_forgotten_by_an_older_copy_of_the_server_only(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
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


def test_each_connection_of_a_holder_proves_by_a_row_of_its_own(
    target: Target, sessions: Callable[[], Session]
) -> None:
    one, two = sessions(), sessions()
    two.execute("SET SESSION innodb_lock_wait_timeout = 1")
    fence = take_fence(one, target, NAME)
    worker = fence.of_worker(2)
    assert worker == Fence(SCHEMA, NAME, fence.epoch, fence.lease_s, 2)
    one.begin()
    two.begin()
    # Neither waits for the other, and each counts its own transactions.
    assert (fence.prove(one), worker.prove(two)) == (1, 1)
    two.commit()
    two.begin()
    assert worker.prove(two) == 2
    two.rollback()
    one.rollback()
    fence.release(one)


def test_a_name_that_somebody_else_takes_again_is_not_waited_for_twice(target: Target) -> None:
    class Taken:
        """A server on which another session always holds the name, and is gone when it is to be ended."""

        connection_id = 1
        asked: ClassVar[list[str]] = []

        def value(self, sql: str, _arguments: object) -> int:
            self.asked.append(sql)
            return 0

        def rows(self, *_: object) -> list[tuple[None]]:
            return [(None,)]

    with pytest.raises(LeaseHeld, match="another session took the holder's name"):
        Fence(SCHEMA, NAME, 1, target.lease_s).register(cast(Session, Taken()))
    assert len(Taken.asked) == 2


def test_a_release_that_does_not_reach_the_server_holds_nobody_back_here(
    target: Target, sessions: Callable[[], Session]
) -> None:
    one, two = sessions(), sessions()
    fence = take_fence(one, target, NAME)
    two.kill(one.connection_id)
    with pytest.raises(TargetUnavailable):
        fence.release(one)
    # The lease stands, and names this process, which has given it up.
    take_fence(two, target, NAME).release(two)


def test_a_release_gives_up_lease_and_name_of_its_own_epoch_only(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
) -> None:
    one, two = sessions(), sessions()
    name = lock_name(target.checkpoint_schema, NAME)
    fence = take_fence(one, target, NAME)
    assert lease(server)[1] != ""
    fence.release(one)
    assert lease(server)[1] == ""
    assert rows(server, "SELECT IS_USED_LOCK(%s)", (name,)) == [(None,)]
    newer = take_fence(two, target, NAME)
    fence.release(one)
    assert lease(server)[1] != ""
    newer.release(two)


def test_from_its_look_at_the_lease_to_the_new_epoch_no_other_claim_may_look(
    server: MariaDb, target: Target, sessions: Callable[[], Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []

    def look(*_: object) -> None:
        with pytest.raises(pymysql.err.OperationalError) as error:
            rows(server, f"SELECT 1 FROM {SCHEMA}.binlake_lease WHERE task = '{NAME}' FOR UPDATE NOWAIT")
        refused.append(error.value.args[0])

    monkeypatch.setattr("binlake.target.claim.fence._end_sessions", look)
    one = sessions()
    take_fence(one, target, NAME).release(one)
    # MySQL has a number of its own for NOWAIT.
    assert refused == [3572 if target.db_type == "mysql" else 1205]


def test_a_take_over_ends_the_right_of_every_connection(target: Target, sessions: Callable[[], Session]) -> None:
    # also of workers that there were before
    one, two = sessions(), sessions()
    old = take_fence(one, target, NAME)
    old.release(one)
    new = take_fence(two, target, NAME)
    for number in range(target.worker_count + 1):
        one.begin()
        with pytest.raises(Fenced):
            old.of_worker(number).prove(one)
        one.rollback()
        two.begin()
        new.of_worker(number).prove(two)
        two.commit()
    new.release(two)


def test_a_holder_in_another_form_is_taken_for_alive(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
) -> None:
    one = sessions()
    take_fence(one, target, NAME).abandon()
    execute(server, f"UPDATE {SCHEMA}.binlake_lease SET owner = 'somebody'")
    with pytest.raises(LeaseHeld, match="somebody applies this replication until"):
        take_fence(one, target, NAME)
    assert describe_holder(target, NAME).startswith("somebody applies this replication until 2")


def test_who_holds_the_lease_is_an_error_where_the_table_is_not_ours(
    server: MariaDb, target: Target, sessions: Callable[[], Session]
) -> None:
    assert describe_holder(target, NAME) == ""
    sessions()
    execute(server, f"ALTER TABLE {SCHEMA}.binlake_lease RENAME COLUMN owner TO other")
    with pytest.raises(TargetRefused, match="owner"):
        describe_holder(target, NAME)


def test_a_session_that_does_not_end_is_named_and_the_lease_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck:
        """A server on which a session rolls back for hours."""

        connection_id = 1
        done: ClassVar[list[str]] = []

        def rows(self, *_: object) -> list[tuple[int, None]]:
            return [(7, None)]

        def kill(self, number: int) -> None:
            self.done.append(f"kill {number}")

        def rollback(self) -> None:
            self.done.append("rollback")

    monkeypatch.setattr(fence_module, "_KILL_WAIT_S", -1.0)
    with pytest.raises(LeaseHeld, match=r"the sessions \[7\] of the last holder do not end"):
        fence_module._end_sessions(cast(Session, Stuck()), NAME, ["a", "b"])
    assert Stuck.done == ["kill 7", "rollback"]
