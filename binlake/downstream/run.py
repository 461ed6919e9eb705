"""One apply in progress: its session, fence and stored progress; every change of these is one transaction, made here.

Sources: hazards R-02 (proof first), R-38 (deadlocks), R-61 (a connection lost at COMMIT).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

from binlake.config.model import Target
from binlake.downstream.checkpoint import Checkpoint, CheckpointTable
from binlake.downstream.fence import Fence, LeaseKeeper, claim
from binlake.downstream.progress import Progress, read_progress
from binlake.downstream.segments import Hook
from binlake.downstream.session import Session
from binlake.downstream.stopping import StopFlag
from binlake.errors import BinlakeError, CheckpointConflict, Fenced, TargetBusy, TargetUnavailable, UnknownOutcome
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger()

TRIES = 5
"""Times a transaction is run when the server rolls it back or its COMMIT is lost."""

Body = Callable[[Session], Progress]
"""Writes inside an open, proven transaction; returns the progress that it stored."""


class ApplyRun:
    """The window of `manifest` on `target`, from claim to release. `progress` and `commit_ts` are as stored."""

    def __init__(self, target: Target, manifest: ApplyManifest, stop: StopFlag, hook: Hook | None) -> None:
        self.target = target
        self.manifest = manifest
        self.schema = target.checkpoint_schema
        self.checkpoints = CheckpointTable(self.schema, manifest.cluster_id)
        self.session = Session(target)
        self.commit_ts = manifest.lo
        self._stop = stop
        self._hook = hook
        self._progress: Progress | None = None
        self._fence: Fence | None = None
        self._keeper: LeaseKeeper | None = None

    @property
    def progress(self) -> Progress:
        """The stored progress. Raises CheckpointConflict before the window is open."""
        if self._progress is None:
            raise CheckpointConflict("no window is open", where={"window": self.manifest.window})
        return self._progress

    @property
    def fence(self) -> Fence:
        """Our claim. Raises Fenced without one."""
        if self._fence is None:
            raise Fenced("nothing was claimed", where={"window": self.manifest.window})
        return self._fence

    def claim(self) -> None:
        """Take lease and epoch, and keep the lease. Raises LeaseHeld."""
        self._fence = claim(self.session, self.target, self.manifest.replication)
        self._keeper = LeaseKeeper(self.target, self._fence)
        self._keeper.__enter__()

    def end(self) -> None:
        """Roll back what is open, give the lease up, close. Never raises: the error before it is what matters."""
        if self._keeper is not None:
            self._keeper.__exit__()
        try:
            self.session.rollback()
            if self._fence is not None:
                self._fence.release(self.session)
        except BinlakeError as error:
            log.warning("lease_not_released", window=self.manifest.window, error=str(error))
        finally:
            if self._fence is not None:
                self._fence.abandon()
            self.session.close()

    def passed(self, step: str) -> None:
        """Tell the hook."""
        if self._hook is not None:
            self._hook(step)

    def check(self) -> None:
        """Between two pieces of work. Raises Transient (asked to stop) or Fenced (the lease is another's)."""
        self._stop.check()
        if self._keeper is not None and self._keeper.lost.is_set():
            raise Fenced("another process has the lease", where={"task": self.manifest.replication})

    def prove(self) -> None:
        """Prove the fence in a transaction of its own, before a statement that commits by itself."""
        self.session.begin()
        self.fence.prove(self.session)
        self.session.commit_repeatable()

    def transact(self, body: Body) -> Progress:
        """Run `body` in one transaction behind the fence until it is known to be stored.

        Raises what `body` raises, TargetBusy after TRIES, TargetUnavailable when the server does not come back.
        """
        for attempt in range(1, TRIES + 1):
            moved = self._attempt(body, last=attempt == TRIES)
            if moved is not None:
                self._progress = moved
                return moved
            self.check()
            time.sleep(min(0.05 * 2**attempt, 1.0))
        raise TargetUnavailable("every COMMIT was lost", where={"window": self.manifest.window, "tries": TRIES})

    def locked_checkpoint(self, session: Session) -> Checkpoint | None:
        """The checkpoint row, locked until the transaction ends."""
        return self.checkpoints.read(session, lock=True)

    def require_unmoved(self, session: Session) -> Checkpoint:
        """The checkpoint, locked, still where this run left it. Raises CheckpointConflict: somebody else writes it."""
        found = self.locked_checkpoint(session)
        if found is None or found.commit_ts != self.commit_ts:
            raise CheckpointConflict(
                "the checkpoint was moved by somebody else",
                where={"expected": self.commit_ts, "found": found.commit_ts if found else "no row"},
                hint="a drainer or another tool writes this row: stop it, or use another target.checkpoint-schema",
            )
        return found

    def _attempt(self, body: Body, *, last: bool) -> Progress | None:
        """The stored progress; None when the transaction is known not to be stored and may run again."""
        moved: Progress | None = None
        try:
            self.session.begin()
            self.fence.prove(self.session)
            moved = body(self.session)
            self.passed("before_commit")
            self.session.commit()
        except TargetBusy as error:
            self.session.rollback()
            log.warning("transaction_repeated", window=self.manifest.window, error=str(error))
            if last:
                raise
            return None
        except UnknownOutcome as error:
            log.warning("commit_outcome_unknown", window=self.manifest.window, error=str(error))
            return moved if self._stored_after_reconnect() == moved else None
        self.passed("after_commit")
        return moved

    def _stored_after_reconnect(self) -> Progress | None:
        """What the server holds. The proof waits until the lost session's transaction is over, so it is final."""
        self.session.close()
        self.session = Session(self.target)
        self.fence.hold(self.session)
        self.session.begin()
        self.fence.prove(self.session)
        stored = read_progress(self.session, self.schema, self.manifest.replication)
        self.session.rollback()
        return stored
