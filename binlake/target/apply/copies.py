"""Makes and drops the copies of rows that a window keeps: Binlake's tables next to the ledger.

Their rows are written by ordinary batches with ledger rows (hazards R-12). Only creating and dropping the tables
happens outside a transaction; both may be repeated.
"""

from __future__ import annotations

from binlake.statements.literal import quote_qualified_name
from binlake.statements.preserve import format_copy_prefix
from binlake.target.claim.aside import is_aside
from binlake.target.claim.run import ApplyRun
from binlake.target.segments import SegmentPlan


def build_copies(run: ApplyRun, plan: SegmentPlan) -> None:
    """Create an empty copy of each table whose rows `plan` keeps, unless it exists already or is set aside."""
    without = {quote_qualified_name(db, table) for db, table in plan.tables if is_aside(run.aside, (db, table))}
    for copy, table in plan.copies:
        if table not in without:
            run.claim.prove()
            run.session.execute(f"CREATE TABLE IF NOT EXISTS {copy} LIKE {table}")


def drop_copies(run: ApplyRun) -> None:
    """Drop every copy of this replication. Call it only when no copy is needed any more."""
    prefix = format_copy_prefix(run.manifest.replication)
    sql = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND LEFT(TABLE_NAME, %s) = %s"
    for name in run.session.fetch_column(sql, (run.schema, len(prefix), prefix)):
        run.claim.prove()
        run.session.execute(f"DROP TABLE IF EXISTS {quote_qualified_name(run.schema, name)}")
