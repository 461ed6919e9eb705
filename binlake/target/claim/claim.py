"""How one process owns a target. Every write goes through a `TargetClaim`, from taking the lease to releasing it.

- `take_fence` takes the lease and raises the fence's epoch. After that, the old holder's transactions have ended and
  it can store nothing more (`fence`).
- `LeaseKeeper` renews the lease from a thread. `check`, called between two units of work, raises when it is lost.
- `transact` runs a transaction under the fence until it is known to be stored (`writers`). `workers` are additional
  connections of the same claim.
- Leaving the context rolls back any open transaction and releases the lease, whatever happened inside.

An `ApplyRun` is one window while it is applied: its claim and its stored progress (`progress`), which only the claim's
transactions change. If the policy allows it, tables that stop the window are set aside (U-16). Nothing is skipped
silently (invariant 11): every skipped batch and DDL has a ledger row, is counted in the window's result, and is logged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import structlog

from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, CheckpointConflict, Fenced, TargetUnavailable
from binlake.rows.schema.forms import fold_pair
from binlake.target.claim.checkpoint import AsideTable, Checkpoint, CheckpointTable, is_aside, read_aside, write_aside
from binlake.target.claim.fence import Fence, take_fence
from binlake.target.claim.progress import TargetProgress, read_progress
from binlake.target.claim.writers import (
    ConfirmedTransactions,
    FencedWriter,
    LoopbackMarks,
    SharedByWriters,
    TargetWriters,
)
from binlake.target.definitions.forms import Name
from binlake.target.segments import Hook, SegmentPlan
from binlake.target.session.failures import is_server_wide
from binlake.target.session.session import StopFlag, TargetSession
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger()

T = TypeVar("T")
Body = Callable[[TargetSession], TargetProgress]
"""Writes inside an open, proven transaction; returns the progress that it stored."""


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

    def _run(self) -> None:
        session: TargetSession | None = None
        while not self._ended.wait(self._fence.lease_s / 3) and not (self.lost.is_set() or self.forgotten.is_set()):
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


class ApplyRun:
    """Applies the window of `manifest` under `claim`. `progress` and `commit_ts` are as stored.

    `aside`: the tables that are set aside, as stored; `newly_aside`: those that this run set aside. Both change only
    between two attempts at a segment, never while connections are writing.
    """

    def __init__(self, claim: TargetClaim, manifest: ApplyManifest) -> None:
        self.claim = claim
        self.target = claim.target
        self.manifest = manifest
        self.schema = self.target.checkpoint_schema
        self.checkpoints = CheckpointTable(self.schema, manifest.cluster_id)
        self.commit_ts = manifest.lo
        # Under the claim no other process sets tables aside or brings them back.
        self.aside = read_aside(claim.session, self.schema, manifest.cluster_id)
        self.newly_aside: list[AsideTable] = []
        self._progress: TargetProgress | None = None

    @property
    def progress(self) -> TargetProgress:
        """The stored progress. Raises CheckpointConflict before the window is open."""
        if self._progress is None:
            raise CheckpointConflict("no window is open", where={"window": self.manifest.window})
        return self._progress

    @property
    def session(self) -> TargetSession:
        """The connection that moves the checkpoint; a new one after a lost COMMIT."""
        return self.claim.session

    def transact(self, body: Body) -> TargetProgress:
        """Run `body` in one transaction under the fence until it is known to be stored.

        Raises what `body` raises, TargetBusy after TRIES, TargetUnavailable when the server does not come back.
        """
        self._progress = self.claim.transact(body, self._is_stored)
        return self._progress

    def lock_checkpoint(self, session: TargetSession) -> Checkpoint | None:
        """The checkpoint row, locked until the transaction ends."""
        return self.checkpoints.read(session, lock=True)

    def lock_unmoved_checkpoint(self, session: TargetSession) -> Checkpoint:
        """Lock the checkpoint at this run's position. Raises CheckpointConflict if another process moved it."""
        checkpoint = self.lock_checkpoint(session)
        if checkpoint is None or checkpoint.commit_ts != self.commit_ts:
            raise CheckpointConflict(
                "another process moved the checkpoint",
                where={"expected": self.commit_ts, "found": checkpoint.commit_ts if checkpoint else "no row"},
                hint="a drainer or another tool writes this row: stop it, or use another target.checkpoint-schema",
            )
        return checkpoint

    def passes_over_ddl(self, plan: SegmentPlan) -> bool:
        """True when the DDL of `plan` changes a table that is set aside. Its other tables are then set aside too.

        A statement on a database is always run; it affects tables that are set aside as well.
        """
        if not self.aside or any(not table for _, table in plan.touched):
            return False
        known = [self.aside[fold_pair(name)] for name in plan.touched if is_aside(self.aside, name)]
        if not known:
            return False
        others = [name for name in plan.touched if not is_aside(self.aside, name)]
        if others:
            named = ", ".join(".".join(name) for name in plan.touched)
            reason = f"the DDL {plan.ddl_commit_ts} changes {named} together, and one of them is set aside"
            # After a rename, rows of one name belong to another table, which lacks rows since it was set aside.
            self._set_aside(others, reason, min(one.since for one in known))
        return True

    def set_aside_after(self, error: BinlakeError) -> bool:
        """Set aside the tables that `error` names, if the policy allows it. True: retry the segment without them.

        False when the server as a whole refuses, or if more than `target.most-set-aside` tables would be set aside.
        """
        names = [name for name in error.tables if not is_aside(self.aside, name)]
        if not names or is_server_wide(error):
            return False
        if self.target.on_table_error != "set-aside":
            tables = " ".join(f"--table {'.'.join(name)}" for name in names)
            error.hint += (
                f"; let the other tables continue without it: `binlake table aside {tables}` and finalize again"
            )
            return False
        if len(self.aside) + len(names) > self.target.most_set_aside:
            error.hint += f"; the limit of target.most-set-aside = {self.target.most_set_aside} is reached"
            return False
        self._set_aside(names, str(error), self.commit_ts)
        return True

    def _set_aside(self, names: Iterable[Name], reason: str, since: int) -> None:
        """Set tables aside durably. `consistent` is already false, because the window is open."""
        tables = [AsideTable(db, table, since, "policy", reason) for db, table in names]
        cluster_id = self.manifest.cluster_id

        def write_tables(session: TargetSession) -> list[AsideTable]:
            write_aside(session, self.schema, cluster_id, self.manifest.replication, tables)
            return tables

        def is_stored(session: TargetSession, written: list[AsideTable]) -> bool:
            return {one.name for one in written} <= read_aside(session, self.schema, cluster_id).keys()

        self.claim.transact(write_tables, is_stored)
        self.aside = read_aside(self.session, self.schema, cluster_id)
        for one in tables:
            self.newly_aside.append(self.aside[one.name])
            log.error("table_set_aside", table=f"{one.db}.{one.table}", since=str(one.since), reason=reason[:1000])
        self.claim.notify("aside")

    def _is_stored(self, session: TargetSession, moved: TargetProgress) -> bool:
        return read_progress(session, self.schema, self.manifest.replication) == moved
