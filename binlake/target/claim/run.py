"""One window while it is applied: its claim and its stored progress, which only the claim's transactions change.

If the policy allows it, tables that stop the window are set aside (U-16). Nothing is skipped silently (invariant 11):
every skipped batch and DDL has a ledger row, is counted in the window's result, and is logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from binlake.errors import BinlakeError, CheckpointConflict
from binlake.rows.schema.forms import fold_pair
from binlake.target.claim.aside import AsideTable, is_aside, read_aside, write_aside
from binlake.target.claim.checkpointrow import Checkpoint, CheckpointTable
from binlake.target.claim.claim import TargetClaim
from binlake.target.claim.progress import TargetProgress, read_progress
from binlake.target.definitions.forms import Name
from binlake.target.segments import SegmentPlan
from binlake.target.session.failures import is_server_wide
from binlake.target.session.session import TargetSession
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger()

Body = Callable[[TargetSession], TargetProgress]
"""Writes inside an open, proven transaction; returns the progress that it stored."""


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
