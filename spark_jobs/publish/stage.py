"""publish: the sealed messages of a feed, in their order, to Kafka; needs no Spark.

What Kafka holds of the feed decides where it goes on, so a run that was killed repeats nothing. A schema that the
registry refuses stops the feed behind the last message before it (S2-38, S2-39).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from binlake.base import rowhash
from binlake.base.lakecolumns import Message
from binlake.config.feed import Feed
from binlake.errors import ConfigError, ImmutableWindow, IncompleteWindow
from binlake.feed.kafka import Outgoing, Position, Publisher
from binlake.feed.manifest import EncodeManifest
from binlake.feed.messages import ORDER
from binlake.feed.registry import Registry, SchemaRefused, header
from binlake.lake.dataset import open_dataset
from binlake.lake.opentable import open_table
from binlake.lake.tables import MESSAGE, message_table
from binlake.lake.windowlog import WindowEvent
from binlake.pipeline import feed_sink
from binlake.rules.topics import subject_of
from spark_jobs.job.context import Bounds, StageContext, StageResult

TRANSACTION_ROWS = 20_000
"""Messages of one Kafka transaction: what a consumer of committed ones waits for."""


def run(ctx: StageContext, bounds: Bounds, name: str) -> StageResult:
    """Publish what the feed `name` has encoded up to `bounds.hi`.

    Raises IncompleteWindow when nothing is encoded, ImmutableWindow, SchemaRefused, Fenced, Permanent, Transient.
    """
    feed, sink, began = ctx.replication.feed_of(name), feed_sink(name), time.monotonic()
    windows = _windows(ctx, sink, bounds.hi)
    if not windows:
        return StageResult("publish", "already", bounds.lo, bounds.hi, detail={"feed": name})
    sent = 0
    for manifest in windows:
        first = time.monotonic()
        sent += _publish(ctx, feed, manifest)
        event = WindowEvent("publish", manifest.lo, manifest.hi, "done", manifest.messages, time.monotonic() - first,
                            ctx.run_id, sink, "", {"feed": name})  # fmt: skip
        ctx.windows.record(event)
    lo, hi, seconds = windows[0].lo, windows[-1].hi, time.monotonic() - began
    return StageResult("publish", "done", lo, hi, sent, seconds, "", {"feed": name})


def _windows(ctx: StageContext, sink: str, hi: int) -> list[EncodeManifest]:
    """The encoded windows that are not published, in order; of one that was encoded again, what was sealed last."""
    reached = ctx.windows.reached("publish", sink) or 0
    events = ctx.windows.events(stage="encode", state="done", within=(reached, hi), sealed=True)
    sealed = {(event["lo"], event["hi"]): event["manifest"] for event in events if event["sink"] == sink}
    manifests = [EncodeManifest.from_json(text) for (_, end), text in sorted(sealed.items()) if reached < end <= hi]
    if not manifests and reached < hi:
        raise IncompleteWindow("a feed's window is not encoded", where={"sink": sink}, hint="run encode first")
    return manifests


def _publish(ctx: StageContext, feed: Feed, manifest: EncodeManifest) -> int:
    """The number of messages that were sent; those that Kafka had already are passed over."""
    messages = _pinned(ctx, feed, manifest)
    if not messages.num_rows:
        return 0
    kafka = feed.sink.kafka
    if kafka is None or not feed.schema_registry:
        raise ConfigError(
            "a feed needs a Kafka sink and a schema registry", where={"feed": feed.name}, hint="set schema-registry"
        )
    sent = 0
    name = f"{ctx.replication.name}.{feed.name}"
    with Registry(feed.schema_registry) as registry, Publisher(kafka, name, transactions=feed.transactions) as out:
        registry.require_answer()
        ids = _Ids(registry, manifest)
        left = _behind(messages, out.position)
        for part in _transactions(left):
            ready = ids.known_part(part)
            if ready.num_rows:
                out.publish(_outgoing(ready, ids), _last(ready))
                sent += ready.num_rows
            ids.require_all_known()
    return sent


def _pinned(ctx: StageContext, feed: Feed, manifest: EncodeManifest) -> pa.Table:
    """The messages that `manifest` pins, in order. Raises ImmutableWindow."""
    data = open_dataset(open_table(ctx.paths.table(message_table(feed.name).name)))
    own = ds.field(Message.WINDOW) == manifest.window
    messages = data.to_table(columns=MESSAGE.column_names(), filter=own)
    digest = rowhash.digest_of(rowhash.fold(rowhash.row_hashes(messages, messages.column_names)))
    if digest != manifest.digest:
        raise ImmutableWindow(
            "the messages in the lake differ from those that encode sealed",
            where={"feed": feed.name, "window": manifest.window},
            hint="run encode of that window again",
        )
    return messages.sort_by([(name, "ascending") for name in ORDER])


def _behind(messages: pa.Table, position: Position | None) -> pa.Table:
    if position is None:
        return messages
    places = zip(*(messages.column(name).to_pylist() for name in ORDER[:3]), strict=True)
    first = next((number for number, place in enumerate(places) if place > position), messages.num_rows)
    return messages.slice(first)


def _last(messages: pa.Table) -> Position:
    return Position(*(messages.column(name)[-1].as_py() for name in ORDER[:3]))


def _transactions(messages: pa.Table) -> Iterator[pa.Table]:
    """The messages in parts that end with a whole change."""
    start, parts = 0, np.asarray(messages.column(Message.PART))
    while start < messages.num_rows:
        end = min(start + TRANSACTION_ROWS, messages.num_rows)
        # The deletion of a moved key goes with the row that follows it.
        end += int(end < messages.num_rows and parts[end] == 1 and parts[end - 1] == 0)
        yield messages.slice(start, end - start)
        start = end


@dataclass
class _Ids:
    """The registry's ids of the schemas of one window, asked for as messages need them."""

    registry: Registry
    manifest: EncodeManifest

    def __post_init__(self) -> None:
        self._headers: dict[tuple[str, str, str], bytes] = {}
        self._refused: SchemaRefused | None = None

    def known_part(self, messages: pa.Table) -> pa.Table:
        """The messages before the first whose schema is refused: all of them as a rule."""
        pairs = messages.select([Message.TOPIC, Message.KEY_SCHEMA, Message.VALUE_SCHEMA, Message.OP])
        seen: set[tuple[str, str, str]] = set()
        for number, (topic, key, value, op) in enumerate(_distinct_rows(pairs)):
            needed = [(topic, "key", key)] + ([(topic, "value", value)] if op != "d" else [])
            for name in needed:
                if name not in seen and not self._is_known(name):
                    return messages.slice(0, number)
                seen.add(name)
        return messages

    def header(self, topic: str, part: str, schema: str) -> bytes:
        """What stands before the body."""
        return self._headers[topic, part, schema]

    def require_all_known(self) -> None:
        """Raises SchemaRefused with the registry's words where a schema was refused."""
        if self._refused is not None:
            raise self._refused

    def _is_known(self, name: tuple[str, str, str]) -> bool:
        topic, part, schema = name
        if name not in self._headers:
            try:
                number = self.registry.id_of(subject_of(topic, part), self.manifest.schemas[schema])
            except SchemaRefused as error:
                self._refused = error
                return False
            self._headers[name] = header(number)
        return True


def _distinct_rows(rows: pa.Table) -> Iterator[Sequence[str]]:
    return zip(*(column.to_pylist() for column in rows.columns), strict=True)


def _outgoing(messages: pa.Table, ids: _Ids) -> list[Outgoing]:
    names = (Message.TOPIC, Message.HASH, Message.KEY, Message.VALUE, Message.COMMIT_TS, Message.KEY_SCHEMA,
             Message.VALUE_SCHEMA)  # fmt: skip
    return [
        Outgoing(
            topic,
            number,
            ids.header(topic, "key", key_schema) + key,
            None if value is None else ids.header(topic, "value", value_schema) + value,
            commit_ts,
        )
        for topic, number, key, value, commit_ts, key_schema, value_schema in zip(
            *(messages.column(name).to_pylist() for name in names), strict=True
        )
    ]
