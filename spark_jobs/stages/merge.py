"""merge: decodes and filters a window's rows, each with the schema in force at its position; plans the window's DDL.

It is a pure function of the sealed window and the schema history: a rerun at any time gives the same rows. Workers
decode the rows of a large window in parallel, write them to files and send none of them to the driver, which commits
the files' names in one commit. They take the place of the files that an earlier run of the window wrote; files of a
lost or repeated attempt are never committed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import structlog
from deltalake import DeltaTable

from binlake.common.lakecolumns import Binlog, Ddl
from binlake.ddl.ddls import add_injections, build_window_schemas, plan_locked_ddls, require_replacements_used
from binlake.ddl.definitions import LandedDdl
from binlake.ddl.shardlocks import Locks
from binlake.errors import ImmutableWindow
from binlake.lake.continuity import VERSIONS, Opened, read_versions, require_all_windows
from binlake.lake.mutations import read_rows
from binlake.lake.payloads import PayloadRange
from binlake.lake.sharedtargets import read_locks_at, read_resolutions, require_nothing_waits
from binlake.lake.skipped import record_late_injections, record_skips
from binlake.lake.tables import BINLOG, DDL, MUTATION, parse_schema
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import BY_NAME
from binlake.rows.schema import WindowDdl, WindowSchemas
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.rows import Rows, list_history_rows, pack_rows
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.decoding import (
    AWAY,
    BY_TABLE,
    LATIN1,
    ONCE,
    DecodedAhead,
    DecodedFiles,
    Decoder,
    MergeTask,
    Payloads,
)
from binlake.spark_jobs.job.lake import clear_rows, overwrite, replace_history
from binlake.spark_jobs.job.pieces import LandedWindow, MergedWindow
from binlake.spark_jobs.shared.sinks import build_window_predicate
from binlake.window.derived import Merged, MergeManifest
from binlake.window.manifest import WindowManifest
from binlake.wire import binlog_pb2

log = structlog.get_logger(__name__)
_ABOUT_TABLES = {
    LATIN1: ("texts_read_as_latin1", "invalid-text", "{count} texts of {table} are not UTF-8 and were read as latin1"),
    ONCE: (
        "second_writes_taken_once",
        "second-writes",
        "{count} transactions of {table} were committed while its partitions were rearranged, and changes that they"
        " contain twice were applied once: compare the table (binlake verify --fix), because the source may have such"
        " rows twice",
    ),
    AWAY: (
        "partition_rows_taken_away",
        "partition-rows",
        "{count} transactions of {table} were committed while a partition was dropped, truncated or exchanged, and"
        " their rows in it were taken to have gone with it: compare the table with the source (binlake verify"
        " --against source --fix)",
    ),
}
"""Log event, reason and text of an alert about a table, by the prefix of its count's name."""


def run(ctx: StageContext, bounds: Bounds, landed: LandedWindow | None = None) -> StageResult:
    """Derive `mutation` and `ddl` of a landed window, after those of any earlier window that a failure left unmerged.

    `landed`: from land in this process. Raises WireError, SchemaError, ImmutableWindow.
    """
    manifest = ctx.windows.read_manifest(bounds.lo, bounds.hi)
    if manifest is None:
        raise ImmutableWindow("the window has not landed", where={"window": bounds.window}, hint="run land first")
    with ctx.hold_lock(BY_NAME["merge"].lock):
        for earlier in ctx.windows.list_unmerged(bounds.lo):
            _merge(ctx, earlier, None)
        return _merge(ctx, manifest, landed if landed is not None and landed.bounds == bounds else None)


def _merge(ctx: StageContext, manifest: WindowManifest, landed: LandedWindow | None) -> StageResult:
    began, bounds = time.monotonic(), Bounds(manifest.lo, manifest.hi)
    named = map(int, ctx.replication.filter.ignore_txn_commit_ts)
    ignored = frozenset(ts for ts in named if bounds.lo < ts <= bounds.hi)
    # land has just asked for the tables that it writes, if it ran in this process.
    stages = ("merge",) if landed is not None else ("land", "merge")
    present = require_all_windows(ctx.paths, ctx.windows, stages, but=("merge", bounds.lo, bounds.hi))
    planned, schemas, locks = _plan_ddls(ctx, manifest, ignored)
    unchanged: Opened = {}
    if planned:
        rows_of = pa.Table.from_pylist(
            [_build_ddl_row(bounds, ddl) for ddl in planned], parse_schema(DDL.build_spark_schema())
        )
        overwrite(rows_of, ctx.paths, DDL, build_window_predicate(bounds), _build_note(ctx, bounds))
    # Rows may remain from an injection that was withdrawn.
    elif not clear_rows(
        ctx.paths, DDL, build_window_predicate(bounds), _build_note(ctx, bounds), present.get(DDL.name)
    ):
        unchanged = {name: table for name, table in present.items() if name == DDL.name}
    written = WrittenRows(0, {}, ())
    if manifest.dml:
        written = _write_mutations(ctx, manifest, schemas, locks, ignored, landed, present.get(MUTATION.name))
    rows, lost = written.count, written.left_out
    seconds = time.monotonic() - began
    skipped = record_skips(ctx.paths, ctx.windows, ignored, ctx.run_id)
    record_late_injections(ctx.paths, ctx.windows, ctx.rules.injections, bounds.lo, ctx.run_id)
    skips = sum(ddl.decision == "skip" for ddl in planned)
    detail: dict[str, object] = {"ddl": len(planned) - skips, "ddl_skipped": skips, "skipped_commit_ts": skipped}
    for name in ("replaced", "injected"):
        own = [str(ddl.commit_ts) for ddl in planned if ddl.decision == name]
        detail |= {f"ddl_{name}": own} if own else {}
    filtered = {reason: count for reason, count in lost.items() if not reason.startswith(BY_TABLE)}
    detail |= {"filtered": filtered} if filtered else {}
    alerts = [*_build_alerts(planned), *_build_table_alerts(lost, bounds)]
    if locks:
        alerts += _lock_alerts(ctx, locks, bounds)
    detail |= {"alerts": alerts} if alerts else {}
    if ctx.rules.shard_mode == "pessimistic":
        detail |= {"shard_locks": locks.list_waiting(bounds.hi)}
    detail |= ctx.describe_work()
    detail[VERSIONS] = read_versions(ctx.paths, (MUTATION, DDL), unchanged)
    merged = Merged(rows, len(planned), not filtered and not skipped, (bounds.window,), written.base)
    sealed = MergeManifest(ctx.replication.name, bounds.lo, bounds.hi, merged, locks)
    event = WindowEvent("merge", bounds.lo, bounds.hi, "done", rows, seconds, ctx.run_id, detail=detail)
    ctx.windows.record(replace(event, manifest=sealed.to_json()))
    states = ctx.schemas.read_state_at(bounds.lo), ctx.schemas.read_state_at(bounds.hi)
    derived = MergedWindow(bounds, merged, written.parts, states)
    return StageResult("merge", "done", bounds.lo, bounds.hi, rows, seconds, "", detail, derived)


def _plan_ddls(
    ctx: StageContext, manifest: WindowManifest, ignored: Collection[int]
) -> tuple[list[LandedDdl], WindowSchemas, Locks]:
    history = ctx.schemas
    base, jobs = history.read_state_at(manifest.lo), history.read_changes(manifest.lo, manifest.hi)
    binlogs = _read_ddl_binlogs(ctx, manifest) if manifest.ddls else []
    require_nothing_waits(ctx.windows, ctx.rules, manifest.lo)
    before = read_locks_at(ctx.windows, ctx.rules, manifest.lo)
    commanded = read_resolutions(ctx.windows, manifest.lo) if before else []
    planned, locks = plan_locked_ddls(base, binlogs, jobs, ctx.rules, ignored, manifest.lo, before, commanded)
    if ctx.rules.replacements:
        require_replacements_used(planned, ctx.rules.replacements, manifest.lo, manifest.hi)
    if ctx.rules.injections:
        planned = add_injections(planned, ctx.rules.injections, manifest.lo, manifest.hi, base.version)
    return planned, build_window_schemas(base, binlogs, jobs, manifest.lo), locks


def _read_ddl_binlogs(ctx: StageContext, manifest: WindowManifest) -> list[WindowDdl]:
    # Parquet statistics let the reader skip row groups without a DDL.
    names = (Binlog.COMMIT_TS, Binlog.START_TS, Binlog.CHUNK, Binlog.JOB_ID, Binlog.SCHEMA_STATE, Binlog.PAYLOAD)
    rows = read_rows(ctx.paths, BINLOG, manifest.lo, manifest.hi, names, ds.field(Binlog.KIND) == "ddl").to_pylist()
    rows.sort(key=lambda row: (row[Binlog.COMMIT_TS], row[Binlog.START_TS], row[Binlog.CHUNK]))
    return [
        _parse_ddl_binlog(list(chunks))
        for _, chunks in groupby(rows, key=lambda row: (row[Binlog.COMMIT_TS], row[Binlog.START_TS]))
    ]


def _parse_ddl_binlog(chunks: list[dict[str, Any]]) -> WindowDdl:
    query = binlog_pb2.Binlog.FromString(b"".join(chunk[Binlog.PAYLOAD] for chunk in chunks)).ddl_query
    places = {name: chunks[0][name] for name in (Binlog.COMMIT_TS, Binlog.START_TS, Binlog.JOB_ID, Binlog.SCHEMA_STATE)}
    return WindowDdl(query=query.decode("utf-8", "replace"), **places)


def _build_ddl_row(bounds: Bounds, ddl: LandedDdl) -> dict[str, object]:
    definitions = {Ddl.BEFORE: ddl.before.to_json(), Ddl.AFTER: ddl.after.to_json()}
    others = {Ddl.WINDOW: bounds.window, Ddl.TABLES: ddl.touched, **definitions}
    return {name: others[name] if name in others else getattr(ddl, name) for name in DDL.list_column_names()}


def _build_alerts(planned: Sequence[LandedDdl]) -> list[dict[str, str]]:
    """What an operator must know about the window's DDL; logged, and stored with the window."""
    alerts = [
        {
            "commit_ts": str(ddl.commit_ts),
            "reason": ddl.reason if ddl.decision == "skip" else "",
            "alert": ddl.alert,
            "query": ddl.query[:200],
        }
        for ddl in planned
        if ddl.alert
    ]
    for alert in alerts:
        log.warning("ddl_changed_or_skipped", **alert)
    return alerts


def _build_table_alerts(counted: Mapping[str, int], bounds: Bounds) -> list[dict[str, str]]:
    """Alerts about single tables: texts that are not UTF-8, second writes; logged, and stored with the window."""
    alerts = []
    for prefix, (event, reason, text) in _ABOUT_TABLES.items():
        for name, count in counted.items():
            if name.startswith(prefix):
                table = name.removeprefix(prefix)
                about = {"reason": reason, "alert": text.format(count=count, table=table), "table": table}
                alerts.append({"commit_ts": str(bounds.hi), **about})
                log.warning(event, window=bounds.window, **alerts[-1])
    return alerts


def _lock_alerts(ctx: StageContext, locks: Locks, bounds: Bounds) -> list[dict[str, str]]:
    """Tables that have waited too long for others; each is reported once."""
    texts = locks.list_alerts(bounds.lo, bounds.hi, ctx.replication.shard_lock_alert_s)
    alerts = [{"commit_ts": str(bounds.hi), "reason": "shard-lock", "alert": text} for text in texts]
    for alert in alerts:
        log.warning("shard_lock_is_old", window=bounds.window, **alert)
    return alerts


def _write_mutations(
    ctx: StageContext,
    manifest: WindowManifest,
    schemas: WindowSchemas,
    locks: Locks,
    ignored: frozenset[int],
    landed: LandedWindow | None,
    opened: DeltaTable | None,
) -> WrittenRows:
    bounds = Bounds(manifest.lo, manifest.hi)
    decoder = Decoder.of_window(schemas, ctx.rules, locks, bounds.lo)
    payloads = PayloadRange(bounds.lo, bounds.hi, ignored, _find_chunked(ctx, manifest))
    decoded, note = landed.decoded if landed is not None else None, _build_note(ctx, bounds)
    if decoded is not None and _would_decode_alike(ctx, decoded, schemas, payloads):
        return commit_rows(ctx, decoded.written, payloads, note, opened)
    if decoded is not None:
        decoded.discard()
    return write_rows(ctx, ctx.choose_engine(manifest.bytes), payloads, decoder, note, landed, opened)


def _would_decode_alike(
    ctx: StageContext, decoded: DecodedAhead, schemas: WindowSchemas, payloads: PayloadRange
) -> bool:
    """True if land's tasks decoded what merge would, in the same way."""
    is_simple = schemas.segments == 1 and not payloads.without and not payloads.chunked
    found = decoded.base, decoded.replication
    return is_simple and found == (schemas.find_schema_of_segment(0), ctx.replication)


def _find_chunked(ctx: StageContext, manifest: WindowManifest) -> frozenset[int]:
    """The commit_ts of transactions stored in several chunks."""
    if not manifest.chunks:
        return frozenset()
    where = (ds.field(Binlog.KIND) == "dml") & (ds.field(Binlog.CHUNK) > 0)
    return frozenset(
        read_rows(ctx.paths, BINLOG, manifest.lo, manifest.hi, [Binlog.COMMIT_TS], where)[Binlog.COMMIT_TS].to_pylist()
    )


def _build_note(ctx: StageContext, bounds: Bounds) -> dict[str, str]:
    return {"run": ctx.run_id, "window": bounds.window, "stage": "merge"}


@dataclass(frozen=True)
class WrittenRows:
    """The number of rows written, what was left out by reason, where the rows are, and how many are of a full load that
    came in blocks (`base`)."""

    count: int
    left_out: dict[str, int]
    parts: tuple[Rows, ...]
    base: int = 0


def write_rows(
    ctx: StageContext,
    engine: Engine,
    payloads: PayloadRange,
    decoder: Decoder,
    note: Mapping[str, str],
    landed: LandedWindow | None = None,
    opened: DeltaTable | None = None,
) -> WrittenRows:
    """Replace the rows of the range by those of `payloads`. The caller holds the table's lock.

    `landed`: the range's rows of `binlog`, if land wrote them in this process; `opened`: as in `replace_history`.
    Raises what a Decoder raises, Transient.
    """
    folder = ctx.paths.locate_table(MUTATION.name)
    task = MergeTask(payloads, decoder, folder, engine.build_keeper())
    written = engine.run(task, _list_payloads(ctx, engine, payloads, landed))
    return commit_rows(ctx, written, payloads, note, opened)


def commit_rows(
    ctx: StageContext,
    written: Sequence[DecodedFiles],
    payloads: PayloadRange,
    note: Mapping[str, str],
    opened: DeltaTable | None = None,
) -> WrittenRows:
    """Replace the rows of the range by those of `written`. Raises Transient."""
    parts = [part for one in written for part in one.parts]
    replace_history(ctx.paths, MUTATION, payloads.lo, payloads.hi, parts, note, opened)
    left_out: Counter[str] = Counter()
    for one in written:
        left_out.update(one.left_out)
    found = tuple(rows for one in written for rows in one.list_rows())
    base = sum(one.base for one in written)
    return WrittenRows(sum(part.rows for part in parts), dict(sorted(left_out.items())), found, base)


def _list_payloads(
    ctx: StageContext, engine: Engine, payloads: PayloadRange, landed: LandedWindow | None
) -> list[Payloads]:
    """The landed rows as inputs of tasks."""
    rows: Sequence[Rows]
    if landed is None:
        rows = list_history_rows(ctx.paths, BINLOG, payloads.lo, payloads.hi, engine.task_bytes)
    else:
        # A task is dear where there are many machines, and pulls leave small files.
        rows = pack_rows(landed.rows, engine.task_bytes)
    joined = []
    for commit_ts in payloads.joined:
        own = list_history_rows(ctx.paths, BINLOG, commit_ts - 1, commit_ts, engine.task_bytes)
        joined.append(Payloads(tuple(own), commit_ts))
    return [*(Payloads((one,)) for one in rows), *joined]
