"""`binlake backfill emit`: a range of commit_ts that has landed is encoded again and sent, beside the feed.

Rule: it is a feed of its own for as long as it takes, with a start and an end, so that each message comes once however
often it is killed, and the feed's position is not touched.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace

import xxhash

from binlake.config.feed import Feed
from binlake.config.model import Replication
from binlake.errors import ConfigError
from binlake.feed.changefeed.section import make_section, section_keys
from binlake.feed.schemaorder import SchemaOrder
from binlake.feed.sink import forget_position
from binlake.feed.state import read_state, record_removal
from binlake.lake.tables import message_table
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import feed_sink
from spark_jobs.encode import stage as encode
from spark_jobs.job.context import Bounds, StageContext
from spark_jobs.job.results import StageResult
from spark_jobs.publish import stage as publish


@dataclass(frozen=True)
class Destination:
    """Where a range is sent, empty: as the feed does: `topic` with {schema} and {table}, `sink_uri`."""

    topic: str = ""
    sink_uri: str = ""


def emit(ctx: StageContext, name: str, lo: int, hi: int, to: Destination) -> list[StageResult]:
    """Send the changes of (lo, hi] once more as the feed `name` does. Raises ConfigError, what the stages raise.

    A run that was killed goes on where it was, when it is run again with the same range and destination.
    """
    whole = _require_landed(ctx, lo, hi)
    feed = emitting_feed(ctx.replication.feed_of(name), lo, hi, to)
    own = replace(ctx, replication=_with_feed(ctx.replication, feed))
    order = SchemaOrder(ctx.replication, feed, whole.lo, whole.hi)
    range_ = Bounds(lo, hi)
    results = [encode.run(own, range_, feed.name), publish.run(own, range_, feed.name, order.may_follow)]
    life = read_state(ctx.windows, feed.name).life
    forget_position(feed, ctx.replication.name, life)
    shutil.rmtree(ctx.paths.table(message_table(feed.name).name), ignore_errors=True)
    # Last: until then the window log says what is sent, and a run that is killed here sends nothing twice.
    record_removal(ctx.windows, feed.name, run_id=ctx.run_id, reason="the range is sent")
    rows, seconds = results[-1].rows, sum(one.seconds for one in results)
    detail = {**results[-1].detail, "feed": name, "mode": "emit", "topic": to.topic}
    event = WindowEvent("emit", lo, hi, "done", rows, seconds, ctx.run_id, feed_sink(name), detail=detail)
    ctx.windows.record(event)
    return [StageResult("emit", "done", lo, hi, rows, seconds, detail=detail)]


def emitting_feed(feed: Feed, lo: int, hi: int, to: Destination) -> Feed:
    """The feed for as long as the range is sent. Raises ConfigError for files, which are there already."""
    if feed.sink.storage is not None and not to.sink_uri:
        raise ConfigError(
            "a feed's files hold the range already", where={"feed": feed.name}, hint="name another place: --sink-uri"
        )
    given: dict[str, object] = {"sink-uri": to.sink_uri} if to.sink_uri else {}
    if to.topic:
        given["dispatchers"] = [{"matcher": ["*.*"], "topic": to.topic}]
    mark = xxhash.xxh3_64_hexdigest(f"{lo}-{hi}-{to.topic}-{to.sink_uri}".encode())
    name = f"{feed.name[:100]}-again-{mark}"
    return make_section(given, "", {**section_keys(feed), "name": name, "start-ts": str(lo), "target-ts": str(hi)})


def _with_feed(replication: Replication, feed: Feed) -> Replication:
    return replication.model_copy(update={"feed": (*replication.feed, feed)})


def _require_landed(ctx: StageContext, lo: int, hi: int) -> Bounds:
    """The landed range, which holds (lo, hi]. Raises ConfigError."""
    landed = ctx.windows.landed_range()
    if landed is None or not landed[0] <= lo < hi <= landed[1]:
        raise ConfigError(
            "the range is not all in the lake", where={"from": lo, "to": hi, "landed": f"{landed[0]}-{landed[1]}"
            if landed else "nothing"}, hint="choose a range within what has landed",
        )  # fmt: skip
    return Bounds(*landed)
