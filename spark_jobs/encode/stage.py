"""encode: the row changes of a feed's window as rows of `message`; seals what publish sends.

A pure function of `mutation`, `ddl` and the feed's section: a rerun writes the same rows to the same place. A feed goes
on where its own last window ended, whatever the other sinks do.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base import rowhash
from binlake.base.lakecolumns import Message, Mutation
from binlake.config.feed import Feed
from binlake.feed.manifest import EncodeManifest
from binlake.feed.messages import MessageEncoder
from binlake.feed.protocols import format_of
from binlake.feed.state import reached_by_feed, read_state, require_in_lake
from binlake.feed.waiting import is_of, waiting_windows
from binlake.lake.lock import lake_lock
from binlake.lake.rowhistory import read_rows
from binlake.lake.tables import MESSAGE, MUTATION, message_table
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import feed_lock, feed_sink
from binlake.window.definitions import Segments
from spark_jobs.job.context import Bounds, StageContext, StageResult
from spark_jobs.job.lake import ensure_table, overwrite
from spark_jobs.tables.sinks import commit_note, read_mirror_window, require_merged, target_tables, window_predicate

_COLUMNS = (
    Mutation.COMMIT_TS, Mutation.START_TS, Mutation.SEQ, Mutation.DB, Mutation.TABLE, Mutation.OP, Mutation.NEW_KEY,
    Mutation.BEFORE, Mutation.AFTER,
)  # fmt: skip
_ORDER = [(name, "ascending") for name in (Mutation.COMMIT_TS, Mutation.START_TS, Mutation.SEQ)]


def run(ctx: StageContext, bounds: Bounds, name: str) -> StageResult:
    """Encode what the feed `name` has not up to `bounds.hi`. Raises IncompleteWindow, ConfigError, SchemaError."""
    feed, began = ctx.replication.feed_of(name), time.monotonic()
    with lake_lock(ctx.paths, feed_lock(name)):
        for waiting in waiting_windows(ctx.windows, feed, read_state(ctx.windows, name), bounds.hi):
            if not is_of(waiting, feed):
                _seal(ctx, feed, Bounds(waiting.lo, waiting.hi))
        window = next_window(ctx, feed, bounds)
        if window is None:
            return StageResult("encode", "already", bounds.lo, bounds.hi, detail={"feed": name})
        event = _seal(ctx, feed, window)
    seconds = time.monotonic() - began
    return StageResult("encode", "done", window.lo, window.hi, event.rows, seconds, "", event.detail)


def next_window(ctx: StageContext, feed: Feed, bounds: Bounds) -> Bounds | None:
    """From where the feed's last window ended up to `bounds.hi`, or the feed's end; None: it has that.

    A new feed begins with its start-ts, or with `bounds`. Raises LostRange where the lake does not go so far back.
    """
    lo, hi = reached_by_feed(ctx.windows, "encode", feed.name), feed.last_ts(bounds.hi)
    if lo is None:
        lo = bounds.lo if feed.first_ts is None else feed.first_ts
        require_in_lake(ctx.windows, feed.name, lo)
    return Bounds(lo, hi) if hi > lo else None


def _seal(ctx: StageContext, feed: Feed, window: Bounds) -> WindowEvent:
    """Encode the window and record it with what was sealed."""
    began = time.monotonic()
    manifest = _encode(ctx, feed, window)
    event = WindowEvent("encode", window.lo, window.hi, "done", manifest.messages, time.monotonic() - began, ctx.run_id,
                        feed_sink(feed.name), "", {"feed": feed.name, "ddl_without_message": manifest.ddls},
                        manifest.to_json())  # fmt: skip
    ctx.windows.record(event)
    return event


def _encode(ctx: StageContext, feed: Feed, bounds: Bounds) -> EncodeManifest:
    merged = require_merged(ctx, bounds.lo, bounds.hi)
    _require_own_topics(ctx, feed, bounds.hi)
    window = read_mirror_window(ctx, bounds, merged)
    starts = tuple(sorted({ddl.since for ddl in window.ddls}))
    segments, own = Segments(bounds.lo, bounds.hi, starts), format_of(feed.options)
    encoder = MessageEncoder(window.definitions, segments, feed.topics, own)
    rows = _rows(ctx, feed, bounds) if merged.rows else None
    messages = _of_window(bounds, [encoder.encode(batch) for batch in _batches(rows)])
    table = message_table(feed.name)
    ensure_table(ctx.paths, table)
    overwrite(messages, ctx.paths, table, window_predicate(bounds), commit_note(ctx, "encode", bounds))
    digest = rowhash.digest_of(rowhash.fold(rowhash.row_hashes(messages, messages.column_names)))
    return EncodeManifest(
        ctx.replication.name, feed.name, bounds.lo, bounds.hi, messages.num_rows, len(window.ddls), digest,
        encoder.schemas(), feed.data_hash(),
    )  # fmt: skip


def _rows(ctx: StageContext, feed: Feed, bounds: Bounds) -> pa.Table:
    """The changes of the feed's tables in the total order."""
    rows = read_rows(ctx.paths, MUTATION, bounds.lo, bounds.hi, _COLUMNS).sort_by(_ORDER)
    names = rows.select([Mutation.DB, Mutation.TABLE]).group_by([Mutation.DB, Mutation.TABLE]).aggregate([])
    left_out = [tuple(name.values()) for name in names.to_pylist() if not feed.tables.matches(*name.values())]
    if not left_out:
        return rows
    own = pc.invert(pc.is_in(_dotted(rows), pa.array([".".join(name) for name in left_out], pa.string())))
    return rows.filter(own)


def _dotted(rows: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(rows.column(Mutation.DB), rows.column(Mutation.TABLE), ".")


def _batches(rows: pa.Table | None) -> Iterator[pa.RecordBatch]:
    if rows is not None and rows.num_rows:
        yield from rows.combine_chunks().to_batches()


def _of_window(bounds: Bounds, parts: Sequence[pa.Table]) -> pa.Table:
    """Rows of the feed's table: the messages, and which window's they are."""
    if not parts:
        return MESSAGE.arrow_schema().empty_table()
    messages = pa.concat_tables(parts)
    own = pa.repeat(bounds.window, messages.num_rows)
    return messages.append_column(Message.WINDOW, own).select(MESSAGE.column_names())


def _require_own_topics(ctx: StageContext, feed: Feed, hi: int) -> None:
    """No two tables that the feed has at `hi` share a topic (S2-42). Raises ConfigError."""
    names = target_tables(ctx, hi).names()
    feed.topics.require_own_topics(name for name in names if feed.tables.matches(*name))
