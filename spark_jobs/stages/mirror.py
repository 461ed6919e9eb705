"""mirror: typed Delta replicas of the source's tables, from the mirror's own position to the window's end.

The net changes are those of compact if it derived them in this process, else tasks compute them; this process applies
those of each group of linked tables through delta-rs (binlake.mirror). Old windows are skipped; each table records its
own position, which makes a rerun after a crash exact.

Consecutive windows that wait in this process are applied as one: a MERGE reads and rewrites each file with a changed
row, whatever number of its rows changed. Of a key the last change counts, so only windows are joined in which nothing
else decides: without DDL, without tables whose rows have no key, and derived for the same segments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from binlake.changes.net.columns import NET
from binlake.common.lakecolumns import Change, Mutation
from binlake.ddl.definitions import Cell, SegmentTable
from binlake.ddl.targets import Naming
from binlake.lake.columntypes import list_delta_columns
from binlake.lake.continuity import VERSIONS, read_versions, require_all_windows
from binlake.lake.controltables import MIRROR_VERSION
from binlake.lake.windowlog import WindowEvent
from binlake.mirror import ComponentPlan, MirroredRows, MirrorPlan, MirrorVersions, apply_component, plan_mirrors
from binlake.mirror.apply import CHUNK_BYTES, LARGE_CHUNK_BYTES
from binlake.pipeline import BY_NAME
from binlake.rows.schema import TableDef
from binlake.spark_jobs.engine.engine import LARGE_WINDOW_BYTES, Engine, RowStore
from binlake.spark_jobs.engine.rows import MemoryRows, Rows, read_table
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.lineage import Gathered, Sources, WindowLineage
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.shared.netchange import (
    NetRows,
    WindowNetChange,
    count_groups,
    find_key_arrivals,
    split_by_place,
)
from binlake.spark_jobs.shared.sharedkeys import find_shared_tables, require_own_mirror_keys
from binlake.spark_jobs.shared.sinks import (
    SinkWindow,
    find_tables_at_end,
    read_mirror_window,
    read_window_changes,
    require_merged,
)
from binlake.spark_jobs.shared.sqlwindow import Compacted, Converted
from binlake.window.derived import Merged
from binlake.window.lineage import Columns

ROWS = pa.schema(
    [NET.field(name) for name in (Change.OP, Change.BEFORE, Change.AFTER, Change.COPIES, Change.LAST_COMMIT_TS)]
)
"""The columns of a net change that a mirror needs."""
_KEYLESS = "row"

Given = MergedWindow | Compacted | Converted | None
"""What this process has derived of one window: its rows, or their net changes as well."""
log = structlog.get_logger(__name__)
_CHANGE = pa.schema([*(NET.field(name) for name in SegmentTable._fields), *ROWS])
_THREADS = 4
RowsByPlace = Mapping[SegmentTable, Sequence[Rows]]
"""The net changes of each table and segment of a component, as tasks stored them."""


def run(ctx: StageContext, bounds: Bounds, given: Given | GatheredWindows = None) -> StageResult:
    """Bring the mirrors to `bounds.hi`. Raises IncompleteWindow if a window before it is not merged yet.

    `given`: what this process has derived of the last window, or of several that are applied as one.
    """
    with ctx.hold_lock(BY_NAME["mirror"].lock):
        require_all_windows(ctx.paths, ctx.windows, ("mirror",))
        windows = _list_windows(ctx, bounds.hi)
        versions = MirrorVersions(ctx.paths, pinned=True)
        done = [_apply_window(ctx, window, given, versions) for window in windows]
    if not done:
        return StageResult("mirror", "already", bounds.lo, bounds.hi, detail={"reason": "the mirrors are past it"})
    rows, seconds = sum(result.rows for result in done), sum(result.seconds for result in done)
    changed = sorted({name for result in done for name in result.detail["changed"]})
    detail = {**done[-1].detail, "changed": changed, **Gathered(done).build_detail()}
    return replace(done[-1], lo=done[0].lo, rows=rows, seconds=seconds, detail=detail)


def _list_windows(ctx: StageContext, hi: int) -> list[Bounds]:
    """The windows left up to `hi`: first the one that an earlier run began, with exactly its bounds."""
    reached, landed = ctx.windows.find_greatest_hi("mirror"), ctx.windows.find_landed_range()
    position = reached if reached is not None else landed[0] if landed else hi
    events = ctx.windows.read_events(stage="mirror", within=(position, position + 1))
    begun = [Bounds(position, e["hi"]) for e in events if e["state"] == "started" and e["lo"] == position][:1]
    reached = begun[0].hi if begun else position
    return [*begun, Bounds(reached, hi)] if hi > reached else begun


def _apply_window(
    ctx: StageContext, window: Bounds, given: Given | GatheredWindows, versions: MirrorVersions
) -> StageResult:
    began = time.monotonic()
    gathered = given if isinstance(given, GatheredWindows) and given.bounds == window else None
    rows, net = unpack(None if isinstance(given, GatheredWindows) else given)
    merged = require_merged(ctx, window.lo, window.hi, rows if gathered is None else gathered.merged)
    if not merged.empty:
        # Record the bounds before the first write: a rerun with other bounds would count a keyless table's rows twice.
        ctx.windows.record(WindowEvent("mirror", window.lo, window.hi, "started", run_id=ctx.run_id, sink="mirror"))
    done = None if gathered is None else _apply_gathered(ctx, gathered, versions)
    if done is None and not merged.empty:
        done = _apply(ctx, window, merged, rows, net, versions)
    applied, lineage = done or (MirroredRows(), None)
    versions.record(applied.versions)
    seconds = time.monotonic() - began
    changed = sorted({(v.db, v.table) for v in applied.versions})
    detail: dict[str, object] = {"tables": len(changed), "unfit": applied.unfit, **ctx.describe_work()}
    detail[VERSIONS] = read_versions(ctx.paths, (MIRROR_VERSION,))
    ctx.windows.record(
        WindowEvent("mirror", window.lo, window.hi, "done", applied.rows, seconds, ctx.run_id, "mirror", "", detail)
    )
    if applied.unfit:
        log.warning("values_stored_as_text_after_type_change", window=window.window, values=applied.unfit)
    # For listeners that wait for a table, and for lineage; not written to the lake.
    detail |= {"changed": changed, **(lineage.describe(changed) if lineage is not None else {})}
    return StageResult("mirror", "done", window.lo, window.hi, applied.rows, seconds, "", detail)


def _apply(
    ctx: StageContext,
    window: Bounds,
    merged: Merged,
    given: MergedWindow | None,
    derived: NetRows | None,
    versions: MirrorVersions,
) -> tuple[MirroredRows, WindowLineage]:
    sink = read_mirror_window(ctx, window, merged, given)
    engine = ctx.choose_engine(size := ctx.measure(window))
    changes = read_window_changes(ctx, engine, window, merged.rows, given)
    names = {touched.name for touched in changes.find_touched(())} if changes else set()
    # Versions as of lo: if a run died after its record, the rerun must not take that window's result for its input.
    known = versions.read_latest(window.lo)
    plan = plan_mirrors(window.lo, window.hi, sink.definitions, sink.ddls, names, known)
    # Every row is one of a full load, with a key that no other row has: by routes, tables may share one.
    is_base = changes is not None and not (changes.holds or changes.earlier or ctx.rules.routes)
    if is_base and 0 < merged.rows == merged.base:
        plan = replace(plan, components=tuple(replace(one, is_base=True) for one in plan.components))
    groups = count_groups(merged.rows, size)
    net = WindowNetChange(changes.rows if changes else [], plan.cells, groups, bool(ctx.rules.routes))
    with engine.open_store(ctx.paths, "mirror") as store:
        _require_own_keys(ctx, engine, store, sink, net)
        chunk_bytes = CHUNK_BYTES if size <= LARGE_WINDOW_BYTES else LARGE_CHUNK_BYTES
        applied = _apply_components(ctx, plan, _derive_rows(engine, store, net, derived), chunk_bytes)
    return applied, _build_lineage(ctx, sink)


def _apply_gathered(
    ctx: StageContext, given: GatheredWindows, versions: MirrorVersions
) -> tuple[MirroredRows, WindowLineage] | None:
    """As `_apply`, for several windows at once; None if the mirrors have other keys than the target."""
    window = given.bounds
    sink = read_mirror_window(ctx, window, given.merged.merged, given.merged)
    names = {place.name for place, _ in given.places}
    plan = plan_mirrors(window.lo, window.hi, sink.definitions, (), names, versions.read_latest(window.lo))
    if not given.has_cells(plan.cells):
        return None
    rows: dict[SegmentTable, list[Rows]] = {}
    for place, own in given.places:
        rows.setdefault(place, []).append(own)
    plan = replace(plan, components=tuple(replace(one, is_repeated=True) for one in plan.components))
    return _apply_components(ctx, plan, rows), _build_lineage(ctx, sink)


def _build_lineage(ctx: StageContext, sink: SinkWindow) -> WindowLineage:
    hi = sink.bounds.hi
    sources = Sources(Naming(ctx.rules), lambda: find_tables_at_end(ctx, sink.base, hi, sink.ddls))
    return WindowLineage(sink.definitions, hi, sources, _list_mirror_columns)


def _require_own_keys(
    ctx: StageContext, engine: Engine, store: RowStore, window: SinkWindow, net: WindowNetChange
) -> None:
    """Before the first write, check that each key of a shared table belongs to one source table. Raises SchemaError."""
    shared = find_shared_tables(ctx, window, {(cell.db, cell.table) for cell in net.cells})
    own = [cell for cell in net.cells if (cell.db, cell.table) in shared]
    if own:
        require_own_mirror_keys(ctx, window, find_key_arrivals(engine, store, net.parts, own, net.groups))


def _list_mirror_columns(table: TableDef) -> tuple[Columns, list[str]]:
    return list_delta_columns(table), [column.name for column in table.row_columns]


def _derive_rows(engine: Engine, store: RowStore, net: WindowNetChange, derived: NetRows | None) -> RowsByPlace:
    """The net changes of the window by table and segment; from `derived` if it has the same tables and segments."""
    if not net.cells:
        return {}
    if derived is not None and derived.cells.issuperset(net.cells):
        places = derived.places
        stored = [places] if places is not None else engine.run(_StoreByPlace(_read_change, store), derived.groups)
    else:
        reduce, groups = net.prepare(engine, store)
        stored = engine.run(_StoreByPlace(reduce, store), groups)
    found: dict[SegmentTable, list[Rows]] = {}
    for one in stored:
        for place, rows in one:
            found.setdefault(place, []).append(rows)
    return found


@dataclass(frozen=True)
class _StoreByPlace:
    """Stores the net changes of a group of keys by place; `derive` makes them of the group's rows."""

    derive: Callable[[tuple[Rows, ...]], Iterable[pa.Table]]
    store: RowStore

    def __call__(self, group: tuple[int, tuple[Rows, ...]]) -> list[tuple[SegmentTable, Rows]]:
        """(place, its rows). Raises SchemaError."""
        tables = [one for net in self.derive(group[1]) for one in split_by_place(net)]
        stored = self.store.put([net.select(ROWS.names) for _, net in tables])
        return list(zip([place for place, _ in tables], stored, strict=True))


def _read_change(rows: tuple[Rows, ...]) -> Iterator[pa.Table]:
    yield read_table(rows, _CHANGE)


def _apply_components(
    ctx: StageContext, plan: MirrorPlan, rows: RowsByPlace, chunk_bytes: int = CHUNK_BYTES
) -> MirroredRows:
    """Apply all components, in threads of this process: only it commits to the mirrors."""
    days = ctx.replication.lake.retention_days

    def apply(one: ComponentPlan) -> MirroredRows:
        return apply_component(one, ctx.paths, days, _read_rows(one, rows), chunk_bytes)

    with ThreadPoolExecutor(_THREADS) as pool:
        done = list(pool.map(apply, plan.components))
    return MirroredRows(
        list(chain.from_iterable(part.versions for part in done)),
        sum(part.rows for part in done),
        sum(part.unfit for part in done),
    )


def _read_rows(component: ComponentPlan, rows: RowsByPlace) -> Iterator[tuple[SegmentTable, pa.Table]]:
    """The net changes of a component's tables, in order of segments and tables."""
    for place in sorted(component.tables):
        for part in rows.get(place, ()):
            yield from ((place, pa.Table.from_batches([batch]).cast(ROWS)) for batch in part.read(ROWS.names))


@dataclass(frozen=True)
class GatheredWindows:
    """The net changes of consecutive windows in memory: `places`, in order of the windows; `merged`: without rows."""

    merged: MergedWindow
    places: tuple[tuple[SegmentTable, MemoryRows], ...]
    cells: frozenset[Cell]

    @property
    def bounds(self) -> Bounds:
        """From the beginning of the first window to the end of the last one."""
        return self.merged.bounds

    @property
    def bytes(self) -> int:
        """Bytes of Arrow that are held."""
        return sum(rows.bytes for _, rows in self.places)

    def join(self, following: GatheredWindows) -> GatheredWindows:
        """These windows and those that follow them."""
        first, last = self.merged, following.merged
        merged = MergedWindow(
            Bounds(first.bounds.lo, last.bounds.hi),
            Merged.add_up((first.merged, last.merged)),
            (),
            (first.schemas[0], last.schemas[1]),
        )
        return GatheredWindows(merged, (*self.places, *following.places), self.cells | following.cells)

    def has_cells(self, cells: Iterable[Cell]) -> bool:
        """Whether the changes are those of `cells`, with the same form of keys: the bounds differ by window."""
        return self.cells.issuperset(map(_forget_bounds, cells))


def gather(ctx: StageContext, given: object) -> GatheredWindows | None:
    """The window of `given`, to be joined with others; None if it must be applied, or is better applied, alone.

    New rows are only added, which costs no more for each window.
    """
    merged, net = unpack(given) if isinstance(given, Compacted | Converted) else (None, None)
    if merged is None or net is None or net.places is None or ctx.rules.routes:
        return None
    total, cells = merged.merged, frozenset(map(_forget_bounds, net.cells))
    of_window = all((cell.since, cell.until - 1) == (merged.bounds.lo + 1, merged.bounds.hi) for cell in net.cells)
    if total.ddls or total.base or not of_window or any(cell.identity == _KEYLESS for cell in cells):
        return None
    held = [(place, rows) for place, rows in net.places if isinstance(rows, MemoryRows)]
    if len(held) < len(net.places) or _only_adds(merged):
        return None
    places = tuple((place, MemoryRows(rows.table.select(ROWS.names))) for place, rows in held)
    return GatheredWindows(replace(merged, rows=()), places, cells)


def unpack(given: Given) -> tuple[MergedWindow | None, NetRows | None]:
    """(the rows, the net changes) of `given`."""
    if given is None or isinstance(given, MergedWindow):
        return given, None
    compacted = given.compacted if isinstance(given, Converted) else given
    return compacted.merged, compacted.net


def _only_adds(merged: MergedWindow) -> bool:
    ops = (batch.column(0) for rows in merged.rows for batch in rows.read([Mutation.OP]))
    return all(pc.all(pc.equal(own, "insert")).as_py() for own in ops)


def _forget_bounds(cell: Cell) -> Cell:
    return replace(cell, since=0, until=0)
