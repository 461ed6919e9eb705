"""Applies a DDL exactly once, though it commits implicitly: intent, execute, done (hazards R-04).

A run that finds an intent checks the target to learn whether the DDL ran.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import structlog

from binlake.errors import Permanent, TargetRefused
from binlake.statements.batch import INJECTED, REPLACED, StatementBatch
from binlake.statements.literal import quote_name
from binlake.target.claim.claim import ApplyRun
from binlake.target.claim.progress import AppliedAs, TargetProgress, WindowLedger, write_progress
from binlake.target.ddl.execution import drop_shadow_columns, execute_ddl, is_half_converted
from binlake.target.ddl.proof import (
    Evidence,
    OperatorProof,
    RenameMarker,
    StepProof,
    Verdict,
    judge,
    list_differences,
    read_evidence,
)
from binlake.target.definitions.definitions import ExpectedState, find_left_behind
from binlake.target.definitions.forms import Name
from binlake.target.segments import SegmentPlan
from binlake.target.session.failures import get_error_code
from binlake.target.session.session import TargetSession

log = structlog.get_logger()

_WORDS = {REPLACED: "the replacement of a DDL", INJECTED: "an injected statement"}
_ANOTHER_DDL = (
    "fix the target and run finalize again; or name the commit_ts in ddl-replacement with a statement that the target"
    " accepts, or in filter.ignore-txn-commit-ts once you have run it by hand; then `binlake ddl release`, and merge,"
    " compact and convert again; or let the other tables continue without it: `binlake table aside`, then finalize"
)
# An injection's commit_ts belongs to a change of the source, which ddl-replacement and ignore-txn would affect.
_ANOTHER_INJECTED = (
    "fix the target and run finalize again; or change or remove this `ddl-injection`, then `binlake ddl release`, and"
    " merge, compact and convert again"
)


@dataclass(frozen=True)
class DdlIntent:
    """The record of a DDL to be run: the definitions that it changes, before and after (hazards R-04).

    `touched`: the names whose definitions show whether it ran; `after`: None if its result is unknown.

    `refused`: the target answered with an error, and the DDL had no effect. `before`: the target's evidence before the
    DDL; None in an intent of a version that did not store it.
    """

    touched: tuple[Name, ...]
    after: ExpectedState | None
    refused: bool = False
    before: Evidence | None = None

    def to_json(self) -> str:
        """JSON for the column binlake_progress.ddl_expected."""
        after = json.loads(self.after.to_json()) if self.after is not None else None
        before = self.before.to_dict() if self.before is not None else None
        values = {"touched": self.touched, "after": after, "refused": self.refused, "before": before}
        return json.dumps(values, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> DdlIntent:
        """Parse what `to_json` wrote. An older version stored only the expectation, which names all tables."""
        raw = json.loads(text)
        if "touched" not in raw:
            expected = ExpectedState.from_json(text)
            return cls(tuple(expected.names), expected)
        after = ExpectedState.from_json(json.dumps(raw["after"])) if raw["after"] is not None else None
        before = Evidence(**raw["before"]) if raw.get("before") else None
        return cls(tuple((db, name) for db, name in raw["touched"]), after, raw.get("refused", False), before)


@dataclass(frozen=True)
class _Proofs:
    """What is made at the target before an intent, so that it shows later what ran."""

    marker: RenameMarker | None
    operator: OperatorProof | None
    steps: StepProof | None

    @classmethod
    def of(cls, run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> _Proofs:
        """Those for `ddl`."""
        names = run.schema, run.manifest.replication, plan.ddl_commit_ts
        return cls(RenameMarker.of(*names, ddl.sql[-1]), OperatorProof.of(*names, ddl), StepProof.of(*names, ddl))

    def list(self) -> list[RenameMarker | OperatorProof | StepProof]:
        """Those that there are."""
        return [proof for proof in (self.marker, self.operator, self.steps) if proof is not None]


@dataclass(frozen=True)
class DdlOutcome:
    """`executed`: False when the target already had the result. `ignored`: the errors of the target that were ignored.

    `passed_over`: the DDL was skipped, as one of its tables is set aside.
    """

    executed: bool
    ignored: tuple[str, ...] = ()
    passed_over: bool = False


def apply_ddl(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> DdlOutcome:
    """Apply the DDL of `plan` and move the checkpoint to its commit_ts.

    Raises Permanent when an intent is found and the target does not prove whether the DDL ran; TargetRefused when the
    target refuses the statement.
    """
    if run.progress.ddl_state == "done":
        return DdlOutcome(False)
    if run.passes_over_ddl(plan):
        _write_done(run, plan, passed_over=ddl)
        log.warning("ddl_passed_over", ddl_commit_ts=str(plan.ddl_commit_ts), ddl=ddl.sql[-1][:200])
        return DdlOutcome(False, passed_over=True)
    try:
        return _execute_once(run, plan, ddl)
    except Permanent as error:
        # An operator's statement may affect tables that it does not name; a statement on a database always does.
        own = type(error) in (TargetRefused, Permanent) and ddl.kind == "ddl"
        if own and all(table for _, table in plan.touched):
            error.tables = plan.touched
        raise


def _execute_once(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch) -> DdlOutcome:
    ignored: tuple[str, ...] = ()
    proofs = _Proofs.of(run, plan, ddl)
    missing = ddl.sql
    if run.progress.ddl_state == "intent":
        missing = _find_missing(run, plan, ddl, proofs)
    else:
        _write_intent(run, plan, ddl, proofs)
    if missing:
        ignored = _execute(run, plan, ddl, proofs, missing)
    _write_done(run, plan)
    for proof in proofs.list():
        proof.remove(run.session)
    return DdlOutcome(bool(missing), ignored)


def _write_intent(
    run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch, proofs: _Proofs, *, refused: bool = False
) -> None:
    for proof in proofs.list():
        run.claim.prove()
        proof.make(run.session)
    before = _read_evidence_now(run, plan)
    expected = DdlIntent(plan.touched, plan.expected_after, refused, before).to_json()

    def write_intent(session: TargetSession) -> TargetProgress:
        moved = run.progress.with_intent(plan.ddl_commit_ts, ";\n".join(ddl.sql), before.texts, expected)
        write_progress(session, run.schema, moved)
        return moved

    run.transact(write_intent)
    run.claim.notify("intent")


def _execute(
    run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch, proofs: _Proofs, missing: tuple[str, ...]
) -> tuple[str, ...]:
    """Run the statements `missing`; return the errors which mean that the target already has the result."""
    run.claim.check()
    # Prove the fence right before: a DDL cannot be part of the transaction that proves it.
    run.claim.prove()
    if ddl.db and (ddl.db, "") not in plan.touched:
        run.session.execute(f"USE {quote_name(ddl.db)}")
    try:
        marker = proofs.marker
        statements = missing if marker is None else (*missing[:-1], marker.add_to_list(missing[-1]))
        ignored = execute_ddl(run.session, statements)
        run.claim.notify("ddl_executed")
        _require_result(run, plan, ignored)
    except TargetRefused as error:
        drop_shadow_columns(run.session, plan.touched, ddl.sql)
        verdict = _judge_now(run, plan, proofs)
        if verdict == "before":
            # Record that the DDL had no effect, so that a later repair by hand is not mistaken for the DDL.
            _write_intent(run, plan, ddl, proofs, refused=True)
        raise _build_refusal_error(run, plan, ddl, error, is_clear=verdict != "unknown") from error
    return tuple(f"{get_error_code(error)}: {error.message}" for error in ignored)


def _require_result(run: ApplyRun, plan: SegmentPlan, ignored: list[TargetRefused]) -> None:
    """Require that the target matches the DDL's result; only then may an error be ignored. Raises TargetRefused.

    Also checked without an error: `IF EXISTS` and `IF NOT EXISTS` succeed even if nothing was done.
    """
    after = plan.expected_after
    if ignored:
        # The result of an operator's statement is unknown.
        lacking = (
            list_differences(run.session, run.target, after) if after is not None else ["its statement was not run"]
        )
        if after is not None and (after.moves_rows or _swaps_names_only(plan)):
            lacking = lacking or ["the target does not show whether the DDL removed or moved its rows"]
    else:
        lacking = find_left_behind(run.session, after, run.target.db_type) if after is not None else []
    if lacking:
        raise _build_missing_result_error(run, ignored, lacking)
    for error in ignored:
        log.warning("ddl_error_ignored", ddl_commit_ts=str(plan.ddl_commit_ts), error=str(error))


def _swaps_names_only(plan: SegmentPlan) -> bool:
    """True for a rename that frees no name: the same names exist if it did not run."""
    after = plan.expected_after
    return not plan.repeatable and after is not None and None not in after.tables.values()


def _build_missing_result_error(run: ApplyRun, ignored: list[TargetRefused], lacking: list[str]) -> TargetRefused:
    first = ignored[0] if ignored else TargetRefused("it ran", where={"target": run.session.place})
    what = f"{first.message} and the target does not match its result: {'; '.join(lacking)}"
    return TargetRefused(what, where=first.where)


def _build_refusal_error(
    run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch, error: TargetRefused, *, is_clear: bool
) -> TargetRefused:
    what = _WORDS.get(ddl.kind, "a DDL")
    hint = _ANOTHER_INJECTED if ddl.kind == INJECTED else _ANOTHER_DDL
    return TargetRefused(
        f"{what} failed: {error.message}",
        where={"ddl_commit_ts": plan.ddl_commit_ts, **error.where},
        hint=hint if is_clear else f"if it ran before, {_format_set_done_hint(run)}; else {hint}",
    )


def _write_done(run: ApplyRun, plan: SegmentPlan, passed_over: StatementBatch | None = None) -> None:
    # With `rows_ahead`, rows with a lower commit_ts follow the DDL: the checkpoint passes them with the segment.
    reached = run.commit_ts if plan.rows_ahead else plan.ddl_commit_ts

    def write_done(session: TargetSession) -> TargetProgress:
        moved = run.progress.with_ddl_done()
        if passed_over is not None:
            WindowLedger.of(run.schema, run.manifest).write(session, [(passed_over, AppliedAs.ASIDE)])
        write_progress(session, run.schema, moved)
        checkpoint = run.lock_unmoved_checkpoint(session)
        run.checkpoints.write(session, checkpoint.move_to(reached, plan.schema_version, consistent=False))
        return moved

    run.transact(write_done)
    run.commit_ts = reached
    run.claim.notify("ddl_done")


def _find_missing(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch, proofs: _Proofs) -> tuple[str, ...]:
    """The statements that are to be run: none if the target proves that the DDL ran, those after an ALTER if it proves
    that this was the last one. Raises Permanent if the target proves none of this.
    """
    if is_half_converted(run.session, plan.touched, ddl.sql):
        return ddl.sql
    if proofs.steps is not None and not _read_intent(run).refused:
        run.claim.prove()
        missing = proofs.steps.find_missing(run.session)
        if missing is not None:
            return missing
    return ddl.sql if _must_execute(run, plan, ddl, proofs) else ()


def _must_execute(run: ApplyRun, plan: SegmentPlan, ddl: StatementBatch, proofs: _Proofs) -> bool:
    """False when the target proves that the DDL ran. Raises Permanent if the target proves neither state."""
    intent = _read_intent(run)
    if plan.repeatable and plan.expected_after is None:
        # An operator's TRUNCATE leaves no trace, and running it twice has the same effect as once.
        return True
    verdict = _judge_now(run, plan, proofs)
    if intent.refused and (verdict == "before" or _is_still_needed(run, plan, intent)):
        # The DDL had no effect, so it starts from the present state, even if somebody changed that by hand.
        _write_intent(run, plan, ddl, proofs)
        return True
    if verdict != "unknown":
        return verdict == "before"
    if plan.repeatable and intent.before is not None and not intent.before.shows:
        # Nothing was written since the intent, so running it twice has the same result as once.
        return True
    raise _build_unclear_error(run, plan, intent.before)


def _is_still_needed(run: ApplyRun, plan: SegmentPlan, intent: DdlIntent) -> bool:
    """True if, as far as definitions show, nobody ran the refused DDL by hand meanwhile."""
    if plan.expected_after is not None and plan.expected_after.is_in_rows_alone:
        return False
    now = _read_evidence_now(run, plan)
    return now.shows or (intent.before is not None and now.texts == intent.before.texts)


def _read_intent(run: ApplyRun) -> DdlIntent:
    return DdlIntent.from_json(run.progress.ddl_expected or "")


def _read_evidence_now(run: ApplyRun, plan: SegmentPlan) -> Evidence:
    return read_evidence(run.session, run.target, plan.touched, plan.expected_after)


def _judge_now(run: ApplyRun, plan: SegmentPlan, proofs: _Proofs) -> Verdict:
    """Judge from the target whether the DDL of the stored intent ran."""
    before = _read_intent(run).before
    if before is None:
        return "unknown"
    if proofs.marker is not None:
        return proofs.marker.reach_verdict(run.session)
    now = _read_evidence_now(run, plan)
    if proofs.operator is not None:
        return proofs.operator.reach_verdict(run.session, before, now)
    return judge(before, now, plan.expected_after)


def _build_unclear_error(run: ApplyRun, plan: SegmentPlan, before: Evidence | None) -> Permanent:
    progress = run.progress
    names = ", ".join(f"{db}.{table}" if table else db for db, table in plan.touched)
    if before is None:
        finding = "the version of Binlake that began it recorded no evidence from before it"
    elif before.shows:
        lacking = "; ".join(list_differences(run.session, run.target, plan.expected_after))
        finding = f"the target shows neither the definitions before it nor those after it: {lacking}"
    elif plan.expected_after is None and _read_evidence_now(run, plan).texts != before.texts:
        finding = "its tables have changed, and nothing proves that this is its result"
    else:
        finding = "the target looks the same before and after it, which does not show whether it ran"
    return Permanent(
        f"a DDL was begun, but {finding}",
        where={"ddl_commit_ts": plan.ddl_commit_ts, "tables": names, "ddl": (progress.ddl_sql or "")[:300]},
        hint=f"look at these tables; then {_format_set_done_hint(run)}, or to '' if it did not run",
    )


def _format_set_done_hint(run: ApplyRun) -> str:
    return f"set ddl_state in {run.schema}.binlake_progress to 'done'"
