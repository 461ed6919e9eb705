"""mirror: typed Delta replicas of the source's tables, from the mirror's own position to the window's end.

The net changes of each group of linked tables are applied through delta-rs (binlake.mirror): by a thread of the driver
for a small window, by a Spark task for a large one. Old windows are skipped; each table records its own position, which
makes a rerun after a crash exact.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, chain, groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import structlog

from binlake.base.lakecolumns import Change
from binlake.changes.net.columns import NET, combine_into_batch
from binlake.changes.net.events import group_rows_by_table
from binlake.lake.columntypes import list_delta_columns
from binlake.lake.continuity import VERSIONS, read_versions, require_all_windows
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MIRROR_VERSION, format_schema, parse_schema
from binlake.lake.windowlog import WindowEvent
from binlake.mirror import (
    Applied,
    ComponentPlan,
    MirrorPlan,
    MirrorVersion,
    MirrorVersions,
    apply_component,
    plan_mirrors,
)
from binlake.pipeline import BY_NAME
from binlake.rows.schema import TableDef
from binlake.rows.schema.names import fold_pair
from binlake.window.definitions import Cell
from binlake.window.derived import Merged
from binlake.window.lineage import Columns
from binlake.window.targets import Naming
from spark_jobs.job.context import Bounds, StageContext, StageResult
from spark_jobs.job.lake import Rows, collect_rows, map_rows
from spark_jobs.job.lineage import Gathered, Sources, Written
from spark_jobs.tables.held import read_window_changes
from spark_jobs.tables.netchange import compute_net_changes, find_key_arrivals, touched_tables
from spark_jobs.tables.sharedkeys import find_shared_tables, require_own_mirror_keys
from spark_jobs.tables.sinks import SinkWindow, find_tables_at_end, read_mirror_window, require_merged

log = structlog.get_logger(__name__)

_COMPONENT = "component"
_OF_CHANGE = (
    Change.SEGMENT, Change.DB, Change.TABLE, Change.OP, Change.BEFORE, Change.AFTER, Change.COPIES,
    Change.LAST_COMMIT_TS,
)  # fmt: skip
_ROWS = pa.schema([(_COMPONENT, pa.int32()), *(NET.field(name) for name in _OF_CHANGE)])
"""The columns of a net change that its table's component needs."""
_ORDER = (_COMPONENT, Change.SEGMENT, Change.DB, Change.TABLE)
_RESULT = (
    "db STRING, table STRING, delta_version BIGINT, lo BIGINT, hi BIGINT, dropped BOOLEAN, inexact STRING, "
    "rows BIGINT, unfit BIGINT"
)
_THREADS = 4


def run(ctx: StageContext, bounds: Bounds) -> StageResult:
    """Bring the mirrors to `bounds.hi`. Raises IncompleteWindow if a window before it is not merged yet."""
    with hold_lake_lock(ctx.paths, BY_NAME["mirror"].lock):
        require_all_windows(ctx.paths, ctx.windows, ("mirror",))
        windows = _list_windows(ctx, bounds.hi)
        done = [_apply_window(ctx, window) for window in windows]
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


def _apply_window(ctx: StageContext, window: Bounds) -> StageResult:
    began = time.monotonic()
    merged = require_merged(ctx, window.lo, window.hi)
    if not merged.empty:
        # Record the bounds before the first write: a rerun with other bounds would count a keyless table's rows twice.
        ctx.windows.record(WindowEvent("mirror", window.lo, window.hi, "started", run_id=ctx.run_id, sink="mirror"))
    applied, lineage = (Applied(), None) if merged.empty else _apply(ctx, window, merged)
    MirrorVersions(ctx.paths).record(applied.versions)
    seconds = time.monotonic() - began
    changed = sorted({(v.db, v.table) for v in applied.versions})
    detail: dict[str, object] = {"tables": len(changed), "unfit": applied.unfit}
    detail[VERSIONS] = read_versions(ctx.paths, (MIRROR_VERSION,))
    ctx.windows.record(
        WindowEvent("mirror", window.lo, window.hi, "done", applied.rows, seconds, ctx.run_id, "mirror", "", detail)
    )
    if applied.unfit:
        log.warning("values_stored_as_text_after_type_change", window=window.window, values=applied.unfit)
    # For listeners that wait for a table, and for lineage; not written to the lake.
    detail |= {"changed": changed, **(lineage.describe(changed) if lineage is not None else {})}
    return StageResult("mirror", "done", window.lo, window.hi, applied.rows, seconds, "", detail)


def _apply(ctx: StageContext, window: Bounds, merged: Merged) -> tuple[Applied, Written]:
    sink = read_mirror_window(ctx, window, merged)
    changes = read_window_changes(ctx, window, merged.rows)
    rows, count = (changes.rows, changes.count) if changes else (None, 0)
    placed = changes is not None and changes.placed
    names = {touched.name for touched in touched_tables(ctx, window, (), count, rows, placed=placed)}
    # Versions as of lo: if a run died after its record, the rerun must not take that window's result for its input.
    known = MirrorVersions(ctx.paths).read_latest(window.lo)
    plan = plan_mirrors(window.lo, window.hi, sink.definitions, sink.ddls, names, known)
    if rows is not None:
        _require_own_keys(ctx, sink, rows, count, plan.cells)
    done = _apply_ddl_only(ctx, plan)
    if plan.cells and rows is not None:
        done.append(_apply_rows(ctx, compute_net_changes(rows, plan.cells, count, routed=bool(ctx.rules.routes)), plan))
    applied = Applied(
        list(chain.from_iterable(part.versions for part in done)),
        sum(part.rows for part in done),
        sum(part.unfit for part in done),
    )
    sources = Sources(Naming(ctx.rules), lambda: find_tables_at_end(ctx, sink.base, window.hi, sink.ddls))
    return applied, Written(sink.definitions, window.hi, sources, _list_mirror_columns)


def _require_own_keys(ctx: StageContext, window: SinkWindow, rows: Rows, count: int, cells: Sequence[Cell]) -> None:
    """Before the first write, check that each key of a shared table belongs to one source table. Raises SchemaError."""
    shared = find_shared_tables(ctx, window, {(cell.db, cell.table) for cell in cells})
    own = [cell for cell in cells if (cell.db, cell.table) in shared]
    if own:
        require_own_mirror_keys(ctx, window, find_key_arrivals(rows, own, count))


def _list_mirror_columns(table: TableDef) -> tuple[Columns, list[str]]:
    return list_delta_columns(table), [column.name for column in table.row_columns]


def _apply_ddl_only(ctx: StageContext, plan: MirrorPlan) -> list[Applied]:
    """Apply the components without row changes, in threads of the driver: they need no Spark."""
    quiet = [component for component in plan.components if not component.tables]
    days = ctx.replication.lake.retention_days
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(lambda component: apply_component(component, ctx.paths, days, ()), quiet))


def _apply_rows(ctx: StageContext, net: Rows, plan: MirrorPlan) -> Applied:
    components = {(cell.db, cell.table): plan.component[fold_pair((cell.db, cell.table))] for cell in plan.cells}
    busy = {component.number: component for component in plan.components if component.tables}
    task = MirrorTask(busy, ctx.paths, ctx.replication.lake.retention_days)
    rows = map_rows(net, partial(_with_component, components=components), format_schema(_ROWS))
    if isinstance(rows, pa.Table):
        return _apply_here(rows, task)
    in_order = rows.repartition(_COMPONENT).sortWithinPartitions(*_ORDER)
    return _decode_applied(collect_rows(in_order.mapInArrow(task, _RESULT)).to_pylist())


def _with_component(net: pa.Table, components: Mapping[tuple[str, str], int]) -> pa.Table:
    """`net` with the columns of _ROWS: each row gets the number of its table's component."""
    numbers = np.empty(net.num_rows, np.int32)
    for name, rows in group_rows_by_table(combine_into_batch(net)):
        numbers[rows] = components[name]
    return net.append_column(_COMPONENT, pa.array(numbers)).select(_ROWS.names)


def _apply_here(rows: pa.Table, task: MirrorTask) -> Applied:
    """Apply the rows of a small window in threads of the driver."""
    in_order = rows.sort_by([(name, "ascending") for name in _ORDER])
    # group_by returns groups in any order, even for sorted rows.
    counts = in_order.group_by(_COMPONENT, use_threads=False).aggregate([([], "count_all")]).sort_by(_COMPONENT)
    ends = [0, *accumulate(counts["count_all"].to_pylist())]
    parts = [in_order.slice(first, last - first).combine_chunks().to_batches() for first, last in pairwise(ends)]
    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(lambda part: list(task(iter(part))), parts))
    return _decode_applied([row for batches in results for batch in batches for row in batch.to_pylist()])


def _decode_applied(rows: Sequence[Mapping[str, Any]]) -> Applied:
    versions = [MirrorVersion(**{name: row[name] for name in MirrorVersion.__dataclass_fields__}) for row in rows]
    return Applied(versions, sum(row["rows"] for row in rows), sum(row["unfit"] for row in rows))


@dataclass(frozen=True)
class MirrorTask:
    """Applies the components of a partition one after the other, in a worker; yields their version rows."""

    plans: dict[int, ComponentPlan]
    paths: LakePaths
    retention_days: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Take batches of net changes sorted by component, segment and table; yield one result batch a component."""
        for number, slices in groupby(_split_by_component(batches), key=lambda entry: entry[0]):
            net = (batch for _, batch in slices)
            yield _encode_applied(apply_component(self.plans[number], self.paths, self.retention_days, net))


def _split_by_component(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    for batch in batches:
        start = 0
        for number, run in groupby(batch.column(_COMPONENT).to_pylist()):
            size = sum(1 for _ in run)
            yield number, batch.slice(start, size)
            start += size


def _encode_applied(applied: Applied) -> pa.RecordBatch:
    # The first row carries the counts: a component with rows has at least one version.
    rows = [{**asdict(version), "rows": 0, "unfit": 0} for version in applied.versions]
    rows[0] |= {"rows": applied.rows, "unfit": applied.unfit}
    return pa.RecordBatch.from_pylist(rows, schema=parse_schema(_RESULT))
