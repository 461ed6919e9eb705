"""publish: the sealed messages of a feed, in their order, to its sink; needs no Spark.

What the sink holds of the feed decides where it goes on, so a run that was killed repeats nothing. A schema that the
registry refuses stops the feed behind the last message before it (S2-38, S2-39).
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from binlake.errors import IncompleteWindow
from binlake.feed.manifest import EncodeManifest
from binlake.feed.schemaids import SchemaIds
from binlake.feed.sealed import last_position, read_sealed, split_changes
from binlake.feed.sink import Sink, open_sink
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import feed_sink
from spark_jobs.job.context import Bounds, StageContext, StageResult

TRANSACTION_ROWS = 20_000
"""Messages of one Kafka transaction: what a consumer of committed ones waits for."""


def run(ctx: StageContext, bounds: Bounds, name: str) -> StageResult:
    """Publish what the feed `name` has encoded up to `bounds.hi`.

    Raises IncompleteWindow when nothing is encoded, ImmutableWindow, SchemaRefused, Fenced, Permanent, Transient.
    """
    feed, sink, began = ctx.replication.feed_of(name), feed_sink(name), time.monotonic()
    windows = windows_to_publish(ctx, sink, bounds.hi)
    if not windows:
        return StageResult("publish", "already", bounds.lo, bounds.hi, detail={"feed": name})
    sent = 0
    with ExitStack() as stack:
        if any(manifest.messages for manifest in windows):
            out = stack.enter_context(open_sink(feed, ctx.replication.name))
            ids = stack.enter_context(SchemaIds(feed))
        for manifest in windows:
            first = time.monotonic()
            if manifest.messages:
                sent += publish_window(ctx.paths, manifest, out, ids)
            event = WindowEvent("publish", manifest.lo, manifest.hi, "done", manifest.messages,
                                time.monotonic() - first, ctx.run_id, sink, "", {"feed": name})  # fmt: skip
            ctx.windows.record(event)
    lo, hi, seconds = windows[0].lo, windows[-1].hi, time.monotonic() - began
    return StageResult("publish", "done", lo, hi, sent, seconds, "", {"feed": name})


def windows_to_publish(ctx: StageContext, sink: str, hi: int) -> list[EncodeManifest]:
    """The encoded windows that are not published, in order; of one that was encoded again, what was sealed last.

    Raises IncompleteWindow.
    """
    reached = ctx.windows.reached("publish", sink) or 0
    events = ctx.windows.events(stage="encode", state="done", within=(reached, hi), sealed=True)
    sealed = {(event["lo"], event["hi"]): event["manifest"] for event in events if event["sink"] == sink}
    manifests = [EncodeManifest.from_json(text) for (_, end), text in sorted(sealed.items()) if reached < end <= hi]
    if not manifests and reached < hi:
        raise IncompleteWindow("a feed's window is not encoded", where={"sink": sink}, hint="run encode first")
    return manifests


def publish_window(paths: LakePaths, manifest: EncodeManifest, out: Sink, ids: SchemaIds) -> int:
    """The number of messages that were sent; those that the sink had already are passed over."""
    sent = 0
    for part in read_sealed(paths, manifest, out.position):
        for messages in split_changes(part, TRANSACTION_ROWS):
            ready = ids.add_headers(messages, manifest.schemas)
            if ready.num_rows:
                out.publish(ready, last_position(ready))
                sent += ready.num_rows
            if ids.refused is not None:
                raise ids.refused
    return sent
