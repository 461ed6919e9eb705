"""A DDL commits by itself, so: intent, execute, done; who finds an intent looks at the target (hazards R-04)."""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from binlake.downstream.ddlerrors import execute_ddl
from binlake.downstream.definitions import compare, fingerprint, left_behind, read, tells_equal_tables_apart
from binlake.downstream.failures import code_of
from binlake.downstream.intended import Intended
from binlake.downstream.progress import Progress, write_progress
from binlake.downstream.rowsleft import rows_left
from binlake.downstream.run import ApplyRun
from binlake.downstream.segments import SegmentPlan
from binlake.downstream.session import Session
from binlake.errors import Permanent, TargetRefused
from binlake.statement.batch import INJECTED, REPLACED, StatementBatch
from binlake.statement.literal import quote_name

log = structlog.get_logger()

_WORDS = {REPLACED: "the replacement of a DDL", INJECTED: "an injected statement"}
_ANOTHER_DDL = (
    "mend the target and run finalize again; or name the commit_ts in ddl-replacement with a statement that the target"
    " takes, or in filter.ignore-txn-commit-ts once you have done it by hand; then `binlake ddl release`, and merge,"
    " compact and convert again"
)
# Its commit_ts is that of a change of the source, which those two keys would replace or leave out.
_ANOTHER_INJECTED = (
    "mend the target and run finalize again; or change or remove this `ddl-injection`, then `binlake ddl release`, and"
    " merge, compact and convert again"
)


@dataclass(frozen=True)
class DdlOutcome:
    """`executed`: False when it was there already. `ignored`: the errors of the target that were passed over."""

    executed: bool
    ignored: tuple[str, ...] = ()


def apply_ddl(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> DdlOutcome:
    """Bring the DDL of `plan` downstream and the checkpoint to its commit_ts.

    Raises Permanent when an intent is found and the target shows neither the definitions before nor those after, or
    cannot show the difference; TargetRefused when the target refuses the statement.
    """
    if run.progress.ddl_state == "done":
        return DdlOutcome(False)
    execute = True
    ignored: tuple[str, ...] = ()
    if run.progress.ddl_state == "intent":
        execute = _is_to_be_executed(run, plan, ddl)
    else:
        _write_intent(run, plan, ddl)
    if execute:
        ignored = _execute(run, plan, ddl)
    _write_done(run, plan)
    return DdlOutcome(execute, ignored)


def _write_intent(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch, *, refused: bool = False) -> None:
    before = _now(run, plan)
    expected = Intended(plan.touched, plan.expected_after, refused).to_json()

    def body(session: Session) -> Progress:
        moved = run.progress.with_intent(plan.ddl_commit_ts, ";\n".join(ddl.sql), before, expected)
        write_progress(session, run.schema, moved)
        return moved

    run.transact(body)
    run.passed("intent")


def _execute(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> tuple[str, ...]:
    """Run the statements; the errors that say that the target has it already."""
    run.check()
    # Right before: a DDL cannot be part of the transaction that proves the fence.
    run.prove()
    if ddl.db and (ddl.db, "") not in plan.touched:
        run.session.execute(f"USE {quote_name(ddl.db)}")
    try:
        ignored = execute_ddl(run.session, ddl.sql)
        run.passed("ddl_executed")
        _require_there(run, plan, ignored)
    except TargetRefused as error:
        _note_refusal(run, plan, ddl)
        raise _refused(plan, ddl, error) from error
    return tuple(f"{code_of(error)}: {error.message}" for error in ignored)


def _require_there(run: ApplyRun, plan: SegmentPlan, ignored: list[TargetRefused]) -> None:
    """The target is as the DDL leaves it; an error may be passed over there, and only there. Raises TargetRefused.

    Without an error too: `IF EXISTS` and `IF NOT EXISTS` make none where nothing was done.
    """
    after = plan.expected_after
    if ignored:
        # Of an operator's own statement nobody knows what it should leave.
        differences = _differences(run, plan) if after is not None else ["its statement was not run"]
        if after is not None and after.moves_rows:
            differences = differences or ["whether its rows are gone does not show"]
    else:
        differences = left_behind(run.session, after, run.target.db_type) if after is not None else []
    if differences:
        raise _not_left(run, ignored, differences)
    for error in ignored:
        log.warning("ddl_error_ignored", ddl_commit_ts=str(plan.ddl_commit_ts), error=str(error))


def _not_left(run: ApplyRun, ignored: list[TargetRefused], differences: list[str]) -> TargetRefused:
    first = ignored[0] if ignored else TargetRefused("it ran", where={"target": run.session.place})
    what = f"{first.message} and the target is not what it would leave: {'; '.join(differences)}"
    return TargetRefused(what, where=first.where)


def _note_refusal(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> None:
    """Remember that nothing ran, where that shows: whatever somebody mends then is no trace of the DDL."""
    differences = _differences(run, plan)
    if _now(run, plan) == run.progress.ddl_before and (differences or _shows_every_ddl(run, plan)):
        _write_intent(run, plan, ddl, refused=True)


def _refused(plan: SegmentPlan, ddl: StatementBatch, error: TargetRefused) -> TargetRefused:
    what = _WORDS.get(ddl.kind, "a DDL")
    return TargetRefused(
        f"{what} failed: {error.message}",
        where={"ddl_commit_ts": plan.ddl_commit_ts, **error.where},
        hint=_ANOTHER_INJECTED if ddl.kind == INJECTED else _ANOTHER_DDL,
    )


def _write_done(run: ApplyRun, plan: SegmentPlan) -> None:
    # Rows that ran ahead of the DDL are not there yet: the checkpoint passes them with the segment.
    reached = run.commit_ts if plan.rows_ahead else plan.ddl_commit_ts

    def body(session: Session) -> Progress:
        moved = run.progress.ddl_done()
        write_progress(session, run.schema, moved)
        checkpoint = run.require_unmoved(session)
        moved_to = checkpoint.moved(reached, plan.schema_version, consistent=False)
        run.checkpoints.write(session, moved_to)
        return moved

    run.transact(body)
    run.commit_ts = reached
    run.passed("ddl_done")


def _is_to_be_executed(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> bool:
    """False when the target shows that the DDL ran."""
    as_before = _now(run, plan) == run.progress.ddl_before
    differences = _differences(run, plan)
    if _was_refused(run.progress) and (as_before or differences):
        # Nothing of it ran, so what is there now is what it starts from, whoever mended it.
        _write_intent(run, plan, ddl)
        return True
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
    actual = read(run.session, plan.expected_after.names, run.target.db_type)
    found = compare(plan.expected_after, actual, indexes=True, target=run.target)
    return [*found, *rows_left(run.session, plan.expected_after.empty)]


def _was_refused(progress: Progress) -> bool:
    return bool(progress.ddl_expected) and Intended.from_json(progress.ddl_expected or "").refused


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
