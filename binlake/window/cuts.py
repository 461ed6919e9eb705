"""The DDL that opens a segment: its batch, or why nothing runs, or why the window ends before it (R-28)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from binlake.common.sql import Dialect
from binlake.ddl.definitions import IGNORED, LandedDdl
from binlake.dialect import build_inexpressible_error, map_ddl
from binlake.dialect.replacement import needs_database
from binlake.errors import CheckpointConflict, ConfigError, TargetRefused
from binlake.statements.batch import INJECTED, REPLACED, UNCHECKED, Phase, StatementBatch, compute_statement_digest
from binlake.statements.ddlsteps import RefusedStatement
from binlake.statements.generation import is_computed
from binlake.statements.literal import quote_name
from binlake.window.manifest import ApplyManifest

_KIND_OF_DECISION: Mapping[str, Literal["replaced", "injected"]] = {"replaced": REPLACED, "injected": INJECTED}
"""The kind of an operator's statement, by its decision."""
WAITS_FOR_DDL = "waits_for_ddl"
"""In the detail of compact's result: the DDL before which the window ends because the target cannot express it."""
_SHOWN_QUERY = 200
_SHOWN = 5


def build_ddl_batch(segment: int, ddl: LandedDdl, dialect: Dialect) -> tuple[StatementBatch | None, str]:
    """(the batch that runs `ddl` at the target, or None; the reason for None). Raises TargetRefused."""
    if ddl.decision == "skip":
        return None, f"left to the operator: {ddl.reason}"
    if kind := _KIND_OF_DECISION.get(ddl.decision):
        use = (f"USE {quote_name(ddl.db)}",) if ddl.db and needs_database(ddl.sql) else ()
        return _build_batch(segment, ddl, (*use, ddl.sql), kind), ""
    if ddl.decision == "refused":
        raise build_inexpressible_error(ddl, dialect, ddl.reason)
    mapped = map_ddl(ddl, dialect)
    return (_build_batch(segment, ddl, mapped.sql, "ddl"), "") if mapped.sql else (None, mapped.reason)


def find_columns_from_log(ddl: LandedDdl, dialect: Dialect) -> dict[str, list[str]]:
    """By table, the new stored generated columns that the target does not compute: their values come from the log."""
    had = {(table.id, column.id) for table in ddl.before.tables for column in table.columns if column.generated_stored}
    found = {
        f"{table.db}.{table.name}": [
            column.name
            for column in table.columns
            if column.generated_stored and (table.id, column.id) not in had and not is_computed(column, table, dialect)
        ]
        for table in ddl.after.tables
    }
    return {table: names for table, names in found.items() if names}


def find_end_before_refused(
    ddls: Sequence[LandedDdl], lo: int, hi: int, dialect: Dialect, may_pass: Callable[[LandedDdl], bool]
) -> tuple[int, LandedDdl | None]:
    """The end of a sink's window (lo, hi] that has no DDL which `dialect` cannot express, and the DDL that it ends
    before.

    So what is before such a DDL does not wait for it. The window is not shortened if nothing is before it: then the
    target has everything up to the DDL, and the DDL is refused. `ddls`: those of the window in their order; `may_pass`:
    whether a refused DDL does not stop the window.
    """
    refused = next((ddl for ddl in ddls if find_refusal(ddl, dialect) and not may_pass(ddl)), None)
    if refused is None:
        return hi, None
    end = refused.since - 1
    while split := [ddl.since - 1 for ddl in ddls if ddl.opens_segment and ddl.since <= end < ddl.commit_ts]:
        end = min(split)
    return (end, refused) if end > lo else (hi, None)


def find_refusal(ddl: LandedDdl, dialect: Dialect) -> TargetRefused | None:
    """The error with which convert would refuse `ddl`; None if `dialect` can express it."""
    if not ddl.opens_segment:
        return None
    try:
        build_ddl_batch(0, ddl, dialect)
    except TargetRefused as error:
        return error
    return None


def name_merge_commands(windows: Iterable[tuple[int, int]]) -> str:
    """The commands that decide again about the DDL of landed windows, for the hint of an error."""
    stage = "`binlake stage merge --replication FILE --lo {} --hi {}`"
    return ", ".join(stage.format(lo, hi) for lo, hi in windows)


def build_refusing_batch(segment: int, ddl: LandedDdl, why: str) -> StatementBatch:
    """A batch that every target refuses with `why`: for a DDL without SQL text whose tables may be set aside.

    So the DDL gets a ledger row if its tables are set aside, and otherwise an error: it is not skipped silently for a
    table that was brought back meanwhile.
    """
    return _build_batch(segment, ddl, (RefusedStatement(why).to_sql(),), "ddl")


def require_outside_ddl(ddls: Iterable[LandedDdl], lo: int, hi: int) -> int:
    """Return `hi` if no row up to it depends on a later DDL.

    `hi` is the end of a sink's window above `lo` that ends inside a landed window. Raises ConfigError.
    """
    split = [ddl for ddl in ddls if ddl.opens_segment and ddl.since <= hi < ddl.commit_ts]
    if not split:
        return hi
    raise ConfigError(
        "the end of a window (window.stop-at, or the requested one) lies inside a DDL: rows up to it may already "
        "depend on it",
        where={"stop-at": hi, "window_from": lo, "ddl_from": split[0].since, "ddl_commit_ts": split[0].commit_ts},
        hint=f"use {split[0].commit_ts} as the end, or one below {split[0].since}",
    )


def require_pinned_cuts(pinned: ApplyManifest, starts: Sequence[int]) -> None:
    """Require the sealed segments. `starts`: the commit_ts at which the window is cut now.

    An older manifest has only the number of segments. Raises CheckpointConflict.
    """
    if pinned.segments == len(starts) + 1 and pinned.cuts in ((), tuple(starts)):
        return
    now, then = Counter(starts), Counter(pinned.cuts)
    moved = sorted((now - then) + (then - now))[:_SHOWN] if pinned.cuts else []
    raise CheckpointConflict(
        "the window was sealed with segments that differ from the table `ddl` now: a DDL or an injection was added, "
        "removed or moved",
        where={"window": pinned.window, "sealed": pinned.segments, "now": len(starts) + 1,
               "at": ", ".join(map(str, moved))},
        hint="if it is blocked by a DDL (`binlake ddl show`), run `binlake ddl release` and then `binlake window run`,"
        " which takes the present choice; otherwise restore the configuration (ddl-injection,"
        f" filter.ignore-txn-commit-ts) that it was sealed with, run {name_merge_commands(_read_windows(pinned))}, and"
        " then `binlake window run`",
    )  # fmt: skip


def _read_windows(pinned: ApplyManifest) -> list[tuple[int, int]]:
    """The landed windows that an open window was derived from."""
    parts = (name.split("-") for name in pinned.windows or (pinned.window,))
    return [(int(lo), int(hi)) for lo, hi in parts]


def require_pinned_texts(
    cuts: Sequence[LandedDdl], configured: Iterable[StatementBatch], pinned: Iterable[StatementBatch]
) -> None:
    """Require that no DDL of an open window was replaced, injected or left out since the window was sealed.

    Only pinned statements may run. `configured`: the batches of `cuts` under the present configuration. The segments
    must be the pinned ones (`require_pinned_cuts`). Raises CheckpointConflict.
    """
    now, then = ({batch.segment: batch.sql for batch in batches} for batches in (configured, pinned))
    for segment, ddl in enumerate(cuts, 1):
        by_operator = ddl.decision in _KIND_OF_DECISION or ddl.reason == IGNORED
        if by_operator and now.get(segment) != then.get(segment):
            raise _build_other_statement_error(then.get(segment, ()), commit_ts=ddl.commit_ts)
    # The segments did not change, so a DDL without a statement now must be due to a changed rule.
    if left := sorted(set(then) - set(now)):
        raise _build_other_statement_error(then[left[-1]], segment=left[-1])


def _build_other_statement_error(pinned: Sequence[str], **place: int) -> CheckpointConflict:
    return CheckpointConflict(
        "this window is open on the target with another statement for a DDL than the configuration has now",
        where={**place, "pinned": "; ".join(pinned)[:300]},
        hint="if the window is blocked by this DDL, run `binlake ddl release` and then `binlake window run`, which"
        " takes the present choice; otherwise restore the configuration that it was sealed with, run `binlake stage"
        " merge` for the landed window of this commit_ts (`binlake window list` shows its bounds), and then `binlake"
        " window run`",
    )


def _build_batch(
    segment: int, ddl: LandedDdl, sql: tuple[str, ...], kind: Literal["ddl", "replaced", "injected"]
) -> StatementBatch:
    unchecked, digest = (UNCHECKED,) * len(sql), compute_statement_digest(sql)
    return StatementBatch(segment, Phase.DDL, 0, "", ddl.table, kind, sql, unchecked, "", 0, 0, digest)


def build_waiting_detail(ddl: LandedDdl, dialect: Dialect) -> dict[str, Any]:
    """`{WAITS_FOR_DDL: {commit_ts, query, text, ways}}` for a DDL that `dialect` refuses; empty if it does not."""
    refusal = find_refusal(ddl, dialect)
    if refusal is None:
        return {}
    found = {"commit_ts": str(ddl.commit_ts), "query": ddl.query[:_SHOWN_QUERY]}
    return {WAITS_FOR_DDL: {**found, "text": refusal.message, "ways": refusal.hint}}


def describe_waiting_ddl(detail: Mapping[str, Any]) -> str:
    """What a result says about the DDL that waits, in words for people; empty = none waits."""
    found = detail.get(WAITS_FOR_DDL)
    if not found:
        return ""
    return (
        f"the window ends before the DDL at commit_ts {found['commit_ts']}, which waits, and all later changes with it:"
        f" {found['text']} ({found['query']}). Hint: {found['ways']}"
    )
