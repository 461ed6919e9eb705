"""The input of an apply: the segments of a window in order, and their batches as a stream.

Nothing is derived here: a segment's plan follows from the window's cuts and from what is known about its batches before
they are read. Sources: DESIGN 3.6, 4; hazards R-04 (what a restart compares), R-18 (definitions of the segment), R-62.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from binlake.common.sql import Dialect
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import LandedDdl, Segments, WindowDefinitions
from binlake.dialect.replacement import empties_table, find_replaced_names
from binlake.errors import Permanent
from binlake.rows.schema import Action
from binlake.statements.batch import INJECTED, PHASES, REPLACED, Phase, StatementBatch
from binlake.target.definitions.definitions import ExpectedState, expect_after_ddl, expect_tables
from binlake.target.definitions.forms import Name
from binlake.window.manifest import ApplyManifest

# Not repeatable, as they swap or move whole tables.
_NOT_REPEATABLE = frozenset({Action.RENAME_TABLE, Action.RENAME_TABLES, Action.EXCHANGE_PARTITION})

Hook = Callable[[str], None]
"""Called with the name of the step that was just completed: `opened`, `intent`, `ddl_executed`, `ddl_done`, `batch`,
`before_commit`, `after_commit`, `checkpoint`, `aside`, `closed`. Used for fault injection; optional."""


@dataclass(frozen=True)
class SegmentPlan:
    """One segment. `number` counts from 0. Once the segment is applied, everything at or below `end_ts` is downstream.

    `ddl` (None in segment 0 of most windows) runs first and alone, at position `ddl_commit_ts`. `touched`: the (db,
    table) that it changes, (db, "") for a database; `expected_after`: their definitions after it; `repeatable`: running
    it twice in a row has the same effect as once. `expected`: definitions of the tables that get rows. `rows`: the
    segment's rows, `bytes`: the size of its statements' text, both only if known beforehand. `ordered`: its batches are
    of phase ORDERED, derived for mode ordered. `rows_ahead`: some changes with a commit_ts at or below `ddl_commit_ts`
    are applied after the DDL. `copies`: (copy, table), quoted, for the tables that have batches of phase KEEP.
    """

    number: int
    end_ts: int
    schema_version: int
    ddl: StatementBatch | None = None
    ddl_commit_ts: int = 0
    touched: tuple[tuple[str, str], ...] = ()
    expected_after: ExpectedState | None = None
    repeatable: bool = True
    expected: ExpectedState | None = None
    rows: int | None = None
    bytes: int | None = None
    ordered: bool = False
    rows_ahead: bool = False
    copies: tuple[tuple[str, str], ...] = ()

    @property
    def tables(self) -> set[tuple[str, str]]:
        """(db, table) of everything that its DDL changes or its rows go into."""
        getting = self.expected.tables if self.expected is not None else ()
        return {name for name in (*self.touched, *getting) if name[1]}

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The phases that its batches may have, in order (modes atomic and parallel)."""
        return PHASES if self.copies else (Phase.DELETE, Phase.WRITE)


@dataclass(frozen=True)
class SegmentContent:
    """What a segment contains: the `tables` that get rows, `rows`, `bytes` of text (None = not counted), and its DDL.

    `ordered`: the rows are batches of phase ORDERED.
    """

    tables: Sequence[Name]
    rows: int
    bytes: int | None = None
    ordered: bool = False
    ddl: StatementBatch | None = None


@dataclass(frozen=True)
class WindowPlans:
    """Plans a window's segments. `cuts`: the DDL that start segments; `versions`: the schema versions at lo and hi."""

    definitions: WindowDefinitions
    segments: Segments
    cuts: Sequence[LandedDdl]
    versions: tuple[int, int]
    dialect: Dialect

    def plan_segment(self, number: int, content: SegmentContent) -> SegmentPlan:
        """The plan of segment `number`. Raises SchemaError for rows of a table without a definition."""
        since, until = self.segments.find_bounds(number)
        tables = [self.definitions.require_definition_within(*name, since, until) for name in content.tables]
        cut = self.cuts[number - 1] if content.ddl is not None else None
        after = expect_after_ddl(cut.before, cut.after, self.dialect, cut.action) if cut is not None else None
        touched = list(after.names) if after is not None else []
        own = content.ddl is not None and content.ddl.kind in (REPLACED, INJECTED)
        if cut is not None and content.ddl is not None and own:
            # The result of an operator's statement is unknown. Any change of a table that it names proves that it ran.
            after = None
            touched = list(dict.fromkeys([*touched, *find_replaced_names(content.ddl.sql[-1], cut.db)]))
        return SegmentPlan(
            number=number,
            end_ts=until - 1,
            schema_version=self._compute_version(number),
            ddl=content.ddl,
            ddl_commit_ts=cut.commit_ts if cut is not None else 0,
            touched=tuple(touched),
            expected_after=after,
            repeatable=cut is None or _is_repeatable(cut, content.ddl, own=own),
            expected=expect_tables(tables, self.dialect) if tables else None,
            rows=content.rows,
            bytes=content.bytes,
            ordered=content.ordered,
            # An injected statement does not put its commit_ts downstream: a DDL or rows may have the same commit_ts.
            rows_ahead=cut is not None and (cut.since < cut.commit_ts or cut.decision == "injected"),
        )

    def _compute_version(self, number: int) -> int:
        if number == len(self.segments.starts):
            return self.versions[1]
        # A DDL that is applied before earlier rows may precede a DDL with a lower schema version.
        return max([self.versions[0], *(cut.schema_version for cut in self.cuts[:number])])


def _is_repeatable(cut: LandedDdl, ddl: StatementBatch | None, *, own: bool) -> bool:
    if own and ddl is not None:
        # Whether an operator's statement is repeatable is unknown, except for one that empties its table.
        return empties_table(ddl.sql[-1])
    return cut.action not in _NOT_REPEATABLE


def is_within(target: TargetSection, rows: int, size: int) -> bool:
    """True when one transaction may hold `rows` rows in `size` bytes of text."""
    return rows <= target.max_segment_rows and size <= target.max_segment_bytes


def require_within(target: TargetSection, window: str, segment: int, rows: int, size: int) -> None:
    """Raises Permanent for a segment above the limits of one transaction (hazards R-30)."""
    if rows > target.max_segment_rows:
        raise build_too_many_rows_error(window, segment, rows, target.max_segment_rows)
    if size > target.max_segment_bytes:
        raise Permanent(
            f"segment {segment} has at least {size} bytes of text, above the limit of {target.max_segment_bytes}:"
            " too many for one transaction",
            where={"window": window, "segment": segment},
            hint='raise target.max-segment-bytes, or set target.mode = "auto": such a segment is applied in parallel',
        )


def build_too_many_rows_error(window: str, segment: int, rows: int, most: int) -> Permanent:
    """The error for a segment above `target.max-segment-rows` (hazards R-30)."""
    return Permanent(
        f"segment {segment} has at least {rows} rows, above the limit of {most}: too many for one transaction",
        where={"window": window, "segment": segment},
        hint='set target.mode = "auto": such a segment is applied in parallel; or raise target.max-segment-rows; or'
        " end the sink's window earlier: set window.stop-at to a commit_ts inside the window and run compact again",
    )


class StatementSource(Protocol):
    """The pinned statements of a window. Every call of a method returns the same."""

    def list_segments(self) -> list[SegmentPlan]:
        """All segments in order; the last one ends at the window's hi."""

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """The batches of a segment and phase, in order."""


class WriteAhead(Protocol):
    """Stores a window's statements outside source and lake while it is applied (DESIGN 3.10), see `relay`."""

    def write_ahead(self, manifest: ApplyManifest, source: StatementSource, check: Callable[[], None]) -> None:
        """Make all statements durable. `check` is called between batches and may raise; then nothing is applied."""

    def delete_applied(self, commit_ts: int) -> None:
        """Delete everything at or below the checkpoint `commit_ts`: it is no longer needed."""


@dataclass
class ApplyResult:
    """What one call did. `state`: "applied", or "already" if the checkpoint was at or past hi and nothing was written.

    `rows`, `batches`, `ddls`: executed by this call; `replaced` and `injected`: how many of the DDL are an operator's;
    `ignored`: errors of DDL whose effect the target already had; `modes`: number of segments per apply mode; `tables`:
    (db, table) that got rows or a DDL from this call; `passed_over`: batches and DDL that were skipped or run only in
    part because their tables are set aside; `aside`: all tables set aside, `newly_aside`: those set aside by this call;
    `absent`: keys to delete that had no row; `seconds` of wall time.
    """

    state: str
    lo: int
    hi: int
    segments: int = 0
    rows: int = 0
    batches: int = 0
    ddls: int = 0
    replaced: int = 0
    injected: int = 0
    ignored: list[str] = field(default_factory=list)
    modes: dict[str, int] = field(default_factory=dict)
    tables: set[tuple[str, str]] = field(default_factory=set)
    passed_over: int = 0
    aside: list[dict[str, str]] = field(default_factory=list)
    newly_aside: list[dict[str, str]] = field(default_factory=list)
    absent: int = 0
    seconds: float = 0.0
