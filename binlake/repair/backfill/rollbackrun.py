"""Executes a rollback in one transaction at the source, or on the target under its lease; or writes it to a file.

Rows are read and locked first, so exactly the checked rows are undone. A rollback only on the target makes the
checkpoint inconsistent, since the target then differs from the source (DESIGN 3.8).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from binlake.audit.audit import Audit
from binlake.base.sql import Dialect
from binlake.config import Replication
from binlake.lake.paths import LakePaths
from binlake.repair.backfill.rollback import (
    Rollback,
    TableUndo,
    find_differences_to_undo,
    plan_rollback,
    require_no_later_changes,
)
from binlake.repair.verify.chunks import ChunkPlan, Cuts
from binlake.repair.verify.differences import Difference
from binlake.repair.verify.fixes import build_fix_batches
from binlake.repair.verify.fixfile import FixFile
from binlake.repair.verify.owncolumns import require_no_own_columns
from binlake.repair.verify.run import require_source_server
from binlake.repair.verify.sqltable import SqlTable
from binlake.rules import Rules
from binlake.statements import BatchLimits, StatementBatch
from binlake.target.apply.batches import run_batch
from binlake.target.apply.presence import PresenceChecks, require_present
from binlake.target.apply.settled import SettledTarget
from binlake.target.session.session import TargetSession


def rollback_target(
    replication: Replication, lo: int, hi: int, settled: SettledTarget, *, force: bool
) -> tuple[Rollback, int]:
    """Undo (lo, hi] on the held target. Returns the plan and the number of rows changed."""
    target = replication.require_sql_target()
    ts = settled.read_checkpoint().commit_ts
    plan = _plan_rollback(replication, lo, hi, ts, "target", force)
    batches = _build_undo_batches(plan.tables, settled.session, target.db_type, target.batch_rows, force=force)
    return plan, settled.apply(batches, ts, consistent=False)


def rollback_source(replication: Replication, lo: int, hi: int, *, force: bool) -> tuple[Rollback, int]:
    """Undo (lo, hi] at the source, by a transaction that is replicated like any other.

    Returns the plan and the number of rows changed.
    """
    known = Audit(LakePaths.of(replication), Rules.of(replication)).read_merged_range()[1]
    plan = _plan_rollback(replication, lo, hi, known, "source", force)
    source = require_source_server(replication)
    with closing(TargetSession(source)) as probe:
        dialect = read_dialect(probe)
    with closing(TargetSession(source.model_copy(update={"db_type": dialect}))) as session:
        session.begin()
        batches = _build_undo_batches(plan.tables, session, dialect, source.batch_rows, force=force, lock=True)
        with PresenceChecks() as presence:
            for batch in batches:
                run_batch(session, batch)
                presence.expect(batch)
            for checks in presence.group_checks(session.fetch_max_packet()):
                require_present(session, checks)
        # If the COMMIT's answer is lost, it is not retried: running the command again checks the rows again.
        session.commit()
    return plan, sum(batch.rows for batch in batches)


def rollback_file(
    replication: Replication, lo: int, hi: int, path: Path, ts: int, *, force: bool
) -> tuple[Rollback, int]:
    """Write the undo of (lo, hi] on the target at checkpoint `ts` to the file `path`. Changes nothing."""
    target = replication.require_sql_target()
    plan = _plan_rollback(replication, lo, hi, ts, "target", force)
    with closing(TargetSession(target)) as session:
        batches = _build_undo_batches(plan.tables, session, target.db_type, target.batch_rows, force=force)
    FixFile(replication.name, ts, tuple(batches), "rollback").write(path)
    return plan, sum(batch.rows for batch in batches)


def read_dialect(session: TargetSession) -> Dialect:
    """The dialect of the session's server, by its version."""
    version = str(session.fetch_rows("SELECT VERSION()")[0][0]).lower()
    if "tidb" in version:
        return "tidb"
    return "mariadb" if "mariadb" in version else "mysql"


def _plan_rollback(replication: Replication, lo: int, hi: int, known: int, side: str, force: bool) -> Rollback:
    plan = plan_rollback(replication, lo, hi, known, "source" if side == "source" else "target")
    if not force:
        require_no_later_changes(plan)
    return plan


def _build_undo_batches(
    tables: Sequence[TableUndo], session: TargetSession, dialect: Dialect, rows: int, *, force: bool, lock: bool = False
) -> list[StatementBatch]:
    differences: list[Difference] = []
    require_no_own_columns(session, [undo.table for undo in tables], dialect)
    for undo in tables:
        name = (undo.table.db, undo.table.name)
        current = SqlTable(session, ChunkPlan(undo.table, dialect, Cuts()), [name], lock=lock)
        differences += find_differences_to_undo(undo, current, force=force)
    limits = BatchLimits.of(rows, session.fetch_max_packet())
    return build_fix_batches([undo.table for undo in tables], differences, dialect, limits)
