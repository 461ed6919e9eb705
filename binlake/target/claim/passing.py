"""What is passed over since its table is set aside, and which tables are set aside when they stop a run (U-16).

Nothing is skipped silently (invariant 11): every batch and DDL that is passed over has a row of the ledger in its
place, is counted in the window's result and logged.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import structlog

from binlake.errors import BinlakeError
from binlake.statements.batch import StatementBatch
from binlake.statements.tableof import table_of
from binlake.target.claim.aside import AsideTable, folded, is_aside, read_aside, write_aside
from binlake.target.claim.run import ApplyRun
from binlake.target.claim.segments import SegmentPlan
from binlake.target.definitions.definitions import Name
from binlake.target.session.failures import is_of_the_server
from binlake.target.session.session import Session

log = structlog.get_logger()


def part_to_run(batch: StatementBatch, aside: Collection[Name]) -> StatementBatch | None:
    """What of `batch` is run: itself, its statements on other tables (mode ordered), or None for nothing."""
    if not aside:
        return batch
    if batch.table:
        return None if is_aside(aside, (batch.db, batch.table)) else batch
    kept = [n for n, sql in enumerate(batch.sql) if not is_aside(aside, table_of(sql))]
    if len(kept) == len(batch.sql):
        return batch
    if not kept:
        return None
    # Rows are not told by statement: what was passed over is counted with the rest of its batch.
    return replace(batch, sql=tuple(batch.sql[n] for n in kept), expect=tuple(batch.expect[n] for n in kept))


def is_passed_over(run: ApplyRun, plan: SegmentPlan) -> bool:
    """True when the DDL of `plan` is about a table that is set aside. All tables it is about then are.

    A statement on a database is run: it takes its tables along, whether they are set aside or not.
    """
    if not run.aside or any(not table for _, table in plan.touched):
        return False
    known = [run.aside[folded(name)] for name in plan.touched if is_aside(run.aside, name)]
    if not known:
        return False
    others = [name for name in plan.touched if not is_aside(run.aside, name)]
    if others:
        named = ", ".join(".".join(name) for name in plan.touched)
        reason = f"the DDL {plan.ddl_commit_ts} changes {named} together, and one of them is set aside"
        # Behind a rename the rows of one name are those of another, which lacks them since it was set aside.
        put_aside(run, others, reason, min(one.since for one in known))
    return True


def put_aside_for(run: ApplyRun, error: BinlakeError) -> bool:
    """Set aside the tables that `error` names, when the policy is so; True: the segment can be tried without them.

    Not when the server as a whole refuses, or more than `target.most-set-aside` tables would be set aside.
    """
    names = [name for name in error.tables if not is_aside(run.aside, name)]
    if not names or is_of_the_server(error):
        return False
    if run.target.on_table_error != "set-aside":
        tables = " ".join(f"--table {'.'.join(name)}" for name in names)
        error.hint += f"; let the other tables continue without it: `binlake table aside {tables}` and finalize again"
        return False
    if len(run.aside) + len(names) > run.target.most_set_aside:
        error.hint += f"; the limit of target.most-set-aside = {run.target.most_set_aside} is reached"
        return False
    put_aside(run, names, str(error), run.commit_ts)
    return True


def put_aside(run: ApplyRun, names: Iterable[Name], reason: str, since: int) -> None:
    """Set the tables aside by the policy, durably; `consistent` is false already, as the window is open."""
    tables = [AsideTable(db, table, since, "policy", reason) for db, table in names]
    schema, cluster_id = run.schema, run.manifest.cluster_id

    def body(session: Session) -> list[AsideTable]:
        write_aside(session, schema, cluster_id, run.manifest.replication, tables)
        return tables

    def is_stored(session: Session, written: list[AsideTable]) -> bool:
        return {one.name for one in written} <= read_aside(session, schema, cluster_id).keys()

    run.writer.transact(body, is_stored)
    run.aside = read_aside(run.session, schema, cluster_id)
    for one in tables:
        run.put_aside.append(run.aside[one.name])
        log.error("table_set_aside", table=f"{one.db}.{one.table}", since=str(one.since), reason=reason[:1000])
    run.passed("aside")
