"""The plan of one segment, from the window's cuts and from what is known of its batches before they are read.

Sources: DESIGN 3.6, DESIGN 4; hazards R-04 (what a restart compares), R-18 (definitions of the segment).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from binlake.dialect.collations import Dialect
from binlake.dialect.replacement import empties_table, replaced_names
from binlake.rows.schema import Action
from binlake.statements.batch import INJECTED, REPLACED, StatementBatch
from binlake.target.claim.segments import SegmentPlan
from binlake.target.definitions.definitions import Name, expected_after, expected_of
from binlake.window.definitions import LandedDdl, Segments, WindowDefinitions

# What these did cannot be told from running them again: they swap or move whole tables.
_NOT_REPEATABLE = frozenset({Action.RENAME_TABLE, Action.RENAME_TABLES, Action.EXCHANGE_PARTITION})


def _is_repeatable(cut: LandedDdl, ddl: StatementBatch | None, *, own: bool) -> bool:
    if own and ddl is not None:
        # What other statements of an operator did cannot be told from running them again, either.
        return empties_table(ddl.sql[-1])
    return cut.action not in _NOT_REPEATABLE


@dataclass(frozen=True)
class Content:
    """What a segment holds: the `tables` that get rows, `rows`, `bytes` of text (None = not counted), and its DDL.

    `ordered`: the rows are batches of phase ORDERED.
    """

    tables: Sequence[Name]
    rows: int
    bytes: int | None = None
    ordered: bool = False
    ddl: StatementBatch | None = None


@dataclass(frozen=True)
class WindowPlans:
    """Plans of the segments of a window: `cuts` are the DDL that open them, `versions` the schema's at lo and hi."""

    definitions: WindowDefinitions
    segments: Segments
    cuts: Sequence[LandedDdl]
    versions: tuple[int, int]
    dialect: Dialect

    def plan(self, number: int, content: Content) -> SegmentPlan:
        """The plan of segment `number`. Raises SchemaError for rows of a table without a definition."""
        since, until = self.segments.bounds(number)
        tables = [self.definitions.within(*name, since, until) for name in content.tables]
        cut = self.cuts[number - 1] if content.ddl is not None else None
        after = expected_after(cut.before, cut.after, self.dialect, cut.action) if cut is not None else None
        touched = list(after.names) if after is not None else []
        own = content.ddl is not None and content.ddl.kind in (REPLACED, INJECTED)
        if cut is not None and content.ddl is not None and own:
            # Nobody says what an operator's statement leaves; that it ran shows by any change of what it names.
            after = None
            touched = list(dict.fromkeys([*touched, *replaced_names(content.ddl.sql[-1], cut.db)]))
        return SegmentPlan(
            number=number,
            end_ts=until - 1,
            schema_version=self._version(number),
            ddl=content.ddl,
            ddl_commit_ts=cut.commit_ts if cut is not None else 0,
            touched=tuple(touched),
            expected_after=after,
            repeatable=cut is None or _is_repeatable(cut, content.ddl, own=own),
            expected=expected_of(tables, self.dialect) if tables else None,
            rows=content.rows,
            bytes=content.bytes,
            ordered=content.ordered,
            # Behind an injected statement its commit_ts is not downstream yet: a DDL or rows may have the same.
            rows_ahead=cut is not None and (cut.since < cut.commit_ts or cut.decision == "injected"),
        )

    def _version(self, number: int) -> int:
        if number == len(self.segments.starts):
            return self.versions[1]
        # A DDL that rows ran ahead of may stand before one of a lesser version.
        return max([self.versions[0], *(cut.schema_version for cut in self.cuts[:number])])
