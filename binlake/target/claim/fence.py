"""The rows that ensure a single writer per target: a lease names the writer, a fence enforces it (hazards R-02).

The lease is a row that its holder renews. A take-over ends the old holder's sessions and raises the fence's epoch. The
first statement of each transaction proves the epoch, which locks the fence against a take-over until the transaction
ends. The lease only says which process may try; the fence decides. Use both through `TargetClaim` (`claim`).
"""

from __future__ import annotations

import hashlib
import os
import socket
import time
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import structlog

from binlake.common.process import start_of
from binlake.config.servers import TargetSection
from binlake.errors import Fenced, LeaseHeld, TargetRefused
from binlake.statements.literal import quote_qualified_name
from binlake.target.session.failures import MISSING, get_error_code
from binlake.target.session.session import TargetSession

log = structlog.get_logger()

_KILL_WAIT_S = 30.0
_claimed_here: set[str] = set()
"""Lock names claimed by this process. A lease that names this process but is not in this set is stale."""


@dataclass(frozen=True)
class LeaseHolder:
    """The process named in a lease: host name, pid, and its start time by `start_of`, since pids are reused.

    With it another process on the same machine can tell whether the holder is alive.
    """

    host: str
    pid: int
    started: int

    @classmethod
    def from_this_process(cls) -> LeaseHolder:
        """The holder that this process writes into a lease."""
        return cls(socket.gethostname(), os.getpid(), start_of(os.getpid()) or 0)

    @classmethod
    def parse(cls, text: str) -> LeaseHolder | None:
        """Parse what `str(holder)` gives; None for any other text."""
        parts = text.rsplit(":", 2)
        if len(parts) != 3 or not all(part.isdigit() for part in parts[1:]):
            return None
        return cls(parts[0], int(parts[1]), int(parts[2]))

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}:{self.started}"

    def is_dead(self) -> bool:
        """True when the process ran on this host and has ended; False when it is alive or its state is unknown."""
        return self.host == socket.gethostname() and start_of(self.pid) != self.started


class _Lease(NamedTuple):
    """A lease's row. `holder` is empty once released; `running`: not yet expired by the server's clock."""

    holder: str
    until: datetime
    running: int


_LEASE_COLUMNS = "owner, lease_until, lease_until > UTC_TIMESTAMP(6)"


@dataclass(frozen=True)
class Fence:
    """The right to write for `replication` while `epoch` is the newest. `schema`: where the tables are.

    `lease_s`: the lease time in seconds. `worker`: the number of the holder's connection, 0 for the one that moves the
    checkpoint.
    """

    schema: str
    replication: str
    epoch: int
    lease_s: int
    worker: int = 0

    def with_worker(self, worker: int) -> Fence:
        """The same right for another connection. Each connection locks its own row; a take-over waits for all rows."""
        return replace(self, worker=worker)

    def prove(self, session: TargetSession) -> int:
        """Run the first statement of a transaction; return the connection's number of transactions including this one.

        Call it only after `register`: a take-over waits for the lock and must be able to find its holder. Raises Fenced
        when another process took over.
        """
        table = quote_qualified_name(self.schema, "binlake_fence")
        sql = f"UPDATE {table} SET val = LAST_INSERT_ID(val + 1) WHERE task = %s AND worker = %s AND epoch = %s"
        if session.write(sql, (self.replication, self.worker, self.epoch)) != 1:
            raise self._fenced()
        return session.get_last_insert_id()

    def require_current(self, session: TargetSession) -> None:
        """Wait for a take-over in progress. Runs outside a transaction, so it leaves no lock. Raises Fenced."""
        table = quote_qualified_name(self.schema, "binlake_fence")
        sql = f"SELECT epoch FROM {table} WHERE task = %s AND worker = %s FOR UPDATE"
        if session.fetch_value(sql, (self.replication, self.worker)) != self.epoch:
            raise self._fenced()

    def _fenced(self) -> Fenced:
        return Fenced(
            "another process took over: this process has stopped writing",
            where={"task": self.replication, "epoch": self.epoch},
            hint="nothing is lost: the newer run continues from the checkpoint",
        )

    def register(self, session: TargetSession) -> None:
        """Lock the connection's name for `session`, so that a take-over can find and end it.

        An older session with this name is ended first; raises LeaseHeld if it does not end. Only the holder may call
        this: after `prove` or `require_current`, or in `take_fence`.
        """
        name = format_lock_name(self.schema, self.replication, self.worker)
        if session.fetch_value("SELECT GET_LOCK(%s, 0)", (name,)) != 1:
            _end_sessions(session, self.replication, [name])
            if session.fetch_value("SELECT GET_LOCK(%s, %s)", (name, _KILL_WAIT_S)) != 1:
                raise LeaseHeld("another session took the holder's name", where={"task": self.replication})

    def renew(self, session: TargetSession) -> bool:
        """Extend the lease by `lease_s` in a separate transaction. False: another process has it."""
        table = quote_qualified_name(self.schema, "binlake_lease")
        until = f"UTC_TIMESTAMP(6) + INTERVAL {self.lease_s} SECOND"
        session.begin()
        renewed = session.write(
            f"UPDATE {table} SET lease_until = {until} WHERE task = %s AND epoch = %s", (self.replication, self.epoch)
        )
        session.commit_repeatable()
        return renewed == 1

    def is_forgotten(self, session: TargetSession) -> bool:
        """True when the server does not know this claim, because it is an older copy of the server that granted it."""
        table = quote_qualified_name(self.schema, "binlake_lease")
        epoch = session.fetch_value(f"SELECT epoch FROM {table} WHERE task = %s", (self.replication,))
        return epoch is None or int(epoch) < self.epoch

    def release(self, session: TargetSession) -> None:
        """Release the lease so that another process can claim at once. The epoch stays; the next claim raises it."""
        self.abandon()
        table = quote_qualified_name(self.schema, "binlake_lease")
        session.begin()
        session.write(f"UPDATE {table} SET owner = '' WHERE task = %s AND epoch = %s", (self.replication, self.epoch))
        session.commit_repeatable()
        session.fetch_rows("SELECT RELEASE_LOCK(%s)", (format_lock_name(self.schema, self.replication),))

    def abandon(self) -> None:
        """Give up the claim locally, without the server: this process may claim again at once."""
        _claimed_here.discard(format_lock_name(self.schema, self.replication))


def take_fence(session: TargetSession, target: TargetSection, replication: str) -> Fence:
    """Take the lease and the next epoch, and commit. Waits until the old holder's transactions have ended.

    Raises LeaseHeld while the holder is alive: a running process on this host, or a process elsewhere whose lease has
    not expired by the server's clock.
    """
    schema = target.checkpoint_schema
    lease = quote_qualified_name(schema, "binlake_lease")
    session.begin()
    session.write(f"INSERT IGNORE INTO {lease} VALUES (%s, 0, '', UTC_TIMESTAMP(6))", (replication,))
    _require_free(session, schema, replication)
    _end_sessions(session, replication, _list_lock_names(session, schema, replication))
    # Done last, because a holder inside a transaction has locked its row.
    epoch = _raise_epoch(session, schema, replication, target.worker_count)
    until = f"UTC_TIMESTAMP(6) + INTERVAL {target.lease_s} SECOND"
    session.write(
        f"UPDATE {lease} SET epoch = %s, owner = %s, lease_until = {until} WHERE task = %s",
        (epoch, str(LeaseHolder.from_this_process()), replication),
    )
    session.commit_repeatable()
    _claimed_here.add(format_lock_name(schema, replication))
    fence = Fence(schema, replication, epoch, target.lease_s)
    fence.register(session)
    return fence


def describe_holder(target: TargetSection, replication: str) -> str:
    """The live holder of the lease of `replication` and the lease's end; empty if there is none.

    Raises TargetUnavailable, TargetRefused.

    Read without a lock: suitable for waiting, never for deciding. A holder that ran on this host and has ended does not
    count, because a claim would take over from it.
    """
    table = quote_qualified_name(target.checkpoint_schema, "binlake_lease")
    sql = f"SELECT {_LEASE_COLUMNS} FROM {table} WHERE task = %s AND lease_until > UTC_TIMESTAMP(6)"
    with closing(TargetSession(target)) as session:
        try:
            leases = session.fetch_records(_Lease, sql, (replication,))
        except TargetRefused as error:
            if get_error_code(error) in MISSING:
                return ""
            raise
    for lease in leases:
        holder = LeaseHolder.parse(lease.holder)
        if lease.holder and not (holder is not None and holder.is_dead()):
            return f"{lease.holder} applies this replication until {lease.until} UTC"
    return ""


def _require_free(session: TargetSession, schema: str, replication: str) -> None:
    """Lock the lease. Rolls back and raises LeaseHeld while its holder is alive."""
    sql = f"SELECT {_LEASE_COLUMNS} FROM {quote_qualified_name(schema, 'binlake_lease')} WHERE task = %s FOR UPDATE"
    (lease,) = session.fetch_records(_Lease, sql, (replication,))
    if lease.holder and lease.running and not _has_holder_ended(lease.holder, format_lock_name(schema, replication)):
        session.rollback()
        raise LeaseHeld(
            f"{lease.holder} applies this replication until {lease.until} UTC",
            where={"task": replication},
            hint="it renews the lease while it runs; wait for it, or stop it",
        )


def _has_holder_ended(holder: str, name: str) -> bool:
    process = LeaseHolder.parse(holder)
    if process is None:
        return False
    return name not in _claimed_here if process == LeaseHolder.from_this_process() else process.is_dead()


def _raise_epoch(session: TargetSession, schema: str, replication: str, workers: int) -> int:
    """Write the next epoch to the rows of all old connections of `replication` and of `workers` new ones."""
    fence = quote_qualified_name(schema, "binlake_fence")
    session.write(f"INSERT INTO {fence} VALUES (%s, 0, 1, 0) ON DUPLICATE KEY UPDATE epoch = epoch + 1", (replication,))
    epoch = int(session.fetch_value(f"SELECT epoch FROM {fence} WHERE task = %s AND worker = 0", (replication,)))
    session.write(f"UPDATE {fence} SET epoch = %s WHERE task = %s AND worker > 0", (epoch, replication))
    rows = ", ".join(["(%s, %s, %s, 0)"] * workers)
    values = [value for worker in range(1, workers + 1) for value in (replication, worker, epoch)]
    session.write(f"INSERT IGNORE INTO {fence} VALUES {rows}", values)
    return epoch


def _end_sessions(session: TargetSession, replication: str, names: list[str]) -> None:
    """Kill the sessions that lock `names`, even inside a transaction or DDL, and wait until they have ended."""
    until = time.monotonic() + _KILL_WAIT_S
    killed: set[int] = set()
    while holders := _find_locking_sessions(session, names):
        for holder in holders - killed:
            log.warning("old_session_killed", task=replication, session=holder)
            session.kill(holder)
        killed |= holders
        if time.monotonic() > until:
            session.rollback()
            raise LeaseHeld(
                f"the sessions {sorted(holders)} of the last holder do not end",
                where={"task": replication},
                hint="look at them in SHOW PROCESSLIST: a DDL may be rolling back",
            )
        time.sleep(0.05)


def _list_lock_names(session: TargetSession, schema: str, replication: str) -> list[str]:
    """The user locks that connections of `replication` may hold, from the fence's rows (read without waiting)."""
    workers = session.fetch_column(
        f"SELECT worker FROM {quote_qualified_name(schema, 'binlake_fence')} WHERE task = %s", (replication,)
    )
    return [format_lock_name(schema, replication, int(worker)) for worker in workers]


def _find_locking_sessions(session: TargetSession, names: list[str]) -> set[int]:
    if not names:
        return set()
    (holders,) = session.fetch_rows(f"SELECT {', '.join(['IS_USED_LOCK(%s)'] * len(names))}", names)
    return {int(holder) for holder in holders if holder is not None} - {session.connection_id}


def format_lock_name(schema: str, replication: str, worker: int = 0) -> str:
    """The user lock by which a take-over finds this connection of `replication`; at most 64 characters."""
    return f"binlake:{hashlib.sha256(quote_qualified_name(schema, replication).encode()).hexdigest()[:48]}:{worker}"
