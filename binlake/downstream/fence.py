"""One writer at a time: a lease says who, a fence makes sure of it whatever the lease says (hazards R-02).

The lease is a row that its holder renews. Taking over ends the old holder's session and raises the fence's epoch;
the first statement of each transaction proves the epoch and so locks the fence against a take-over until its end.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import time
from dataclasses import dataclass
from typing import Any

import psutil
from pymysql.connections import Connection

from binlake.config.model import Target
from binlake.downstream.connection import commit, execute, query, translated
from binlake.downstream.tables import own, quoted
from binlake.errors import Fenced, LeaseHeld

_claims = itertools.count(1)
_live: set[str] = set()
"""Claims of this process that are neither released nor given up."""

_KILL_WAIT_S = 30.0


@dataclass(frozen=True)
class Fence:
    """A claim: the right to write for `task` while `epoch` is the newest. `owner` is host:pid:start:claim."""

    target: Target
    task: str
    epoch: int
    owner: str

    def prove(self, connection: Connection[Any]) -> None:
        """The first statement of every transaction. Raises Fenced when another process took over."""
        sql = f"UPDATE {own(self.target, 'binlake_fence')} SET val = val + 1 WHERE task = %s AND epoch = %s"
        with translated(self.target):
            affected = execute(connection, sql, (self.task, self.epoch))
        if affected != 1:
            raise Fenced(
                "another process took over: this one writes no more",
                where={"task": self.task, "epoch": self.epoch, "owner": self.owner},
                hint="nothing is lost: the newer run continues from the checkpoint",
            )

    def renew(self, connection: Connection[Any]) -> bool:
        """Keep the lease for another `target.lease_s`, in a transaction of its own. False: another process has it."""
        sql = (
            f"UPDATE {own(self.target, 'binlake_lease')} SET lease_until = {_until(self.target)}"
            " WHERE task = %s AND epoch = %s"
        )
        with translated(self.target):
            affected = execute(connection, sql, (self.task, self.epoch))
            commit(connection, self.target)
        return affected == 1

    def release(self, connection: Connection[Any]) -> None:
        """Let the next one in at once. The fence stays at our epoch: a claim raises it."""
        self.abandon()
        sql = f"UPDATE {own(self.target, 'binlake_lease')} SET owner = '' WHERE task = %s AND epoch = %s"
        with translated(self.target):
            execute(connection, sql, (self.task, self.epoch))
            execute(connection, "DO RELEASE_LOCK(%s)", (_lock_name(self.target, self.task),))
            commit(connection, self.target)

    def abandon(self) -> None:
        """Give the claim up without the server: this process may claim again at once."""
        _live.discard(self.owner)

    def hold_session(self, connection: Connection[Any]) -> None:
        """Mark `connection` as the holder's, so that a take-over can end it."""
        with translated(self.target):
            query(connection, "SELECT GET_LOCK(%s, 0)", (_lock_name(self.target, self.task),))


def claim(connection: Connection[Any], target: Target, task: str) -> Fence:
    """Take the lease and the next epoch; commits. Waits until a transaction of the old holder has ended.

    Raises LeaseHeld while its holder lives: the holder is this host's running process, or a lease elsewhere that has
    not run out by the server's clock.
    """
    owner = own_name()
    with translated(target):
        _ensure_rows(connection, target, task)
        _judge(connection, target, task, owner)
        _end_old_session(connection, target, task)
        execute(connection, f"UPDATE {own(target, 'binlake_fence')} SET epoch = epoch + 1 WHERE task = %s", (task,))
        fenced = query(connection, f"SELECT epoch FROM {own(target, 'binlake_fence')} WHERE task = %s FOR UPDATE", (task,))
        epoch = int(fenced[0][0])
        execute(
            connection,
            f"UPDATE {own(target, 'binlake_lease')} SET epoch = %s, owner = %s, lease_until = {_until(target)}"
            " WHERE task = %s",
            (epoch, owner, task),
        )
        commit(connection, target)
    fence = Fence(target, task, epoch, owner)
    _live.add(owner)
    fence.hold_session(connection)
    return fence


def own_name() -> str:
    """host:pid:start of this process and the number of the claim in it."""
    start = int(psutil.Process().create_time() * 1000)
    return f"{socket.gethostname()}:{os.getpid()}:{start}:{next(_claims)}"


def _ensure_rows(connection: Connection[Any], target: Target, task: str) -> None:
    execute(connection, f"INSERT IGNORE INTO {own(target, 'binlake_fence')} (task, epoch, val) VALUES (%s, 0, 0)", (task,))
    execute(
        connection,
        f"INSERT IGNORE INTO {own(target, 'binlake_lease')} (task, epoch, owner, lease_until)"
        " VALUES (%s, 0, '', UTC_TIMESTAMP(6))",
        (task,),
    )
    commit(connection, target)


def _judge(connection: Connection[Any], target: Target, task: str, owner: str) -> None:
    rows = query(
        connection,
        f"SELECT owner, lease_until, lease_until > UTC_TIMESTAMP(6) FROM {own(target, 'binlake_lease')}"
        " WHERE task = %s FOR UPDATE",
        (task,),
    )
    holder, until, running = rows[0]
    if holder and running and _may_live(holder, owner):
        connection.rollback()
        raise LeaseHeld(
            f"{holder} applies this replication until {until} UTC",
            where={"task": task},
            hint="it renews while it lives; wait, or stop it",
        )


def _may_live(holder: str, owner: str) -> bool:
    host, _, _, _ = owner.rsplit(":", 3)
    parts = holder.rsplit(":", 3)
    if len(parts) != 4 or parts[0] != host:
        return True
    pid, start = int(parts[1]), int(parts[2])
    if pid == os.getpid() and holder.rsplit(":", 1)[0] == owner.rsplit(":", 1)[0]:
        return holder in _live
    try:
        return int(psutil.Process(pid).create_time() * 1000) == start
    except psutil.NoSuchProcess:
        return False


def _end_old_session(connection: Connection[Any], target: Target, task: str) -> None:
    """Kill the session that the old holder may have left in a transaction or in a DDL, and wait until it is gone."""
    name = _lock_name(target, task)
    until = time.monotonic() + _KILL_WAIT_S
    killed: set[int] = set()
    while (holder := _session_of(connection, name)) is not None:
        if holder not in killed:
            killed.add(holder)
            _kill(connection, holder)
        if time.monotonic() > until:
            connection.rollback()
            raise LeaseHeld(
                f"the session {holder} of the last holder does not end",
                where={"task": task},
                hint="look at it in SHOW PROCESSLIST: a DDL may be rolling back",
            )
        time.sleep(0.05)


def _session_of(connection: Connection[Any], name: str) -> int | None:
    rows = query(connection, "SELECT IS_USED_LOCK(%s), CONNECTION_ID()", (name,))
    holder, mine = rows[0]
    return None if holder is None or holder == mine else int(holder)


def _kill(connection: Connection[Any], session: int) -> None:
    try:
        execute(connection, f"KILL {session}")
    except Exception as error:
        # It may have ended by itself in between.
        if not error.args or error.args[0] != 1094:
            raise


def _lock_name(target: Target, task: str) -> str:
    # Names of user locks hold 64 characters at most.
    digest = hashlib.sha256(f"{quoted(target.checkpoint_schema)}.{task}".encode()).hexdigest()
    return f"binlake:{digest[:48]}"


def _until(target: Target) -> str:
    return f"UTC_TIMESTAMP(6) + INTERVAL {int(target.lease_s)} SECOND"
