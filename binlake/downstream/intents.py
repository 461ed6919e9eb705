"""A DDL commits by itself, so: intent, execute, done; who finds an intent looks at the target (hazards R-04)."""

from __future__ import annotations

from binlake.downstream.definitions import compare, fingerprint, read, tells_equal_tables_apart
from binlake.downstream.progress import Progress, write_progress
from binlake.downstream.run import ApplyRun
from binlake.downstream.segments import SegmentPlan
from binlake.downstream.session import Session
from binlake.errors import Permanent
from binlake.statement.batch import StatementBatch
from binlake.statement.literal import quote_name


def apply_ddl(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> bool:
    """Bring the DDL of `plan` downstream and the checkpoint to its commit_ts. False: it was there already.

    Raises Permanent when an intent is found and the target shows neither the definitions before nor those after, or
    cannot show the difference; TargetRefused when the target refuses the statement.
    """
    if run.progress.ddl_state == "done":
        return False
    execute = True
    if run.progress.ddl_state == "intent":
        execute = _is_to_be_executed(run, plan)
    else:
        _write_intent(run, plan, ddl)
    if execute:
        _execute(run, plan, ddl)
    _write_done(run, plan)
    return execute


def _write_intent(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> None:
    before = _now(run, plan)
    expected = plan.expected_after.to_json() if plan.expected_after else ""

    def body(session: Session) -> Progress:
        moved = run.progress.with_intent(plan.ddl_commit_ts, ";\n".join(ddl.sql), before, expected)
        write_progress(session, run.schema, moved)
        return moved

    run.transact(body)
    run.passed("intent")


def _execute(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> None:
    run.check()
    # Right before: a DDL cannot be part of the transaction that proves the fence.
    run.prove()
    if ddl.db and (ddl.db, "") not in plan.touched:
        run.session.execute(f"USE {quote_name(ddl.db)}")
    for statement in ddl.sql:
        run.session.execute(statement)
    run.passed("ddl_executed")


def _write_done(run: ApplyRun, plan: SegmentPlan) -> None:
    def body(session: Session) -> Progress:
        moved = run.progress.ddl_done()
        write_progress(session, run.schema, moved)
        checkpoint = run.require_unmoved(session)
        moved_to = checkpoint.moved(plan.ddl_commit_ts, plan.schema_version, consistent=False)
        run.checkpoints.write(session, moved_to)
        return moved

    run.transact(body)
    run.commit_ts = plan.ddl_commit_ts
    run.passed("ddl_done")


def _is_to_be_executed(run: ApplyRun, plan: SegmentPlan) -> bool:
    """False when the target shows that the DDL ran."""
    as_before = _now(run, plan) == run.progress.ddl_before
    differences = _differences(run, plan)
    if as_before and (differences or plan.repeatable or _shows_every_ddl(run, plan)):
        return True
    if not as_before and not differences:
        return False
    raise _unclear(run, plan, as_before, differences)


def _now(run: ApplyRun, plan: SegmentPlan) -> str:
    return fingerprint(run.session, plan.touched, run.target.db_type)


def _shows_every_ddl(run: ApplyRun, plan: SegmentPlan) -> bool:
    return tells_equal_tables_apart(run.session, plan.touched, run.target.db_type)


def _differences(run: ApplyRun, plan: SegmentPlan) -> list[str]:
    if plan.expected_after is None:
        return []
    return compare(plan.expected_after, read(run.session, plan.expected_after.names, run.target.db_type), indexes=True)


def _unclear(run: ApplyRun, plan: SegmentPlan, as_before: bool, differences: list[str]) -> Permanent:
    progress = run.progress
    names = ", ".join(f"{db}.{table}" if table else db for db, table in plan.touched)
    found = (
        "its definitions are the same before and after it, so they do not tell whether it ran"
        if as_before
        else f"the target shows neither the definitions before it nor those after it: {'; '.join(differences)}"
    )
    return Permanent(
        f"a DDL was begun and {found}",
        where={"ddl_commit_ts": plan.ddl_commit_ts, "tables": names, "ddl": (progress.ddl_sql or "")[:300]},
        hint=f"look at these tables; then set ddl_state in {run.schema}.binlake_progress: 'done' if it ran, '' if not",
    )
