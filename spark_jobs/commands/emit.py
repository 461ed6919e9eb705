"""`binlake backfill emit`: encode and send a landed range of commit_ts again, while the feed itself continues.

Rule: the range is sent by a temporary feed with a start and an end. So each message is sent once, however often the
process is killed, and the original feed's position does not change.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import xxhash

from binlake.config.feed import FeedSection
from binlake.errors import ConfigError
from binlake.extras.changefeed.section import build_section, dump_section_keys
from binlake.feed.schemaids import SchemaOrder
from binlake.feed.sink import forget_position
from binlake.feed.state import read_state, record_removal
from binlake.lake.opentable import delete_table
from binlake.lake.tables import build_message_table
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import name_feed_sink
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.results import StageResult
from binlake.spark_jobs.stages import encode, publish


@dataclass(frozen=True)
class Destination:
    """Where a range is sent: `topic` with {schema} and {table}, `sink_uri`; if empty, where the feed sends."""

    topic: str = ""
    sink_uri: str = ""


def emit(ctx: StageContext, name: str, lo: int, hi: int, to: Destination) -> list[StageResult]:
    """Send the changes of (lo, hi] again as the feed `name` does. Raises ConfigError, what the stages raise.

    If a run was killed, a second one with the same range and destination resumes it.
    """
    whole = _require_landed(ctx, lo, hi)
    feed = build_temporary_feed(ctx.replication.require_feed(name), lo, hi, to)
    with_feed = ctx.replication.model_copy(update={"feed": (*ctx.replication.feed, feed)})
    own = replace(ctx, replication=with_feed)
    order = SchemaOrder(ctx.replication, feed, whole.lo, whole.hi)
    range_ = Bounds(lo, hi)
    results = [encode.run(own, range_, feed.name), publish.run(own, range_, feed.name, order.may_follow)]
    life = read_state(ctx.windows, feed.name).life
    forget_position(feed, ctx.replication.name, life)
    delete_table(ctx.paths.locate_table(build_message_table(feed.name).name))
    # Last: until then the window log shows what was sent, so a run that is killed before this line sends nothing twice.
    record_removal(ctx.windows, feed.name, run_id=ctx.run_id, reason="the range is sent")
    rows, seconds = results[-1].rows, sum(one.seconds for one in results)
    detail = {**results[-1].detail, "feed": name, "mode": "emit", "topic": to.topic}
    event = WindowEvent("emit", lo, hi, "done", rows, seconds, ctx.run_id, name_feed_sink(name), detail=detail)
    ctx.windows.record(event)
    return [StageResult("emit", "done", lo, hi, rows, seconds, detail=detail)]


def build_temporary_feed(feed: FeedSection, lo: int, hi: int, to: Destination) -> FeedSection:
    """The temporary feed that sends the range. Raises ConfigError if the feed's own files already hold the range."""
    if feed.sink.storage is not None and not to.sink_uri:
        raise ConfigError(
            "the feed's files already hold the range", where={"feed": feed.name}, hint="give another sink: --sink-uri"
        )
    given: dict[str, object] = {"sink-uri": to.sink_uri} if to.sink_uri else {}
    if to.topic:
        given["dispatchers"] = [{"matcher": ["*.*"], "topic": to.topic}]
    mark = xxhash.xxh3_64_hexdigest(f"{lo}-{hi}-{to.topic}-{to.sink_uri}".encode())
    name = f"{feed.name[:100]}-again-{mark}"
    return build_section(
        given, "", {**dump_section_keys(feed), "name": name, "start-ts": str(lo), "target-ts": str(hi)}
    )


def _require_landed(ctx: StageContext, lo: int, hi: int) -> Bounds:
    """The landed range, which holds (lo, hi]. Raises ConfigError."""
    landed = ctx.windows.find_landed_range()
    if landed is None or not landed[0] <= lo < hi <= landed[1]:
        raise ConfigError(
            "the lake does not hold the whole range", where={"from": lo, "to": hi, "landed": f"{landed[0]}-{landed[1]}"
            if landed else "nothing"}, hint="choose a range within the landed one",
        )  # fmt: skip
    return Bounds(*landed)
