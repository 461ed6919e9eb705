"""encode: turns the row changes of a feed's windows into rows of `message`; seals what publish sends.

It is a pure function of `mutation`, `ddl` and the feed's section: a rerun writes the same rows again. A feed continues
where its own last window ended, independently of other sinks; if it is far behind, it takes several landed windows at a
time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.dataset as ds

from binlake.common import rowhash
from binlake.common.lakecolumns import Message, Mutation
from binlake.config.feed import FeedSection
from binlake.config.sinkuri import BINLOG_FILES
from binlake.ddl.definitions import LandedDdl, Segments, WindowDefinitions
from binlake.feed.files.layout import TableVersion
from binlake.feed.formats import DELETE, INSERT, UPDATE
from binlake.feed.manifest import EncodeManifest
from binlake.feed.messages import MessageEncoder, count_unsent, encode_ddls, encode_watermarks
from binlake.feed.protocols import format_of
from binlake.feed.state import (
    FeedState,
    build_begin,
    find_begin,
    find_greatest_hi_of_feed,
    list_waiting_windows,
    matches_section,
    read_state,
    require_in_lake,
)
from binlake.lake.ddls import find_last_ddls
from binlake.lake.mutations import find_touched_tables
from binlake.lake.opentable import open_dataset, open_known
from binlake.lake.tables import build_message_table
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import name_feed_lock, name_feed_sink
from binlake.rows.schema.forms import fold_pair
from binlake.spark_jobs.engine.exchange import cut_in_order
from binlake.spark_jobs.job.context import PIECE_BYTES, Bounds, StageContext, StageResult
from binlake.spark_jobs.job.lake import ensure_table, replace_window
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.shared.messages import Encoded, EncodeTask, TouchedTables
from binlake.spark_jobs.shared.sinks import (
    SinkWindow,
    commit_note,
    list_mutation_parts,
    read_mirror_window,
    read_target_tables,
    require_merged,
)

Name = tuple[str, str]


def list_versions(ctx: StageContext, feed: FeedSection, window: SinkWindow) -> list[TableVersion]:
    """The versions that the feed's rows of the window have, and one for each DDL of the feed's tables.

    Raises SchemaError.
    """
    from_ddl = [version for ddl in window.ddls for version in _derive_ddl_versions(feed, ddl)]
    bounds = window.bounds
    names = {(version.db, version.table) for version in from_ddl}
    new = {name for name in names if window.base.find(*name) is None}
    old = sorted(_read_names(ctx, feed, bounds) - new)
    last, start = find_last_ddls(ctx.paths, old, bounds.lo), _start(ctx, bounds.lo)
    before = [
        TableVersion.of(
            window.definitions.require_definition_within(*name, bounds.lo + 1, bounds.hi + 1), last.get(name, start), 0
        )
        for name in old
    ]
    return [*before, *from_ddl]


def _read_names(ctx: StageContext, feed: FeedSection, bounds: Bounds) -> set[Name]:
    """(db, table) of the row changes among the window's messages."""
    data = open_dataset(open_known(ctx.paths.locate_table(build_message_table(feed.name).name)))
    columns = [Message.DB, Message.TABLE]
    own = (ds.field(Message.WINDOW) == bounds.window) & ds.field(Message.OP).isin([INSERT, UPDATE, DELETE])
    names = data.to_table(columns=columns, filter=own).group_by(columns).aggregate([])
    return {(name[Message.DB], name[Message.TABLE]) for name in names.to_pylist()}


def _derive_ddl_versions(feed: FeedSection, ddl: LandedDdl) -> Iterator[TableVersion]:
    query = (ddl.sql or ddl.query) if ddl.opens_segment else ""
    both = (*ddl.before.tables, *ddl.after.tables)
    tables = {(table.db, table.name): table for table in both if table.kind == "table"}
    for (db, name), table in tables.items():
        if feed.tables.matches(db, name):
            yield TableVersion.of(table, ddl.commit_ts, ddl.since, query, ddl.action)
    if query and ddl.db and not ddl.table and not tables and feed.tables.matches(ddl.db, ""):
        yield TableVersion(ddl.db, "", ddl.commit_ts, ddl.since, query, ddl.action)


def _start(ctx: StageContext, lo: int) -> int:
    """The start of the lake, which is the version of tables without a later DDL."""
    landed = ctx.windows.find_landed_range()
    return lo if landed is None else landed[0]


def run(ctx: StageContext, bounds: Bounds, name: str, given: MergedWindow | None = None) -> StageResult:
    """Encode what the feed `name` still lacks up to `bounds.hi`; `given`: the rows of one of its windows.

    Raises IncompleteWindow, ConfigError, SchemaError.
    """
    feed, began = ctx.replication.require_feed(name), time.monotonic()
    with ctx.hold_lock(name_feed_lock(name)):
        state = read_state(ctx.windows, name)
        for waiting in list_waiting_windows(ctx.windows, feed, state, bounds.hi):
            if not matches_section(waiting, feed):
                _seal(ctx, feed, Bounds(waiting.lo, waiting.hi), given)
        windows = list_next_windows(ctx, feed, state, bounds)
        if not windows:
            return StageResult("encode", "already", bounds.lo, bounds.hi, detail={"feed": name})
        manifests = [_seal(ctx, feed, window, given) for window in windows]
    messages, ddls = (sum(getattr(one, count) for one in manifests) for count in ("messages", "ddls"))
    detail = {"feed": name, "ddl_without_message": ddls}
    seconds = time.monotonic() - began
    return StageResult("encode", "done", windows[0].lo, windows[-1].hi, messages, seconds, "", detail)


def list_next_windows(ctx: StageContext, feed: FeedSection, state: FeedState, bounds: Bounds) -> list[Bounds]:
    """The windows from the end of the feed's last one up to `bounds.hi` or the feed's end; empty if there are none.

    A new feed begins at its start-ts, or with the first window that was sealed for it. Landed windows are joined as
    long as the driver can encode them itself. Raises LostRange if the lake does not reach back that far.
    """
    lo, hi = find_greatest_hi_of_feed(ctx.windows, "encode", feed.name, state), feed.limit_ts(bounds.hi)
    if lo is None:
        lo = feed.first_ts if feed.first_ts is not None else _find_begin(ctx, feed, state, bounds)
        require_in_lake(ctx.windows, feed.name, lo)
    return _cut_by_bytes(ctx, lo, hi) if lo < hi else []


def _find_begin(ctx: StageContext, feed: FeedSection, state: FeedState, bounds: Bounds) -> int:
    """Where the feed begins: as recorded with a seal, or with `bounds` if it was configured after the last seal."""
    begin = find_begin(ctx.windows, feed.name, state)
    if begin is None:
        begin = bounds.lo
        ctx.windows.record(build_begin(feed.name, begin, ctx.run_id))
    return begin


def _cut_by_bytes(ctx: StageContext, lo: int, hi: int) -> list[Bounds]:
    """Cut (lo, hi] at the ends of landed windows: each part has as many as the driver encodes itself, at least one."""
    windows: list[Bounds] = []
    size, most = 0, ctx.replication.window.driver_bytes or PIECE_BYTES
    for landed in sorted(ctx.windows.read_manifests(lo, hi), key=lambda manifest: manifest.lo):
        if size and size + landed.bytes > most:
            windows.append(Bounds(windows[-1].hi if windows else lo, landed.lo))
            size = 0
        size += landed.bytes
    return [*windows, Bounds(windows[-1].hi if windows else lo, hi)]


def _seal(ctx: StageContext, feed: FeedSection, window: Bounds, given: MergedWindow | None) -> EncodeManifest:
    """Encode the window and record it with its manifest."""
    began = time.monotonic()
    manifest = _encode(ctx, feed, window, given)
    detail = {"feed": feed.name, "ddl_without_message": manifest.ddls, **ctx.describe_work()}
    event = WindowEvent("encode", window.lo, window.hi, "done", manifest.messages, time.monotonic() - began, ctx.run_id,
                        name_feed_sink(feed.name), "", detail,
                        manifest.to_json())  # fmt: skip
    ctx.windows.record(event)
    return manifest


def _encode(ctx: StageContext, feed: FeedSection, bounds: Bounds, given: MergedWindow | None) -> EncodeManifest:
    merged = require_merged(ctx, bounds.lo, bounds.hi, given)
    _require_own_topics(ctx, feed, bounds.hi)
    window, table = read_mirror_window(ctx, bounds, merged, given), build_message_table(feed.name)
    ensure_table(ctx.paths, table)
    events = _build_task(ctx, feed, window, window.definitions).write([], _encode_events(ctx, feed, window))
    encoded = Encoded.sum_parts([*(_write_rows(ctx, feed, window, given) if merged.rows else []), events])
    replace_window(ctx.paths, table, bounds.window, encoded.parts, commit_note(ctx, "encode", bounds))
    return EncodeManifest(
        ctx.replication.name, feed.name, bounds.lo, bounds.hi, encoded.fold.count,
        count_unsent(format_of(feed.options), feed.topics, feed.tables.matches, window.ddls),
        rowhash.compute_digest(encoded.fold), encoded.schemas, feed.compute_data_hash(),
        _list_table_versions(ctx, feed, window),
    )  # fmt: skip


def _list_table_versions(ctx: StageContext, feed: FeedSection, window: SinkWindow) -> list[dict[str, object]]:
    """The versions of the window's tables, for a feed that writes one folder for each table."""
    if feed.sink.storage is None or feed.sink.protocol == BINLOG_FILES:
        return []
    return [table.to_json() for table in list_versions(ctx, feed, window)]


def _encode_events(ctx: StageContext, feed: FeedSection, window: SinkWindow) -> list[pa.Table]:
    """The messages of the window that are not row changes."""
    own, takes, hi = format_of(feed.options), feed.tables.matches, window.bounds.hi
    topics = (feed.topics.find_topic(*name) for name in read_target_tables(ctx, hi).list_names() if takes(*name))
    return [encode_ddls(own, feed.topics, takes, window.ddls), encode_watermarks(own, topics, hi)]


def _build_task(ctx: StageContext, feed: FeedSection, window: SinkWindow, definitions: WindowDefinitions) -> EncodeTask:
    own, folder = format_of(feed.options), ctx.paths.locate_table(build_message_table(feed.name).name)
    encoder = MessageEncoder(definitions, _build_segments(window), feed.topics, own)
    return EncodeTask(encoder, feed.tables, feed.name, window.bounds.window, folder, own.whole_transactions)


def _build_segments(window: SinkWindow) -> Segments:
    """A feed's window is cut at every DDL, so that each row has the schema in force at its position."""
    return Segments(window.bounds.lo, window.bounds.hi, tuple(sorted({ddl.since for ddl in window.ddls})))


def _write_rows(ctx: StageContext, feed: FeedSection, window: SinkWindow, given: MergedWindow | None) -> list[Encoded]:
    """Encode the row changes in tasks, which get the definitions of the tables that these rows belong to."""
    engine = ctx.choose_engine_for(window.bounds)
    parts = list_mutation_parts(ctx, engine, window.bounds, given)
    names = [Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS]
    touched = find_touched_tables(
        (batch for rows in parts for batch in rows.read(names)), _build_segments(window).starts
    )
    tables = {fold_pair(place.name): table for place in touched if (table := window.base.find(*place.name)) is not None}
    task = _build_task(ctx, feed, window, WindowDefinitions(TouchedTables(tables), window.ddls))
    return engine.run(task, cut_in_order(parts, engine.task_bytes))


def _require_own_topics(ctx: StageContext, feed: FeedSection, hi: int) -> None:
    """Check that no two of the feed's tables at `hi` share a topic (S2-42). Raises ConfigError."""
    names = read_target_tables(ctx, hi).list_names()
    feed.topics.require_own_topics(name for name in names if feed.tables.matches(*name))
