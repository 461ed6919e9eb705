"""One apply in progress: its connections, its claim and its stored progress, which only its transactions change."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from binlake.config.model import Target
from binlake.errors import BinlakeError, CheckpointConflict, Fenced
from binlake.target.claim.aside import AsideTable, read_aside
from binlake.target.claim.checkpoint import Checkpoint, CheckpointTable
from binlake.target.claim.confirmed import Confirmed
from binlake.target.claim.fence import Fence, LeaseKeeper, claim
from binlake.target.claim.grace import Grace
from binlake.target.claim.marks import Marks
from binlake.target.claim.progress import Progress, read_progress
from binlake.target.claim.segments import Hook
from binlake.target.claim.workers import Workers
from binlake.target.claim.writer import FencedWriter
from binlake.target.definitions.definitions import Name
from binlake.target.session.session import Session
from binlake.target.session.stopping import StopFlag
from binlake.target.session.tables import create_tables
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger()

Body = Callable[[Session], Progress]
"""Writes inside an open, proven transaction; returns the progress that it stored."""


class ApplyRun:
    """The window of `manifest` on `target`, from claim to release. `progress` and `commit_ts` are as stored.

    `aside`: the tables that are set aside, as stored; `put_aside`: those of them that this run set aside. They change
    between two tries of a segment only, never while connections are at work.
    """

    def __init__(
        self, target: Target, manifest: ApplyManifest, stop: StopFlag, hook: Hook | None, marks: Marks | None = None
    ) -> None:
        self.target = target
        self.manifest = manifest
        self.schema = target.checkpoint_schema
        self.checkpoints = CheckpointTable(self.schema, manifest.cluster_id)
        self.commit_ts = manifest.lo
        self.workers = Workers(target.worker_count, self._connect)
        self.aside: dict[Name, AsideTable] = {}
        self.put_aside: list[AsideTable] = []
        self._stop = stop
        self._hook = hook
        self._marks = marks
        self._alone = threading.Lock()
        self._session = Session(target)
        self._writer: FencedWriter | None = None
        self._progress: Progress | None = None
        self._keeper: LeaseKeeper | None = None
        self._grace: Grace | None = None

    @property
    def progress(self) -> Progress:
        """The stored progress. Raises CheckpointConflict before the window is open."""
        if self._progress is None:
            raise CheckpointConflict("no window is open", where={"window": self.manifest.window})
        return self._progress

    @property
    def session(self) -> Session:
        """The connection that moves the checkpoint; another one after a COMMIT that was lost."""
        return self._session if self._writer is None else self._writer.session

    @property
    def writer(self) -> FencedWriter:
        """The same connection behind our claim. Raises Fenced without one."""
        if self._writer is None:
            raise Fenced("nothing was claimed", where={"window": self.manifest.window})
        return self._writer

    @property
    def fence(self) -> Fence:
        """Our claim. Raises Fenced without one."""
        return self.writer.fence

    def prepare(self) -> None:
        """Create missing Binlake tables. Raises TargetRefused."""
        create_tables(self.session, self.schema)
        if self._marks is not None:
            self._marks.prepare(self.session)

    def claim(self) -> None:
        """Take lease and epoch, and keep the lease. Raises LeaseHeld."""
        fence = claim(self._session, self.target, self.manifest.replication)
        self._writer = self._writer_of(self._session, fence, Confirmed(self._session, self.target))
        self._keeper = LeaseKeeper(self.target, fence)
        self._keeper.__enter__()
        self._grace = Grace(self.target, self._stop, self._connections).__enter__()
        # Behind the claim nobody else sets tables aside or brings them back.
        self.aside = read_aside(self._session, self.schema, self.manifest.cluster_id)

    def end(self) -> None:
        """Roll back what is open, give the lease up, close. Never raises: the error before it is what matters."""
        for watcher in (self._grace, self._keeper):
            if watcher is not None:
                watcher.__exit__()
        self.workers.close()
        try:
            self.session.rollback()
            if self._writer is not None:
                self.fence.release(self.session)
        except BinlakeError as error:
            log.warning("lease_not_released", window=self.manifest.window, error=str(error))
        finally:
            if self._writer is not None:
                self.fence.abandon()
            self.session.close()

    def passed(self, step: str) -> None:
        """Notify the hook."""
        if self._hook is not None:
            self._hook(step)

    def check(self) -> None:
        """Between two pieces of work. Raises Transient (asked to stop), and what `LeaseKeeper.require_kept` does."""
        self._stop.check()
        if self._keeper is not None:
            self._keeper.require_kept()

    def prove(self) -> None:
        """Prove the fence in a transaction of its own, before a statement that commits by itself."""
        self.writer.prove()

    def transact(self, body: Body) -> Progress:
        """Run `body` in one transaction behind the fence until it is known to be stored.

        Raises what `body` raises, TargetBusy after TRIES, TargetUnavailable when the server does not come back.
        """
        self._progress = self.writer.transact(body, self._is_stored)
        return self._progress

    def locked_checkpoint(self, session: Session) -> Checkpoint | None:
        """The checkpoint row, locked until the transaction ends."""
        return self.checkpoints.read(session, lock=True)

    def require_unmoved(self, session: Session) -> Checkpoint:
        """The checkpoint, locked, still where this run left it. Raises CheckpointConflict if another one moved it."""
        found = self.locked_checkpoint(session)
        if found is None or found.commit_ts != self.commit_ts:
            raise CheckpointConflict(
                "another process moved the checkpoint",
                where={"expected": self.commit_ts, "found": found.commit_ts if found else "no row"},
                hint="a drainer or another tool writes this row: stop it, or use another target.checkpoint-schema",
            )
        return found

    def _is_stored(self, session: Session, moved: Progress) -> bool:
        return read_progress(session, self.schema, self.manifest.replication) == moved

    def _connections(self) -> list[int]:
        return [self.session.connection_id, *self.workers.connections()]

    def _connect(self, worker: int) -> FencedWriter:
        session, fence = Session(self.target), self.fence.of_worker(worker)
        confirmed = self.writer.confirmed
        confirmed.require_held(session, fence)
        session.begin()
        fence.prove(session)
        session.rollback()
        fence.hold(session)
        return self._writer_of(session, fence, confirmed)

    def _writer_of(self, session: Session, fence: Fence, confirmed: Confirmed) -> FencedWriter:
        return FencedWriter(
            self.target,
            session,
            fence,
            check=self.check,
            passed=self.passed,
            alone=self._alone,
            confirmed=confirmed,
            marks=self._marks,
        )
