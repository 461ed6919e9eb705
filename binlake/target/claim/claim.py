"""How one process owns a target. Every write goes through a `TargetClaim`, from taking the lease to releasing it.

- `take_fence` takes the lease and raises the fence's epoch. After that, the old holder's transactions have ended and
  it can store nothing more (`fence`).
- `LeaseKeeper` renews the lease from a thread. `check`, called between two units of work, raises when it is lost.
- `transact` runs a transaction under the fence until it is known to be stored (`writers`). `workers` are additional
  connections of the same claim.
- Leaving the context rolls back any open transaction and releases the lease, whatever happened inside.

`progress` has the rows that a claim writes about its progress.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import structlog

from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, Fenced, TargetUnavailable
from binlake.target.claim.fence import Fence, take_fence
from binlake.target.claim.loopback import LoopbackMarks
from binlake.target.claim.writers import ConfirmedTransactions, FencedWriter, SharedByWriters, TargetWriters
from binlake.target.segments import Hook
from binlake.target.session.session import TargetSession
from binlake.target.session.stopping import StopFlag

log = structlog.get_logger()

T = TypeVar("T")


class TargetClaim:
    """The right to write to `target` for `replication`, as a context manager. Binlake's tables must exist there.

    `session` becomes the first connection; the caller must close it. `stop` is checked by `check`. Raises LeaseHeld on
    entering while another process has the right.
    """

    writer: FencedWriter
    """The connection that moves the checkpoint."""

    def __init__(
        self,
        session: TargetSession,
        target: TargetSection,
        replication: str,
        *,
        stop: StopFlag | None = None,
        hook: Hook | None = None,
        marks: LoopbackMarks | None = None,
    ) -> None:
        self.target = target
        self.replication = replication
        self.workers = TargetWriters(target.worker_count, self._connect)
        self._first = session
        self._stop = stop
        self._hook = hook
        self._marks = marks

    def __enter__(self) -> TargetClaim:
        fence = take_fence(self._first, self.target, self.replication)
        self._keeper = LeaseKeeper(self.target, fence)
        try:
            confirmed = ConfirmedTransactions(self._first, self.target)
            self._shared = SharedByWriters(self.target, self.check, self.notify, confirmed, self._marks)
            self.writer = FencedWriter(self._first, fence, self._shared)
            self._keeper.__enter__()
        except BaseException:
            self._release(fence, self._first)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Never raises, so that an error from inside the context is not hidden."""
        self._keeper.__exit__()
        self.workers.close()
        self._release(self.writer.fence, self.session)
        if self.session is not self._first:
            self.session.close()

    @property
    def session(self) -> TargetSession:
        """The connection of `writer`; a new one after a lost COMMIT."""
        return self.writer.session

    def transact(self, body: Callable[[TargetSession], T], is_stored: Callable[[TargetSession, T], bool]) -> T:
        """Call `FencedWriter.transact` on the connection that moves the checkpoint."""
        return self.writer.transact(body, is_stored)

    def prove(self) -> None:
        """Prove the fence in a separate transaction, before a statement that commits implicitly."""
        self.writer.prove()

    def check(self) -> None:
        """Call it between two units of work. Raises Transient (asked to stop), and as `LeaseKeeper.require_lease`."""
        if self._stop is not None:
            self._stop.check()
        self._keeper.require_lease()

    def notify(self, step: str) -> None:
        """Call the hook with `step`."""
        if self._hook is not None:
            self._hook(step)

    def list_connections(self) -> list[int]:
        """The server's ids of all open connections."""
        return [self.session.connection_id, *self.workers.list_connections()]

    def _connect(self, worker: int) -> FencedWriter:
        session, fence = TargetSession(self.target), self.writer.fence.with_worker(worker)
        self._shared.confirmed.require_all(session, fence)
        fence.require_current(session)
        fence.register(session)
        return FencedWriter(session, fence, self._shared)

    def _release(self, fence: Fence, session: TargetSession) -> None:
        try:
            session.rollback()
            fence.release(session)
        except BinlakeError as error:
            log.warning("lease_not_released", task=self.replication, error=str(error))
        finally:
            fence.abandon()


@contextmanager
def open_claimed_transaction(
    session: TargetSession, target: TargetSection, replications: Sequence[str]
) -> Iterator[None]:
    """One transaction on `session` under the claims of all `replications`. It is not retried: for commands."""
    with ExitStack() as claims:
        fences = [
            claims.enter_context(TargetClaim(session, target, replication)).writer.fence for replication in replications
        ]
        session.begin()
        for fence in fences:
            fence.prove(session)
        yield
        session.commit()


class LeaseKeeper:
    """Renews the lease from a thread with its own session, as a DDL may run for hours (R-29).

    It renews after each third of the lease time. `lost` is set when another process has the lease, `forgotten` when an
    older copy replaced the server. A failed renewal is retried with a new session: the fence, not the lease, excludes
    other writers.
    """

    def __init__(self, target: TargetSection, fence: Fence) -> None:
        self._target = target
        self._fence = fence
        self._ended = threading.Event()
        self.lost = threading.Event()
        self.forgotten = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{fence.replication}", daemon=True)

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._target.connect_timeout_s)

    def require_lease(self) -> None:
        """Raises Fenced when another process has the lease, TargetUnavailable when the server does not know it."""
        if self.lost.is_set():
            raise Fenced("another process has the lease", where={"task": self._fence.replication})
        if self.forgotten.is_set():
            raise TargetUnavailable(
                "the target no longer knows this run: an older copy replaced it",
                where={"target": f"{self._target.host}:{self._target.port}", "task": self._fence.replication},
                hint="the next run continues from the state that the target has now",
            )

    def _is_lease_lost(self) -> bool:
        return self.lost.is_set() or self.forgotten.is_set()

    def _run(self) -> None:
        session: TargetSession | None = None
        while not self._ended.wait(self._fence.lease_s / 3) and not self._is_lease_lost():
            try:
                session = session or TargetSession(self._target)
                if not self._fence.renew(session):
                    (self.forgotten if self._fence.is_forgotten(session) else self.lost).set()
            except BinlakeError as error:
                log.warning("lease_not_renewed", task=self._fence.replication, error=str(error))
                if session is not None:
                    session.close()
                session = None
        if session is not None:
            session.close()
