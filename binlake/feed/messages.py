"""Row changes as messages of a feed, in commit order: a pure function of `mutation`, the definitions and the options.

Rule: one message a change, none folded away (S2-02). A change of the key is the deletion of the old one and the
insertion of the new one (S2-48). A row has the schema of its place in the window, never today's (hazards R-18).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from binlake.base.lakecolumns import Message
from binlake.base.rowhash import row_hashes
from binlake.changes.net.events import rows_by_table
from binlake.config.sinkuri import AvroOptions
from binlake.feed.avro.bodies import encode_keys, encode_values
from binlake.feed.avro.schema import key_columns, key_schema, value_schema
from binlake.rows.schema import TableDef
from binlake.rules.topics import Topics
from binlake.statements.maps import images_from_maps
from binlake.window.definitions import Segments, WindowDefinitions

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
"""Columns of the lake's table `message` that encode makes; the other two say whose they are."""
ORDER = (Message.COMMIT_TS, Message.START_TS, Message.SEQ, Message.PART)
_PLACE = ORDER[:3]


def fingerprint(schema: str) -> str:
    """What a schema's text is called in `message`: 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(schema.encode())


@dataclass(frozen=True)
class TableForm:
    """How the rows of one definition are sent: topic, rule of the partition, and the texts of both schemas."""

    table: TableDef
    topic: str
    partition: str
    key_schema: str
    value_schema: str


class AvroEncoder:
    """Encodes the rows of one window."""

    def __init__(
        self, definitions: WindowDefinitions, segments: Segments, topics: Topics, options: AvroOptions
    ) -> None:
        self._definitions, self._segments = definitions, segments
        self._topics, self._options = topics, options
        self._starts = np.array(segments.starts, np.int64)
        self._forms: dict[tuple[str, str, int], TableForm] = {}

    def encode(self, rows: pa.RecordBatch) -> pa.Table:
        """Rows of `mutation`, in commit order, as messages (MESSAGE_SCHEMA) in the same order.

        Raises ConfigError for a table that cannot be sent, SchemaError for a row that its definition does not fit.
        """
        if not rows.num_rows:
            return MESSAGE_SCHEMA.empty_table()
        parts, orders = [], []
        for (db, table), segment, numbers in self._groups(rows):
            messages, order = _encode_group(rows.take(pa.array(numbers)), self._form(db, table, segment), self._options)
            parts.append(messages)
            orders.append(2 * numbers[order // 2] + order % 2)
        return pa.concat_tables(parts).take(pa.array(np.argsort(np.concatenate(orders), kind="stable")))

    def schemas(self) -> dict[str, str]:
        """The texts of all schemas that the messages so far name, by fingerprint."""
        texts = (text for form in self._forms.values() for text in (form.key_schema, form.value_schema))
        return {fingerprint(text): text for text in texts}

    def _groups(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], int, Ints]]:
        """The numbers of the rows of each table and segment, in their order."""
        segments = np.searchsorted(self._starts, np.asarray(rows.column("commit_ts")), side="right")
        for name, numbers in rows_by_table(rows):
            own = segments[numbers]
            for segment in np.unique(own):
                yield name, int(segment), numbers[own == segment]

    def _form(self, db: str, table: str, segment: int) -> TableForm:
        form = self._forms.get((db, table, segment))
        if form is None:
            definition = self._definitions.within(db, table, *self._segments.bounds(segment))
            form = self._forms[db, table, segment] = TableForm(
                definition,
                self._topics.topic(db, table),
                self._topics.dispatcher(db, table).partition,
                key_schema(definition, self._options),
                value_schema(definition, self._options),
            )
        return form


def _encode_group(rows: pa.RecordBatch, form: TableForm, options: AvroOptions) -> tuple[pa.Table, Ints]:
    """Messages of one table's rows, deletions first, and each one's place: twice its row's number, + 1 behind it."""
    ops = rows.column("op")
    moved = pc.is_valid(rows.column("new_key"))
    removed = np.flatnonzero(np.asarray(pc.or_(pc.equal(ops, "delete"), moved)))
    written = np.flatnonzero(np.asarray(pc.not_equal(ops, "delete")))
    words = pc.if_else(pc.and_(pc.equal(ops, "update"), pc.invert(moved)), "u", "c").take(pa.array(written))
    gone = rows.take(pa.array(removed))
    stays = rows.take(pa.array(written))
    old = images_from_maps(gone.column("before"), [column.name for column in key_columns(form.table)])
    new = images_from_maps(stays.column("after"), [column.name for column in form.table.row_columns])
    deletions = _table(
        gone,
        form,
        0,
        pa.repeat("d", len(gone)),
        encode_keys(form.table, old, options),
        pa.nulls(len(gone), pa.binary()),
    )
    values = encode_values(form.table, new, words, stays.column("commit_ts"), options)
    writes = _table(stays, form, 1, words, encode_keys(form.table, new, options), values)
    return pa.concat_tables([deletions, writes]), np.concatenate([2 * removed, 2 * written + 1])


def _table(rows: pa.RecordBatch, form: TableForm, part: int, ops: Array, keys: Array, values: Array) -> pa.Table:
    count = rows.num_rows
    columns = [rows.column(name) for name in _PLACE]
    columns += [pa.repeat(pa.scalar(part, pa.int32()), count), rows.column("db"), rows.column("table")]
    columns += [ops, pa.repeat(form.topic, count), _hashes(form, rows, keys)]
    columns += [pa.repeat(fingerprint(text), count) for text in (form.key_schema, form.value_schema)]
    return pa.Table.from_arrays([*columns, keys, values], schema=MESSAGE_SCHEMA)


def _hashes(form: TableForm, rows: pa.RecordBatch, keys: Array) -> Array:
    """What the partition is chosen by: of index-value the same number for the same key of a table, ever."""
    match form.partition:
        case "ts":
            return rows.column("commit_ts")
        case "index-value":
            own = pa.table({Message.TOPIC: pa.repeat(form.topic, len(keys)), Message.KEY: keys})
            numbers = row_hashes(own, own.column_names)
        case _:
            own = pa.table({Message.TOPIC: [form.topic]})
            numbers = np.repeat(row_hashes(own, own.column_names), len(keys))
    return pa.array((numbers >> np.uint64(1)).astype(np.int64))
