"""A feed's messages, in commit order: of row changes, of DDL, and the watermark at a window's end.

Row changes are a pure function of `mutation`, definitions and options. Rule: one message per change; changes are never
merged (S2-02). A change of the key is sent as the deletion of the old key and the insertion of the new one (S2-48),
unless the feed is configured for raw updates. A row has the schema at its commit_ts, never the present one (hazards
R-18). A DDL comes before the rows with its definition, a watermark after everything of its window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from binlake.changes.net.events import group_rows_by_table
from binlake.common.lakecolumns import Message, Mutation
from binlake.common.rowhash import hash_rows
from binlake.ddl.definitions import LandedDdl, Segments, WindowDefinitions
from binlake.feed.formats import (
    DELETE,
    INSERT,
    UPDATE,
    Bodies,
    Changes,
    FeedEvent,
    Format,
    MessageSchemas,
    find_row_key,
)
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rules.topics import Topics
from binlake.statements.maps import ImageMaps

Array = Any
"""A pyarrow Array (pyarrow has no stubs)."""
Ints = npt.NDArray[np.int64]

MESSAGE_SCHEMA = pa.schema(
    [
        (Message.COMMIT_TS, pa.int64()),
        (Message.START_TS, pa.int64()),
        (Message.SEQ, pa.int32()),
        (Message.PART, pa.int32()),
        (Message.DB, pa.string()),
        (Message.TABLE, pa.string()),
        (Message.OP, pa.string()),
        (Message.TOPIC, pa.string()),
        (Message.HASH, pa.int64()),
        (Message.KEY_SCHEMA, pa.string()),
        (Message.VALUE_SCHEMA, pa.string()),
        (Message.KEY, pa.binary()),
        (Message.VALUE, pa.binary()),
    ]
)
"""The columns of the lake's message table that encode computes; the window is added later."""
ORDER = (Message.COMMIT_TS, Message.START_TS, Message.SEQ, Message.PART)
_PLACE = ORDER[:3]
_IMAGES = [Mutation.BEFORE, Mutation.AFTER]
FIRST_PARTITION = 0
"""The hash that selects partition 0 for any number of partitions."""


def compute_fingerprint(schema: str) -> str:
    """The fingerprint of a schema's text in messages: 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(schema.encode())


@dataclass(frozen=True)
class MessageForm:
    """How rows of one definition are sent: topic, partition rule, key columns and schemas."""

    table: TableDef
    topic: str
    partition: str
    key: tuple[ColumnInfo, ...]
    schemas: MessageSchemas


class MessageEncoder:
    """Encodes the rows of one window."""

    def __init__(self, definitions: WindowDefinitions, segments: Segments, topics: Topics, format_: Format) -> None:
        """`format_`: the feed's format."""
        self._definitions, self._segments = definitions, segments
        self._topics, self._format = topics, format_
        self._starts = np.array(segments.starts, np.int64)
        self._forms: dict[tuple[str, str, int], MessageForm] = {}

    def encode(self, rows: pa.RecordBatch) -> pa.Table:
        """Convert rows of `mutation`, whole transactions in commit order, to messages (MESSAGE_SCHEMA) in that order.

        Raises ConfigError for a table that cannot be sent, SchemaError for a row that does not fit its definition.
        """
        if not rows.num_rows:
            return MESSAGE_SCHEMA.empty_table()
        try:
            return self._encode(rows)
        except pa.ArrowCapacityError:
            # Messages are larger than their rows, and a column of messages can have at most 2 GiB: split the rows.
            half = rows.num_rows // 2
            if not half or self._format.whole_transactions:
                raise
            return pa.concat_tables([self.encode(rows.slice(0, half)), self.encode(rows.slice(half))])

    def _encode(self, rows: pa.RecordBatch) -> pa.Table:
        parts, orders = [], []
        for (db, table), segment, numbers in self._group_rows(rows):
            form = self._find_form(db, table, segment)
            for changes, part, places in _split_by_kind(rows, numbers, form.table, self._format.splits_moves):
                parts.append(self._build_messages(form, changes, part))
                orders.append(2 * places + part)
        order = np.argsort(np.concatenate(orders), kind="stable")
        messages = pa.concat_tables(parts)
        return self._format.assemble(messages if _is_sorted(order) else messages.take(pa.array(order)))

    def collect_schemas(self) -> dict[str, str]:
        """The texts of all schemas that the messages so far refer to, by fingerprint."""
        texts = (text for form in self._forms.values() for text in form.schemas if text is not None)
        return {compute_fingerprint(text): text for text in texts}

    def _group_rows(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], int, Ints]]:
        """The row numbers of each table and segment, in order."""
        segments = np.searchsorted(self._starts, np.asarray(rows.column("commit_ts")), side="right")
        for name, numbers in group_rows_by_table(rows):
            own = segments[numbers]
            for segment in np.unique(own):
                yield name, int(segment), numbers[own == segment]

    def _find_form(self, db: str, table: str, segment: int) -> MessageForm:
        form = self._forms.get((db, table, segment))
        if form is None:
            definition = self._definitions.require_definition_within(db, table, *self._segments.find_bounds(segment))
            form = self._forms[db, table, segment] = MessageForm(
                definition,
                self._topics.find_topic(db, table),
                self._topics.find_dispatcher(db, table).partition,
                find_row_key(definition),
                self._format.build_schemas(definition),
            )
        return form

    def _build_messages(self, form: MessageForm, changes: Changes, part: int) -> pa.Table:
        count, rows = len(changes), changes.rows
        bodies: Bodies = self._format.encode(changes)
        columns = [rows.column(name) for name in _PLACE]
        columns += [pa.repeat(pa.scalar(part, pa.int32()), count), rows.column("db"), rows.column("table")]
        columns += [pa.repeat(changes.op, count), pa.repeat(form.topic, count), self._compute_hashes(form, changes)]
        columns += [_repeat(text, count) for text in form.schemas]
        return pa.Table.from_arrays([*columns, *bodies], schema=MESSAGE_SCHEMA)

    def _compute_hashes(self, form: MessageForm, changes: Changes) -> Array:
        """The hashes that choose the partition. With index-value, equal keys of a table have equal hashes."""
        count = len(changes)
        if self._format.one_partition:
            return pa.repeat(pa.scalar(FIRST_PARTITION, pa.int64()), count)
        if form.partition == "ts":
            return changes.commit_ts
        # Rows without a key use their table's hash, which keeps them in order.
        key = changes.select_last(form.key).values() if form.partition == "index-value" else ()
        columns = [pa.repeat(f"{form.table.db}.{form.table.name}", count), *key]
        own = pa.table(columns, [str(number) for number in range(len(columns))])
        return pa.array((hash_rows(own, own.column_names) >> np.uint64(1)).astype(np.int64))


def _split_by_kind(
    rows: pa.RecordBatch, numbers: Ints, table: TableDef, splits_moves: bool
) -> Iterator[tuple[Changes, int, Ints]]:
    """For each kind: the changes among the rows `numbers`, their part number within a change, and their row numbers."""
    selected = rows if len(numbers) == rows.num_rows else rows.take(pa.array(numbers))
    maps, others = {side: ImageMaps(selected.column(side)) for side in _IMAGES}, selected.drop_columns(_IMAGES)
    ops = np.asarray(selected.column(Mutation.OP))
    moved = np.asarray(pc.is_valid(selected.column(Mutation.NEW_KEY))) & splits_moves
    kinds = (
        (DELETE, 0, (ops == "delete") | moved),
        (INSERT, 1, (ops == "insert") | moved),
        (UPDATE, 1, (ops == "update") & ~moved),
    )
    for op, part, wanted in kinds:
        places = np.flatnonzero(wanted)
        if len(places):
            changes = Changes(table, op, others.take(pa.array(places)), maps, places)
            yield changes, part, numbers[places]


def _is_sorted(order: Ints) -> bool:
    return bool((np.diff(order) == 1).all())


def _repeat(text: str | None, count: int) -> Array:
    return pa.nulls(count, pa.string()) if text is None else pa.repeat(compute_fingerprint(text), count)


DDL, WATERMARK = "ddl", "watermark"
"""Values of `op` besides the kinds of a row change."""
_BEHIND_ALL = (1 << 63) - 1
_WHOLE = 1

Takes = Callable[[str, str], bool]
"""Tells whether a feed sends the table (db, table)."""


def encode_ddls(format_: Format, topics: Topics, takes: Takes, ddls: Sequence[LandedDdl]) -> pa.Table:
    """The messages of DDL that is not skipped, each once per topic of its tables (MESSAGE_SCHEMA)."""
    rows: list[dict[str, object]] = []
    for ddl in ddls:
        event = format_.encode_ddl(ddl) if ddl.decision != "skip" else None
        for topic in sorted(_find_topics(ddl, topics, takes)) if event is not None else ():
            rows.append(_build_row((ddl.since, 0, len(rows)), (ddl.db, ddl.table), DDL, topic, event))
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def count_unsent(format_: Format, topics: Topics, takes: Takes, ddls: Sequence[LandedDdl]) -> int:
    """The number of DDL without a message in `encode_ddls`."""
    return sum(not encode_ddls(format_, topics, takes, [ddl]).num_rows for ddl in ddls)


def encode_watermarks(format_: Format, topics: Iterable[str], hi: int) -> pa.Table:
    """A message for each of `topics` that no change at or below `hi` will follow (MESSAGE_SCHEMA)."""
    event = format_.encode_watermark(hi)
    named = sorted(set(topics)) if event is not None else ()
    rows = [
        _build_row((hi, _BEHIND_ALL, number), ("", ""), WATERMARK, topic, event) for number, topic in enumerate(named)
    ]
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA)


def _find_topics(ddl: LandedDdl, topics: Topics, takes: Takes) -> set[str]:
    # A DDL on a database is treated as one on a table with an empty name.
    return {topics.find_topic(*name) for name in ddl.tables or {(ddl.db, "")} if takes(*name)}


def _build_row(
    position: tuple[int, int, int], name: tuple[str, str], op: str, topic: str, event: FeedEvent | None
) -> dict[str, object]:
    key, value, everywhere = event or (None, None, True)
    number = None if everywhere else FIRST_PARTITION
    row = (*position, _WHOLE, *name, op, topic, number, None, None, key, value)
    return dict(zip(MESSAGE_SCHEMA.names, row, strict=True))
