"""publish: sends the sealed messages of a feed, in order, to its sink; needs no Spark.

The position stored in the sink decides where publishing continues, so after a run was killed no message is repeated. If
the registry refuses a schema, the feed stops after the last message before it (S2-38, S2-39).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise

import pyarrow as pa

from binlake.common.lakecolumns import Message
from binlake.config.feed import FeedSection
from binlake.feed.files.binlogs import BinlogPublisher
from binlake.feed.files.publisher import FilePublisher
from binlake.feed.manifest import ChangePosition, EncodeManifest
from binlake.feed.registry import SchemaRefused
from binlake.feed.schemaids import MayRegister, SchemaIds
from binlake.feed.sealed import SentCounts, find_last_position, read_sealed, split_changes
from binlake.feed.sink import (
    FeedSink,
    build_file_publisher,
    build_start,
    end_of,
    leaves_position,
    open_sink,
    require_own_position,
)
from binlake.feed.state import FeedState, list_windows_to_publish, read_state, record_finish
from binlake.lake.ddls import read_landed_ddls
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import name_feed_lock, name_feed_sink
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult

TRANSACTION_ROWS = 20_000
"""Messages of one Kafka transaction; a consumer of committed messages waits for all of them."""


def run(ctx: StageContext, bounds: Bounds, name: str, may_register: MayRegister | None = None) -> StageResult:
    """Publish what the feed `name` has encoded up to `bounds.hi`; `may_register`: see SchemaIds.

    Raises IncompleteWindow if nothing is encoded, ImmutableWindow, SchemaRefused, Fenced, Permanent, Transient.
    """
    feed, sink, began = ctx.replication.require_feed(name), name_feed_sink(name), time.monotonic()
    state = read_state(ctx.windows, name)
    windows = list_windows_to_publish(ctx.windows, feed, state, bounds.hi)
    if not windows:
        return StageResult("publish", "already", bounds.lo, bounds.hi, detail={"feed": name})
    sent = SentCounts()
    with _open_sender(ctx, feed, windows, state, may_register) as send:
        ctx.windows.record_together(_begin(ctx, feed, windows[:1]))
        for place, manifest in enumerate(windows):
            first = time.monotonic()
            own = send(manifest)
            sent.include(own)
            event = WindowEvent("publish", manifest.lo, manifest.hi, "done", manifest.messages,
                                time.monotonic() - first, ctx.run_id, sink, "",
                                {"feed": name, **own.build_detail(), **ctx.describe_work()})  # fmt: skip
            # The mark of the next window costs no commit of its own.
            ctx.windows.record_together([event, *_begin(ctx, feed, windows[place + 1 : place + 2])])
    if feed.target_ts and windows[-1].hi >= int(feed.target_ts):
        record_finish(ctx.windows, name, run_id=ctx.run_id)
    lo, hi, seconds = windows[0].lo, windows[-1].hi, time.monotonic() - began
    return StageResult("publish", "done", lo, hi, sent.messages, seconds, "", {"feed": name, **sent.build_detail()})


def _begin(ctx: StageContext, feed: FeedSection, windows: Sequence[EncodeManifest]) -> list[WindowEvent]:
    """The events to record before the first write of `windows`; none for those of which the sink gets nothing."""
    return [build_start(feed, manifest, ctx.run_id) for manifest in windows if leaves_position(feed, manifest)]


@contextmanager
def _open_sender(
    ctx: StageContext,
    feed: FeedSection,
    windows: Sequence[EncodeManifest],
    state: FeedState,
    may_register: MayRegister | None,
) -> Iterator[Callable[[EncodeManifest], SentCounts]]:
    """A function that publishes one of `windows` and counts what it sent."""
    name = ctx.replication.name
    if feed.sink.storage is not None:
        # Files have no fence, so a lake lock keeps other publishers out.
        with (
            ctx.hold_lock(f"{name_feed_lock(feed.name)}-publish"),
            build_file_publisher(ctx.windows, feed, name, state) as files,
        ):
            require_own_position(ctx.windows, feed, state, windows, end_of(files.checkpoint))
            yield lambda manifest: _publish_files(ctx.paths, manifest, files)
    elif any(manifest.messages for manifest in windows):
        with open_sink(feed, name, state.life) as out, SchemaIds(feed, may_register) as ids:
            # Another run may have sent these windows before its sink was fenced off.
            ctx.refresh()
            require_own_position(ctx.windows, feed, state, windows, out.position)
            yield lambda manifest: publish_window(ctx.paths, manifest, out, ids) if manifest.messages else SentCounts()
    else:
        yield lambda _: SentCounts()


def _publish_files(paths: LakePaths, manifest: EncodeManifest, files: FilePublisher | BinlogPublisher) -> SentCounts:
    sent = SentCounts()

    def read(after: ChangePosition | None) -> Iterator[pa.Table]:
        for part in read_sealed(paths, manifest, after):
            sent.add(part)
            yield part

    messages = files.publish_window(manifest, read)
    # No topics: files have folders instead.
    return SentCounts(messages, sent.bytes)


def publish_window(paths: LakePaths, manifest: EncodeManifest, out: FeedSink, ids: SchemaIds) -> SentCounts:
    """Send the messages that the sink does not have yet; returns what was sent.

    The last message sets the feed's position to the window's end: readers of positions then know that everything up to
    it has been sent (R-31).
    """
    sent, parts = SentCounts(), read_sealed(paths, manifest, out.position)
    pieces = (piece for part in parts for piece in split_changes(part, TRANSACTION_ROWS))
    for messages, following in pairwise(chain(pieces, [None])):
        ready = ids.add_headers(messages, manifest.schemas)
        whole = following is None and ids.refused is None
        if ready.num_rows:
            out.publish(ready, ChangePosition.after_commit(manifest.hi) if whole else find_last_position(ready))
            sent.add(ready)
        if ids.refused is not None:
            raise _locate_error(ids.refused, messages.slice(ready.num_rows, 1), paths)
    return sent


def _locate_error(error: SchemaRefused, message: pa.Table, paths: LakePaths) -> SchemaRefused:
    """`error` with the place of the first message that it blocks: table and the DDL that made its schema (S2-39)."""
    db, table, commit_ts = (message.column(name)[0].as_py() for name in (Message.DB, Message.TABLE, Message.COMMIT_TS))
    ddls = read_landed_ddls(paths, 0, commit_ts, touching=(db, table))
    where = {**error.where, "table": f"{db}.{table}", "row_commit_ts": commit_ts}
    if ddls:
        where["commit_ts"] = ddls[-1].commit_ts
    return SchemaRefused(error.message, where=where, hint=error.hint)
