"""One writer at a time: a lease names the writer, a fence enforces it whatever the lease says (hazards R-02).

The lease is a row that its holder renews. Taking over ends the old holder's session and raises the fence's epoch;
the first statement of each transaction proves the epoch and so locks the fence against a take-over until its end.
"""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, replace

import structlog

from binlake.config.model import Target
from binlake.errors import BinlakeError, Fenced, LeaseHeld, TargetRefused, TargetUnavailable
from binlake.statements.literal import qualified
from binlake.target.claim.owner import Owner
from binlake.target.session.failures import code_of
from binlake.target.session.session import Session

log = structlog.get_logger()

_KILL_WAIT_S = 30.0
_NO_SUCH_SESSION = 1094
_held: set[str] = set()
"""Tasks that this process applies now: what names us as holder without being here is a leftover of ours."""


@dataclass(frozen=True)
class Fence:
    """The right to write for `task` while `epoch` is the newest. `schema` holds the tables; `lease_s` in seconds.

    `worker`: which of the holder's connections this is for, 0 for the one that moves the checkpoint.
    """

    schema: str
    task: str
    epoch: int
    lease_s: int
    worker: int = 0

    def of_worker(self, worker: int) -> Fence:
        """The same right for another connection: each locks a row of its own, and a take-over waits for all."""
        return replace(self, worker=worker)

    def prove(self, session: Session) -> int:
        """The first statement of every transaction; the connection's count of transactions with this one.

        Raises Fenced when another process took over.
        """
        table = qualified(self.schema, "binlake_fence")
        sql = f"UPDATE {table} SET val = LAST_INSERT_ID(val + 1) WHERE task = %s AND worker = %s AND epoch = %s"
        if session.write(sql, (self.task, self.worker, self.epoch)) != 1:
            raise Fenced(
                "another process took over: this process has stopped writing",
                where={"task": self.task, "epoch": self.epoch},
                hint="nothing is lost: the newer run continues from the checkpoint",
            )
        return session.last_insert_id()

    def hold(self, session: Session) -> None:
        """Mark `session` as the holder's, so that a take-over can end it; one of this process is ended first.

        Raises LeaseHeld when that one does not end. Call it as the holder only: behind `prove`, or in a claim.
        """
        name = _lock_name(self.schema, self.task, self.worker)
        if session.rows("SELECT GET_LOCK(%s, 0)", (name,))[0][0] != 1:
            _end_sessions(session, self.task, [name])
            if session.rows("SELECT GET_LOCK(%s, %s)", (name, _KILL_WAIT_S))[0][0] != 1:
                raise LeaseHeld("another session took the holder's name", where={"task": self.task})

    def renew(self, session: Session) -> bool:
        """Keep the lease for another `lease_s`, in a transaction of its own. False: another process has it."""
        table = qualified(self.schema, "binlake_lease")
        until = f"UTC_TIMESTAMP(6) + INTERVAL {self.lease_s} SECOND"
        session.begin()
        kept = session.write(
            f"UPDATE {table} SET lease_until = {until} WHERE task = %s AND epoch = %s", (self.task, self.epoch)
        )
        session.commit_repeatable()
        return kept == 1

    def is_forgotten(self, session: Session) -> bool:
        """True where the server does not know this claim: it is an older copy of the one that gave it."""
        table = qualified(self.schema, "binlake_lease")
        rows = session.rows(f"SELECT epoch FROM {table} WHERE task = %s", (self.task,))
        return not rows or int(rows[0][0]) < self.epoch

    def release(self, session: Session) -> None:
        """Let the next one in at once. The epoch stays: the next claim raises it."""
        self.abandon()
        table = qualified(self.schema, "binlake_lease")
        session.begin()
        session.write(f"UPDATE {table} SET owner = '' WHERE task = %s AND epoch = %s", (self.task, self.epoch))
        session.commit_repeatable()
        session.rows("SELECT RELEASE_LOCK(%s)", (_lock_name(self.schema, self.task),))

    def abandon(self) -> None:
        """Give up without the server: this process may claim again at once."""
        _held.discard(_lock_name(self.schema, self.task))


def claim(session: Session, target: Target, task: str) -> Fence:
    """Take the lease and the next epoch; commits. Waits until the old holder's transactions have ended.

    Raises LeaseHeld while the holder lives: a running process of this host, or one elsewhere whose lease has not run
    out by the server's clock.
    """
    schema = target.checkpoint_schema
    lease = qualified(schema, "binlake_lease")
    session.begin()
    session.write(f"INSERT IGNORE INTO {lease} VALUES (%s, 0, '', UTC_TIMESTAMP(6))", (task,))
    _judge(session, schema, task)
    _end_old_sessions(session, schema, task)
    # Only here, behind the verdict: a holder in a transaction has locked its row.
    epoch = _raise_epoch(session, schema, task, target.worker_count)
    until = f"UTC_TIMESTAMP(6) + INTERVAL {target.lease_s} SECOND"
    session.write(
        f"UPDATE {lease} SET epoch = %s, owner = %s, lease_until = {until} WHERE task = %s",
        (epoch, str(Owner.me()), task),
    )
    session.commit_repeatable()
    _held.add(_lock_name(schema, task))
    claimed = Fence(schema, task, epoch, target.lease_s)
    claimed.hold(session)
    return claimed


def _raise_epoch(session: Session, schema: str, task: str, workers: int) -> int:
    """The next epoch, in the rows of all connections of `task`: those there ever were, and `workers` now."""
    fence = qualified(schema, "binlake_fence")
    session.write(f"INSERT INTO {fence} VALUES (%s, 0, 1, 0) ON DUPLICATE KEY UPDATE epoch = epoch + 1", (task,))
    epoch = int(session.rows(f"SELECT epoch FROM {fence} WHERE task = %s AND worker = 0", (task,))[0][0])
    session.write(f"UPDATE {fence} SET epoch = %s WHERE task = %s AND worker > 0", (epoch, task))
    rows = ", ".join(["(%s, %s, %s, 0)"] * workers)
    values = [value for worker in range(1, workers + 1) for value in (task, worker, epoch)]
    session.write(f"INSERT IGNORE INTO {fence} VALUES {rows}", values)
    return epoch


def _judge(session: Session, schema: str, task: str) -> None:
    lease = qualified(schema, "binlake_lease")
    sql = f"SELECT owner, lease_until, lease_until > UTC_TIMESTAMP(6) FROM {lease} WHERE task = %s FOR UPDATE"
    holder, until, running = session.rows(sql, (task,))[0]
    if holder and running and not _is_gone(holder, _lock_name(schema, task)):
        session.rollback()
        raise LeaseHeld(
            f"{holder} applies this replication until {until} UTC",
            where={"task": task},
            hint="it renews while it lives; wait for it, or stop it",
        )


def _is_gone(holder: str, name: str) -> bool:
    owner = Owner.parse(holder)
    if owner is None:
        return False
    return name not in _held if owner == Owner.me() else owner.is_dead()


def _end_old_sessions(session: Session, schema: str, task: str) -> None:
    """Kill the sessions that the old holder may have left in a transaction or a DDL, and wait until they are gone."""
    _end_sessions(session, task, _lock_names(session, schema, task))


def _end_sessions(session: Session, task: str, names: list[str]) -> None:
    until = time.monotonic() + _KILL_WAIT_S
    killed: set[int] = set()
    while holders := _holding_sessions(session, names):
        for holder in holders - killed:
            log.warning("old_session_killed", task=task, session=holder)
            kill_session(session, holder)
        killed |= holders
        if time.monotonic() > until:
            session.rollback()
            raise LeaseHeld(
                f"the sessions {sorted(holders)} of the last holder do not end",
                where={"task": task},
                hint="look at it in SHOW PROCESSLIST: a DDL may be rolling back",
            )
        time.sleep(0.05)


def _lock_names(session: Session, schema: str, task: str) -> list[str]:
    """The locks that connections of `task` may hold, by the fence's rows (read without waiting for their locks)."""
    workers = session.rows(f"SELECT worker FROM {qualified(schema, 'binlake_fence')} WHERE task = %s", (task,))
    return [_lock_name(schema, task, int(worker)) for (worker,) in workers]


def _holding_sessions(session: Session, names: list[str]) -> set[int]:
    if not names:
        return set()
    found = session.rows(f"SELECT {', '.join(['IS_USED_LOCK(%s)'] * len(names))}", names)[0]
    return {int(holder) for holder in found if holder is not None} - {session.connection_id}


def kill_session(session: Session, holder: int) -> None:
    """End the server's session `holder`, whatever it is doing; nothing when there is none. Raises TargetRefused."""
    try:
        session.execute(f"KILL {holder}")
    except TargetRefused as error:
        # It may have ended by itself in between.
        if code_of(error) != _NO_SUCH_SESSION:
            raise


def _lock_name(schema: str, task: str, worker: int = 0) -> str:
    # Names of user locks hold 64 characters at most.
    return f"binlake:{hashlib.sha256(qualified(schema, task).encode()).hexdigest()[:48]}:{worker}"


class LeaseKeeper:
    """Renews every third of the lease from a thread with a session of its own: a DDL may run for hours (R-29).

    `lost` is set when another process has the lease, `forgotten` when an older copy took the server's place. A renewal
    that fails is tried again with a new session: the fence, not the lease, keeps writers apart.
    """

    def __init__(self, target: Target, fence: Fence) -> None:
        self._target = target
        self._fence = fence
        self._ended = threading.Event()
        self.lost = threading.Event()
        self.forgotten = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{fence.task}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._target.connect_timeout_s)

    def require_kept(self) -> None:
        """Raises Fenced when another process has the lease, TargetUnavailable when the server knows nothing of it."""
        if self.lost.is_set():
            raise Fenced("another process has the lease", where={"task": self._fence.task})
        if self.forgotten.is_set():
            raise TargetUnavailable(
                "the target no longer knows this run: an older copy replaced it",
                where={"target": f"{self._target.host}:{self._target.port}", "task": self._fence.task},
                hint="the next run starts from what the target holds",
            )

    def _is_over(self) -> bool:
        return self.lost.is_set() or self.forgotten.is_set()

    def _run(self) -> None:
        session: Session | None = None
        while not self._ended.wait(self._fence.lease_s / 3) and not self._is_over():
            try:
                session = session or Session(self._target)
                if not self._fence.renew(session):
                    (self.forgotten if self._fence.is_forgotten(session) else self.lost).set()
            except BinlakeError as error:
                log.warning("lease_not_renewed", task=self._fence.task, error=str(error))
                if session is not None:
                    session.close()
                session = None
        if session is not None:
            session.close()
