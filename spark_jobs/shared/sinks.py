"""What all sinks need from the lake: whether their range is landed and merged, the segments of their window, its rows.

Where tables that share a target wait for each other's DDL (pessimistic mode), rows of the window that are held are left
out; rows that the window releases are added, from earlier windows in the lake.

Manifests of merge and compact are also read from the events of an older version, which stored their values in `detail`.
A lake keeps such events as long as its history, and a window may be in progress while Binlake is upgraded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from binlake.changes.net.events import COLUMNS, SOURCE
from binlake.common.lakecolumns import Mutation, OfSegment
from binlake.ddl.definitions import (
    LandedDdl,
    Segments,
    SegmentTable,
    Shapes,
    WindowDefinitions,
    use_bytewise_collations,
)
from binlake.ddl.shardlocks import Hold
from binlake.ddl.sharedrows import ReleasedRange, apply_holds, find_released_ranges
from binlake.ddl.targets import Naming, TargetTables
from binlake.dialect import derive_bytewise_table
from binlake.errors import DamagedManifest, IncompleteWindow, LostRange
from binlake.lake.continuity import require_windows
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.mutations import count_touched_tables
from binlake.lake.sharedtargets import read_locks, read_target_tables_at
from binlake.lake.tables import MUTATION
from binlake.rows.schema import TableDef
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.rows import MappedRows, Rows, cut_rows, list_history_rows, pack_rows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.window.derived import CompactManifest, Merged, MergeManifest, read_manifest_of
from binlake.window.events import EventRow
from binlake.window.manifest import format_window_name

COMPACT_AGAIN = "run compact again for this window, then convert"
_GIVEN_TASK_BYTES = 16 << 20
"""Bytes of given rows that a task of this process takes."""
_NEEDED = (*COLUMNS, *SOURCE)
_NARROW = (
    Mutation.COMMIT_TS,
    Mutation.START_TS,
    Mutation.DB,
    Mutation.TABLE,
    Mutation.SOURCE_DB,
    Mutation.SOURCE_TABLE,
)


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


def parse_merged(event: EventRow) -> Merged:
    """What merge recorded of a window in `event`."""
    detail = json.loads(event["detail"] or "{}")
    left_out = detail.get("filtered") or detail.get("skipped_commit_ts")
    ddls = int(detail.get("ddl", 0)) + int(detail.get("ddl_skipped", 0))
    return Merged(event["rows"], ddls, not left_out, (format_window_name(event["lo"], event["hi"]),))


def build_compact_manifest(ctx: StageContext, event: EventRow, merged: Merged) -> CompactManifest:
    """The compact manifest of a window, from compact's `event` and from `merged`. Raises DamagedManifest."""
    detail = json.loads(event["detail"] or "{}")
    lo, hi = event["lo"], event["hi"]
    if "ordered" not in detail:
        where = {"window": format_window_name(lo, hi)}
        raise DamagedManifest("the event of compact has no manifest", where=where, hint=COMPACT_AGAIN)
    ddls = read_landed_ddls(ctx.paths, lo, hi) if merged.ddls else []
    return CompactManifest(
        replication=ctx.replication.name,
        sink="sql",
        lo=lo,
        hi=hi,
        ordered=bool(detail["ordered"]),
        rows=event["rows"],
        merged=merged,
        cuts=tuple(ddl.since for ddl in ddls if ddl.opens_segment),
        shapes=Shapes.from_list(detail.get("shapes", ())),
    )


@dataclass(frozen=True)
class WindowChanges:
    """Row changes that a window applies: its own `parts` and `earlier` ones that it releases; `holds` change them."""

    parts: tuple[Rows, ...]
    earlier: tuple[Rows, ...] = ()
    holds: tuple[Hold, ...] = ()
    hi: int = 0

    @property
    def rows(self) -> list[Rows]:
        """The parts as the window applies them, with the columns COLUMNS and SOURCE."""
        return self._apply(_NEEDED, self.holds)

    def find_touched(self, starts: Sequence[int]) -> list[SegmentTable]:
        """The tables and segments of the row changes, sorted; `starts` open segments 1, 2, ..."""
        return sorted(self.count_touched(starts))

    def count_touched(self, starts: Sequence[int]) -> Counter[SegmentTable]:
        """The row changes by table and segment; `starts` open segments 1, 2, ..."""
        names = [Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS]
        # No column is filled here, as only names and places are read.
        parts = self._apply(_NARROW, [replace(hold, filled={}) for hold in self.holds])
        return count_touched_tables((batch for rows in parts for batch in rows.read(names)), starts)

    def _apply(self, needed: tuple[str, ...], holds: Sequence[Hold]) -> list[Rows]:
        every = [*self.parts, *self.earlier]
        if not self.holds:
            return every
        return [MappedRows(rows, partial(_place, holds=tuple(holds), hi=self.hi), needed) for rows in every]


def read_window_changes(
    ctx: StageContext, engine: Engine, bounds: Bounds, count: int, given: MergedWindow | None = None
) -> WindowChanges | None:
    """The changes to apply in a window that has `count` rows; None if there are none. Raises DamagedManifest."""
    holds = read_locks(ctx.windows, ctx.rules, bounds.lo, bounds.hi).holds
    earlier = find_released_ranges(holds, bounds.lo, bounds.hi)
    if not count and not earlier:
        return None
    released = [rows for one in earlier for rows in _list_released(ctx, one, engine.task_bytes)]
    parts = list_mutation_parts(ctx, engine, bounds, given) if count else []
    return WindowChanges(tuple(parts), tuple(released), tuple(holds), bounds.hi)


def list_mutation_parts(
    ctx: StageContext, engine: Engine, bounds: Bounds, given: MergedWindow | None = None
) -> list[Rows]:
    """The row changes of `bounds`: those that merge has `given` for this window, else the lake's."""
    if given is not None and given.bounds == bounds:
        # A task copies its rows, and in this process that is memory: there more tasks cost nothing.
        most = _GIVEN_TASK_BYTES if engine.holds else engine.task_bytes
        own = [piece for rows in given.rows for piece in cut_rows(rows, most)]
        return own if engine.holds else pack_rows(own, engine.task_bytes)
    return [*list_history_rows(ctx.paths, MUTATION, bounds.lo, bounds.hi, engine.task_bytes)]


def _place(rows: pa.Table, holds: Sequence[Hold], hi: int) -> pa.Table:
    return apply_holds(rows, holds, hi)


def _list_released(ctx: StageContext, one: ReleasedRange, task_bytes: int) -> list[Rows]:
    """The rows of the range's source table."""
    parts = list_history_rows(ctx.paths, MUTATION, one.lo, one.hi, task_bytes)
    return [MappedRows(rows, partial(_select_source, source=one.source), _NEEDED) for rows in parts]


def _select_source(rows: pa.Table, source: tuple[str, str]) -> pa.Table:
    db, table = (
        pc.equal(rows[name], value)
        for name, value in zip((Mutation.SOURCE_DB, Mutation.SOURCE_TABLE), source, strict=True)
    )
    return rows.filter(pc.and_(db, table))
