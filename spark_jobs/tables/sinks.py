"""What all sinks need from the lake: whether their range is landed and merged, and the segments of their window."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from binlake.base.lakecolumns import OfSegment
from binlake.ddl.definitions import LandedDdl, Segments, Shapes, WindowDefinitions, use_bytewise_collations
from binlake.ddl.targets import Naming, TargetTables
from binlake.dialect import derive_bytewise_table
from binlake.errors import IncompleteWindow, LostRange
from binlake.lake.continuity import require_windows
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.sharedtargets import read_target_tables_at
from binlake.rows.schema import TableDef
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.passed import MergedWindow
from binlake.spark_jobs.tables.unsealed import parse_merged
from binlake.window.derived import Merged, MergeManifest, read_manifest_of
from binlake.window.events import EventRow
from binlake.window.manifest import format_window_name


@dataclass(frozen=True)
class SinkWindow:
    """A sink's window (lo, hi]: its DDL in commit order, its segments, and the definitions by place.

    `base`: the source's tables at lo, by the target's names; `versions`: the source's schema versions at lo and hi;
    `shown`: maps a table to what both sides share, if they differ.
    """

    bounds: Bounds
    ddls: tuple[LandedDdl, ...]
    segments: Segments
    definitions: WindowDefinitions
    base: TargetTables
    versions: tuple[int, int]
    shown: Callable[[TableDef], TableDef] | None = None

    def with_shapes(self, shapes: Shapes) -> SinkWindow:
        """The window with table definitions reduced to what both sides share, if the target's tables differ."""
        if not shapes:
            return self
        ddls, shown = shapes.follow(self.ddls), partial(_shape_table, shapes, self.shown)
        return replace(self, ddls=ddls, definitions=WindowDefinitions(self.base, ddls, shown), shown=shown)

    @property
    def cuts(self) -> tuple[LandedDdl, ...]:
        """The DDL that open segments: the k-th one opens segment k, counted from 1."""
        return tuple(ddl for ddl in self.ddls if ddl.opens_segment)


def require_merged(ctx: StageContext, lo: int, hi: int, given: MergedWindow | None = None) -> Merged:
    """The total of what merge sealed for (lo, hi]; windows that overlap the range count as a whole.

    `given`: what merge has just sealed in this process. Raises IncompleteWindow if a window is not merged,
    DamagedManifest, LostRange if one was lost since.
    """
    if given is not None and given.bounds == Bounds(lo, hi):
        return given.merged
    merged = _merge_events(ctx, lo, hi)
    require_windows(ctx.paths, merged.values())
    landed = ctx.windows.list_landed((lo, hi))
    missing = [format_window_name(*window) for window in landed if window not in merged]
    if missing or not landed or landed[0][0] > lo or landed[-1][1] < hi:
        raise IncompleteWindow(
            "a sink needs a range that is not completely landed and merged",
            where={"window": format_window_name(lo, hi), "not_merged": ",".join(missing)},
            hint="run land and merge for that range first",
        )
    return Merged.add_up(_read_merged(ctx, merged[window]) for window in landed)


def _read_merged(ctx: StageContext, event: EventRow) -> Merged:
    """What merge sealed for the window of `event`. Raises DamagedManifest."""
    if not event["manifest"]:
        return parse_merged(event)
    name, lo, hi = ctx.replication.name, event["lo"], event["hi"]
    return read_manifest_of(
        MergeManifest, event["manifest"], name, lo, hi, hint="run merge of that window again"
    ).merged


def read_sql_window(ctx: StageContext, bounds: Bounds, merged: Merged, given: MergedWindow | None = None) -> SinkWindow:
    """The window as the SQL sink sees it: its DDL open segments over all its landed windows."""
    window, target = read_mirror_window(ctx, bounds, merged, given), ctx.replication.target
    ddls, shown = window.ddls, None
    if target is not None and not ctx.replication.source.new_collation:
        ddls = tuple(use_bytewise_collations(ddl, target.db_type) for ddl in ddls)
        shown = partial(derive_bytewise_table, dialect=target.db_type)
    segments = Segments(bounds.lo, bounds.hi, tuple(ddl.since for ddl in ddls if ddl.opens_segment))
    definitions = WindowDefinitions(window.base, ddls, shown)
    return SinkWindow(bounds, ddls, segments, definitions, window.base, window.versions, shown)


def read_mirror_window(
    ctx: StageContext, bounds: Bounds, merged: Merged, given: MergedWindow | None = None
) -> SinkWindow:
    """The window as the mirrors see it: with the source's definitions, in one segment.

    `given`: what merge derived in this process, which has the schemas of its window.
    """
    ddls = tuple(read_landed_ddls(ctx.paths, bounds.lo, bounds.hi)) if merged.ddls else ()
    if given is not None and given.bounds == bounds:
        _require_all_ddls(ctx, given, len(ddls))
        first, last = given.schemas
    else:
        first, last = ctx.schemas.read_state_at(bounds.lo), ctx.schemas.read_state_at(bounds.hi)
    base = read_target_tables_at(ctx.paths, Naming(ctx.rules), bounds.lo, first)
    segments, definitions = Segments(bounds.lo, bounds.hi, ()), WindowDefinitions(base, ddls)
    return SinkWindow(bounds, ddls, segments, definitions, base, (first.version, last.version))


def _require_all_ddls(ctx: StageContext, given: MergedWindow, found: int) -> None:
    """Require the DDL that merge has written in this process: nobody asks the table's log again in between."""
    if found != given.merged.ddls:
        raise LostRange(
            f"the lake's table `ddl` has {found} DDL of a window, and merge has just written {given.merged.ddls}",
            where={"window": given.bounds.window, "lake": ctx.paths.root},
            hint="another hand has changed the table: restore its files from a copy, or derive the window again:"
            f" `binlake stage merge --replication FILE --lo {given.bounds.lo} --hi {given.bounds.hi}`",
        )


def _shape_table(shapes: Shapes, shown: Callable[[TableDef], TableDef] | None, table: TableDef) -> TableDef:
    return shapes.derive_base(shown(table) if shown else table)


def read_target_tables(ctx: StageContext, ts: int) -> TargetTables:
    """The tables under the target's names, as they are after the last DDL at or before `ts`."""
    return read_target_tables_at(ctx.paths, Naming(ctx.rules), ts, ctx.schemas.read_state_at(ts))


def find_tables_at_end(ctx: StageContext, base: TargetTables, hi: int, ddls: Sequence[LandedDdl]) -> TargetTables:
    """The tables at hi, given the tables at lo (`base`) and the `ddls` between."""
    return read_target_tables(ctx, hi) if ddls else base


def build_window_predicate(bounds: Bounds) -> str:
    """The predicate of a window's rows in a table partitioned by window."""
    return f"{OfSegment.WINDOW} = '{bounds.window}'"


def commit_note(ctx: StageContext, stage: str, bounds: Bounds) -> dict[str, str]:
    """The note stored with a commit to the lake."""
    return {"run": ctx.run_id, "window": bounds.window, "stage": stage}


def read_merged_row_counts(ctx: StageContext, lo: int, hi: int) -> dict[tuple[int, int], int]:
    """Row changes of each merged window that overlaps (lo, hi]."""
    return {window: event["rows"] for window, event in _merge_events(ctx, lo, hi).items()}


def _merge_events(ctx: StageContext, lo: int, hi: int) -> dict[tuple[int, int], EventRow]:
    """By (lo, hi), the last event of merge of each window that overlaps (lo, hi]."""
    events = ctx.windows.read_events(stage="merge", state="done", within=(lo, hi), sealed=True)
    return {(event["lo"], event["hi"]): event for event in events}
