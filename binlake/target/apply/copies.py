"""The copies of a window's kept rows: Binlake's tables next to the ledger, made before a segment, dropped with it.

What they hold is written by batches with ledger rows like any other (hazards R-12); only making and dropping them is
outside a transaction, and either may be done twice.
"""

from __future__ import annotations

from binlake.statements.literal import qualified
from binlake.statements.preserve import copy_prefix
from binlake.target.claim.aside import is_aside
from binlake.target.claim.run import ApplyRun
from binlake.target.segments import SegmentPlan


def make_copies(run: ApplyRun, plan: SegmentPlan) -> None:
    """Create an empty table like each one of which `plan` keeps rows, unless it exists already or is set aside."""
    without = {qualified(db, table) for db, table in plan.tables if is_aside(run.aside, (db, table))}
    for copy, table in plan.copies:
        if table not in without:
            run.claim.prove()
            run.session.execute(f"CREATE TABLE IF NOT EXISTS {copy} LIKE {table}")


def drop_copies(run: ApplyRun) -> None:
    """Drop every copy of this replication; no window of it is open."""
    prefix = copy_prefix(run.manifest.replication)
    sql = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND LEFT(TABLE_NAME, %s) = %s"
    for name in run.session.column(sql, (run.schema, len(prefix), prefix)):
        run.claim.prove()
        run.session.execute(f"DROP TABLE IF EXISTS {qualified(run.schema, name)}")
