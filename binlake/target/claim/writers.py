"""The connections of a claim. Each transaction proves the fence first and is counted once it is known to be stored.

Sources: hazards R-02 (proof first), R-38 (deadlocks), R-61 (a connection lost at COMMIT, a server replaced by a copy).
Transactions are marked, so that the reverse replication skips them (tidb-binlog 5.11, R-47).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import structlog

from binlake.common import sql
from binlake.common.sections import LoopbackSection
from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, TargetBusy, TargetUnavailable, UnknownOutcome
from binlake.statements.literal import quote_name, quote_qualified_name
from binlake.target.claim.fence import Fence
from binlake.target.segments import Hook
from binlake.target.session.session import TargetSession
from binlake.target.session.tables import require_transactions

log = structlog.get_logger()
TRIES = 5
"""How often a transaction is tried when the server rolls it back or its COMMIT is lost."""
T = TypeVar("T")
_NEXT_RUN = (
    "the next run continues from this server's state and applies the rest again; this requires a copy without gaps in"
    " its transactions"
)


class _FenceRow(NamedTuple):
    worker: int
    epoch: int
    transactions: int


class ConfirmedTransactions:
    """Counts the transactions known to be stored, for all connections of a claim. `session`: its first connection.

    Each transaction adds 1 to its connection's row of the fence, so that row counts the connection's transactions on a
    server. A new connection writes only if the server has all confirmed transactions. If a server with fewer
    transactions replaces the target, the run ends, and the next run continues from that server's state.
    """

    def __init__(self, session: TargetSession, target: TargetSection) -> None:
        self._target = target
        self._server = self._read_server_identity(session)
        self._counts: dict[int, int] = {}
        self._lock = threading.Lock()

    def record(self, worker: int, count: int) -> None:
        """Record that transaction number `count` of a connection is stored."""
        with self._lock:
            self._counts[worker] = max(count, self._counts.get(worker, 0))

    def require_all(self, session: TargetSession, fence: Fence) -> None:
        """Require of a new connection the claim's server with all its transactions. Raises TargetUnavailable."""
        server = self._read_server_identity(session)
        if server != self._server:
            raise TargetUnavailable(
                "the server at the target's address is not the one on which this run began",
                where={"target": session.place, "began_on": self._server, "answers": server},
                hint=_NEXT_RUN,
            )
        with self._lock:
            confirmed = dict(self._counts)
        table = quote_qualified_name(fence.schema, "binlake_fence")
        rows = session.fetch_records(
            _FenceRow, f"SELECT worker, epoch, val FROM {table} WHERE task = %s", (fence.replication,)
        )
        stored = {int(row.worker): int(row.transactions) for row in rows if int(row.epoch) >= fence.epoch}
        lacking = sum(max(count - stored.get(worker, 0), 0) for worker, count in confirmed.items())
        if 0 not in stored or lacking:
            raise TargetUnavailable(
                "the target lacks transactions that it had confirmed: an older copy replaced it",
                where={"target": session.place, "task": fence.replication, "transactions": lacking},
                hint=_NEXT_RUN,
            )

    def _read_server_identity(self, session: TargetSession) -> str:
        # All servers of a TiDB cluster have the same rows.
        if self._target.db_type == "tidb":
            return ""
        (server,) = session.fetch_rows("SELECT @@hostname, @@port, @@server_id")
        return ":".join(map(str, server))


@dataclass(frozen=True)
class SharedByWriters:
    """The state that all writers of a claim share.

    `check` is called before a retry and may raise; `notify` is the hook; `marks`: marks each transaction's origin if
    loopback control is on; `one_at_a_time`: the lock under which deadlocked transactions are retried.
    """

    target: TargetSection
    check: Callable[[], None]
    notify: Hook
    confirmed: ConfirmedTransactions
    marks: LoopbackMarks | None = None
    one_at_a_time: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class _Written(Generic[T]):
    value: T


class FencedWriter:
    """A session and its row of the fence. After a lost COMMIT, `session` is a new one."""

    def __init__(self, session: TargetSession, fence: Fence, shared: SharedByWriters) -> None:
        self.session = session
        self.fence = fence
        self._shared = shared

    def transact(self, body: Callable[[TargetSession], T], is_stored: Callable[[TargetSession, T], bool]) -> T:
        """Run `body` in one transaction under the fence until it is known to be stored; returns its result.

        `is_stored` checks, after a COMMIT whose answer was lost, whether the result of `body` is stored. Raises what
        `body` raises, TargetBusy after TRIES, TargetUnavailable when the server does not come back.
        """
        for attempt in range(1, TRIES + 1):
            turn: AbstractContextManager[object] = self._shared.one_at_a_time if attempt > 1 else nullcontext()
            with turn:
                written = self._attempt_transaction(body, is_stored, last=attempt == TRIES)
            if written is not None:
                return written.value
            self._shared.check()
            time.sleep(min(0.05 * 2**attempt, 1.0))
        raise TargetUnavailable("every COMMIT was lost", where={"task": self.fence.replication, "tries": TRIES})

    def prove(self) -> None:
        """Prove the fence in a transaction of its own, before a statement that commits by itself."""
        self.session.begin()
        count = self.fence.prove(self.session)
        self.session.commit_repeatable()
        self._shared.confirmed.record(self.fence.worker, count)

    def _attempt_transaction(
        self, body: Callable[[TargetSession], T], is_stored: Callable[[TargetSession, T], bool], *, last: bool
    ) -> _Written[T] | None:
        """Run `body` once; None when its transaction is known not to be stored and may run again."""
        written: _Written[T] | None = None
        count = 0
        try:
            self.session.begin()
            count = self.fence.prove(self.session)
            if self._shared.marks is not None:
                self._shared.marks.mark(self.session, self.fence.worker)
            written = _Written(body(self.session))
            self._shared.notify("before_commit")
            self.session.commit()
        except TargetBusy as error:
            self.session.rollback()
            log.warning("transaction_repeated", task=self.fence.replication, worker=self.fence.worker, error=str(error))
            if last:
                raise
            return None
        except UnknownOutcome as error:
            log.warning(
                "commit_outcome_unknown", task=self.fence.replication, worker=self.fence.worker, error=str(error)
            )
            return written if written is not None and self._is_stored_after_all(written, is_stored) else None
        except BaseException:
            self._roll_back()
            raise
        self._shared.confirmed.record(self.fence.worker, count)
        self._shared.notify("after_commit")
        return written

    def _roll_back(self) -> None:
        """Roll back at once: other connections may wait for these locks until the server's timeout."""
        try:
            self.session.rollback()
        except BinlakeError as error:
            # The server rolls back when the connection is lost. The original error must not be hidden.
            log.warning("not_rolled_back", task=self.fence.replication, worker=self.fence.worker, error=str(error))

    def _is_stored_after_all(self, written: _Written[T], is_stored: Callable[[TargetSession, T], bool]) -> bool:
        """Whether the server stored it. The answer is final: the proof waits for the end of the lost transaction.

        Raises TargetUnavailable if the server lacks transactions that it confirmed before.
        """
        self.session.close()
        self.session = TargetSession(self._shared.target)
        self._shared.confirmed.require_all(self.session, self.fence)
        # Commit at once: a take-over cannot find this connection by name yet, so it must hold no lock.
        self._shared.confirmed.record(self.fence.worker, self.fence.prove(self.session))
        stored = is_stored(self.session, written.value)
        # The lost session may still exist on the server and hold the name that a take-over looks for.
        self.fence.register(self.session)
        return stored


class _SharedItems(Generic[T]):
    """An iterator shared by threads. After the first error it ends for all of them."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            if self.error is not None:
                raise StopIteration
            return next(self._items)

    def fail(self, error: BaseException) -> None:
        """Remember the first error."""
        with self._lock:
            self.error = self.error or error


class TargetWriters:
    """At most `count` writers, numbered from 1. `connect` opens a writer's connection for its first item.

    The caller's thread waits, so `run` is a barrier: when it returns, all writers are done (invariant 6).
    """

    def __init__(self, count: int, connect: Callable[[int], FencedWriter]) -> None:
        self._count = count
        self._connect = connect
        self._writers: dict[int, FencedWriter] = {}

    def run(self, items: Iterator[T], act: Callable[[FencedWriter, T], None], *, most: int | None = None) -> None:
        """Call `act` on every item, in any order, with up to `most` writers. Returns when all writers have stopped.

        Raises the first error, including one of `items`. `items` is read by one thread at a time.
        """
        shared = _SharedItems(items)
        threads = [
            threading.Thread(
                target=self._work_on_items, args=(number, shared, act), name=f"apply-{number}", daemon=True
            )
            for number in range(1, min(self._count, most or self._count) + 1)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:
            # After Ctrl-C no thread may write once the caller continues.
            shared.fail(error)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if shared.error is not None:
            raise shared.error

    def list_connections(self) -> list[int]:
        """The server's ids of the open connections."""
        return [writer.session.connection_id for writer in list(self._writers.values())]

    def close(self) -> None:
        """Close the connections; the server rolls back open transactions."""
        for writer in self._writers.values():
            try:
                writer.session.close()
            except BinlakeError as error:
                log.warning("worker_not_closed", worker=writer.fence.worker, error=str(error))
        self._writers.clear()

    def _work_on_items(self, number: int, items: _SharedItems[T], act: Callable[[FencedWriter, T], None]) -> None:
        try:
            for item in items:
                if number not in self._writers:
                    self._writers[number] = self._connect(number)
                act(self._writers[number], item)
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
            items.fail(error)


@dataclass(frozen=True)
class LoopbackMarks:
    """The mark table of a channel; `info` names the writer for people (at most 64 characters)."""

    config: LoopbackSection
    info: str

    @classmethod
    def of(cls, config: LoopbackSection, replication: str) -> LoopbackMarks | None:
        """The marks of a replication; None without loopback control."""
        return cls(config, replication) if config.loopback_control else None

    def create_table(self, session: TargetSession) -> None:
        """Create the mark table if it is missing. Raises TargetRefused."""
        names = (self.config.mark_schema, self.config.mark_table)
        sought = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        if not session.fetch_rows(sought, names):
            session.execute(f"CREATE DATABASE IF NOT EXISTS {quote_name(self.config.mark_schema)}")
            session.execute(sql.read_statement("repl_mark").replace("{table}", self._table))
        # A transaction that rolls back must leave no mark.
        require_transactions(session, self.config.mark_schema, [self.config.mark_table])

    def mark(self, session: TargetSession, worker: int = 0) -> None:
        """Mark the open transaction; each connection has its own row. Raises TargetRefused, TargetBusy."""
        session.write(
            f"INSERT INTO {self._table} (id, channel_id, val, channel_info) VALUES (%s, %s, 1, %s)"
            " ON DUPLICATE KEY UPDATE val = val + 1",
            (worker, self.config.channel_id, self.info[:64]),
        )

    @property
    def _table(self) -> str:
        return quote_qualified_name(self.config.mark_schema, self.config.mark_table)
