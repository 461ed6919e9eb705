"""encode: turns the row changes of a feed's windows into rows of `message`; seals what publish sends.

It is a pure function of `mutation`, `ddl` and the feed's section: a rerun writes the same rows again. A feed continues
where its own last window ended, independently of other sinks; if it is far behind, it takes several landed windows at a
time. The driver and Spark's tasks (for a large window) encode the same messages.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
from deltalake.transaction import RemoveAction

from binlake.base import rowhash
from binlake.base.lakecolumns import Message
from binlake.config.feed import Feed
from binlake.config.storage import BINLOG_FILES
from binlake.feed.events import count_unsent, encode_ddls, encode_watermarks
from binlake.feed.manifest import EncodeManifest
from binlake.feed.messages import MessageEncoder
from binlake.feed.protocols import format_of
from binlake.feed.roworder import sort_rows
from binlake.feed.state import (
    FeedState,
    build_begin,
    find_begin,
    find_greatest_hi_of_feed,
    read_state,
    require_in_lake,
)
from binlake.feed.waiting import list_waiting_windows, matches_section
from binlake.lake.lock import hold_lake_lock
from binlake.lake.opentable import load_table
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import read_rows
from binlake.lake.tables import MUTATION, make_message_table
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import name_feed_lock, name_feed_sink
from binlake.rows.schema.names import fold_pair
from binlake.window.definitions import Segments, WindowDefinitions
from spark_jobs.encode.versions import list_versions
from spark_jobs.encode.writing import COLUMNS, ORDER, TRANSACTION, Encoded, EncodeTask, TouchedTables
from spark_jobs.job.context import PIECE_BYTES, Bounds, StageContext, StageResult
from spark_jobs.job.lake import commit_parts, ensure_table, may_have_rows
from spark_jobs.tables.netchange import read_mutations, touched_tables
from spark_jobs.tables.sinks import (
    SinkWindow,
    build_window_predicate,
    commit_note,
    read_mirror_window,
    read_target_tables,
    require_merged,
)

ENCODE_ROWS = 20_000
"""Row changes that the driver encodes at a time."""


def run(ctx: StageContext, bounds: Bounds, name: str) -> StageResult:
    """Encode what the feed `name` still lacks up to `bounds.hi`. Raises IncompleteWindow, ConfigError, SchemaError."""
    feed, began = ctx.replication.require_feed(name), time.monotonic()
    with hold_lake_lock(ctx.paths, name_feed_lock(name)):
        state = read_state(ctx.windows, name)
        for waiting in list_waiting_windows(ctx.windows, feed, state, bounds.hi):
            if not matches_section(waiting, feed):
                _seal(ctx, feed, Bounds(waiting.lo, waiting.hi))
        windows = list_next_windows(ctx, feed, state, bounds)
        if not windows:
            return StageResult("encode", "already", bounds.lo, bounds.hi, detail={"feed": name})
        manifests = [_seal(ctx, feed, window) for window in windows]
    messages, ddls = (sum(getattr(one, count) for one in manifests) for count in ("messages", "ddls"))
    detail = {"feed": name, "ddl_without_message": ddls}
    seconds = time.monotonic() - began
    return StageResult("encode", "done", windows[0].lo, windows[-1].hi, messages, seconds, "", detail)


def list_next_windows(ctx: StageContext, feed: Feed, state: FeedState, bounds: Bounds) -> list[Bounds]:
    """The windows from the end of the feed's last one up to `bounds.hi` or the feed's end; empty if there are none.

    A new feed begins at its start-ts, or with the first window that was sealed for it. Landed windows are joined as
    long as the driver can encode them itself. Raises LostRange if the lake does not reach back that far.
    """
    lo, hi = find_greatest_hi_of_feed(ctx.windows, "encode", feed.name, state), feed.limit_ts(bounds.hi)
    if lo is None:
        lo = feed.first_ts if feed.first_ts is not None else _find_begin(ctx, feed, state, bounds)
        require_in_lake(ctx.windows, feed.name, lo)
    return _cut_by_bytes(ctx, lo, hi) if lo < hi else []


def _find_begin(ctx: StageContext, feed: Feed, state: FeedState, bounds: Bounds) -> int:
    """Where the feed begins: as recorded with a seal, or with `bounds` if it was configured after the last seal."""
    begin = find_begin(ctx.windows, feed.name, state)
    if begin is None:
        begin = bounds.lo
        ctx.windows.record(build_begin(feed.name, begin, ctx.run_id))
    return begin


def _cut_by_bytes(ctx: StageContext, lo: int, hi: int) -> list[Bounds]:
    """Cut (lo, hi] at the ends of landed windows: each part has as many as the driver encodes itself, at least one."""
    windows: list[Bounds] = []
    size, most = 0, ctx.driver_bytes or PIECE_BYTES
    for landed in sorted(ctx.windows.read_manifests(lo, hi), key=lambda manifest: manifest.lo):
        if size and size + landed.bytes > most:
            windows.append(Bounds(windows[-1].hi if windows else lo, landed.lo))
            size = 0
        size += landed.bytes
    return [*windows, Bounds(windows[-1].hi if windows else lo, hi)]


def _seal(ctx: StageContext, feed: Feed, window: Bounds) -> EncodeManifest:
    """Encode the window and record it with its manifest."""
    began = time.monotonic()
    manifest = _encode(ctx, feed, window)
    event = WindowEvent("encode", window.lo, window.hi, "done", manifest.messages, time.monotonic() - began, ctx.run_id,
                        name_feed_sink(feed.name), "", {"feed": feed.name, "ddl_without_message": manifest.ddls},
                        manifest.to_json())  # fmt: skip
    ctx.windows.record(event)
    return manifest


def _encode(ctx: StageContext, feed: Feed, bounds: Bounds) -> EncodeManifest:
    merged = require_merged(ctx, bounds.lo, bounds.hi)
    _require_own_topics(ctx, feed, bounds.hi)
    window, table = read_mirror_window(ctx, bounds, merged), make_message_table(feed.name)
    ensure_table(ctx.paths, table)
    task, events = _build_task(ctx, feed, window, window.definitions), _encode_events(ctx, feed, window)
    if not merged.rows:
        encoded = task.write([], events)
    elif ctx.is_small(bounds):
        encoded = task.write(_read_rows(ctx, bounds), events)
    else:
        encoded = Encoded.sum_parts([_write_by_tasks(ctx, feed, window, merged.rows), task.write([], events)])
    replaced = _list_window_files(ctx.paths, feed, bounds)
    if encoded.parts or replaced:
        commit_parts(ctx.paths, table, encoded.parts, replaced, commit_note(ctx, "encode", bounds))
    return EncodeManifest(
        ctx.replication.name, feed.name, bounds.lo, bounds.hi, encoded.fold.count,
        count_unsent(format_of(feed.options), feed.topics, feed.tables.matches, window.ddls),
        rowhash.compute_digest(encoded.fold), encoded.schemas, feed.compute_data_hash(),
        _list_table_versions(ctx, feed, window),
    )  # fmt: skip


def _list_table_versions(ctx: StageContext, feed: Feed, window: SinkWindow) -> list[dict[str, object]]:
    """The versions of the window's tables, for a feed that writes one folder for each table."""
    if feed.sink.storage is None or feed.sink.protocol == BINLOG_FILES:
        return []
    return [table.to_json() for table in list_versions(ctx, feed, window)]


def _encode_events(ctx: StageContext, feed: Feed, window: SinkWindow) -> list[pa.Table]:
    """The messages of the window that are not row changes."""
    own, takes, hi = format_of(feed.options), feed.tables.matches, window.bounds.hi
    topics = (feed.topics.find_topic(*name) for name in read_target_tables(ctx, hi).list_names() if takes(*name))
    return [encode_ddls(own, feed.topics, takes, window.ddls), encode_watermarks(own, topics, hi)]


def _build_task(ctx: StageContext, feed: Feed, window: SinkWindow, definitions: WindowDefinitions) -> EncodeTask:
    own, folder = format_of(feed.options), ctx.paths.locate_table(make_message_table(feed.name).name)
    encoder = MessageEncoder(definitions, _build_segments(window), feed.topics, own)
    return EncodeTask(encoder, feed.tables, feed.name, window.bounds.window, folder, own.whole_transactions)


def _build_segments(window: SinkWindow) -> Segments:
    """A feed's window is cut at every DDL, so that each row has the schema in force at its position."""
    return Segments(window.bounds.lo, window.bounds.hi, tuple(sorted({ddl.since for ddl in window.ddls})))


def _read_rows(ctx: StageContext, bounds: Bounds) -> Iterator[pa.RecordBatch]:
    """The row changes of a small window in the total order, in batches."""
    for batch in read_rows(ctx.paths, MUTATION, bounds.lo, bounds.hi, COLUMNS).combine_chunks().to_batches():
        rows = sort_rows(batch, ORDER)
        for first in range(0, rows.num_rows, ENCODE_ROWS):
            yield rows.slice(first, ENCODE_ROWS)


def _write_by_tasks(ctx: StageContext, feed: Feed, window: SinkWindow, count: int) -> Encoded:
    """Encode in Spark's tasks, which get the definitions of the tables that the `count` rows belong to."""
    bounds, starts = window.bounds, _build_segments(window).starts
    names = {place.name for place in touched_tables(ctx, bounds, starts, count)}
    tables = {fold_pair(name): table for name in names if (table := window.base.find(*name)) is not None}
    task = _build_task(ctx, feed, window, WindowDefinitions(TouchedTables(tables), window.ddls))
    rows = read_mutations(ctx.spark, ctx.paths, bounds.lo, bounds.hi).select(*COLUMNS)
    if task.whole:
        # Lake maintenance may have put a transaction's rows into several files.
        rows = rows.repartitionByRange(*TRANSACTION).sortWithinPartitions(*ORDER)
    return Encoded.sum_parts(Encoded.from_json(row[0]) for row in rows.mapInArrow(task, "written STRING").collect())


def _list_window_files(paths: LakePaths, feed: Feed, bounds: Bounds) -> list[RemoveAction]:
    """The files that an earlier run of the window wrote."""
    table = make_message_table(feed.name)
    if not may_have_rows(paths, table, build_window_predicate(bounds)):
        return []
    now, own = int(time.time() * 1000), {Message.WINDOW: bounds.window}
    adds = pa.table(load_table(paths.locate_table(table.name)).get_add_actions(flatten=True)).to_pylist()
    return [
        RemoveAction(add["path"], True, now, add["size_bytes"], own)
        for add in adds
        if add[f"partition.{Message.WINDOW}"] == bounds.window
    ]


def _require_own_topics(ctx: StageContext, feed: Feed, hi: int) -> None:
    """Check that no two of the feed's tables at `hi` share a topic (S2-42). Raises ConfigError."""
    names = read_target_tables(ctx, hi).list_names()
    feed.topics.require_own_topics(name for name in names if feed.tables.matches(*name))
