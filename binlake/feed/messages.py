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

from binlake.changes.net.events import rows_by_table
from binlake.feed.avro.bodies import encode_keys, encode_values
from binlake.feed.avro.options import AvroOptions
from binlake.feed.avro.schema import key_columns, key_schema, value_schema
from binlake.feed.topics import Topics
from binlake.rows.schema import TableDef
from binlake.statements.maps import images_from_maps
from binlake.window.definitions import Segments, WindowDefinitions

Array = Any
"""A pyarrow Array (pyarrow has no stubs)."""
Ints = npt.NDArray[np.int64]

MESSAGE_SCHEMA = pa.schema(
    [
        ("commit_ts", pa.int64()),
        ("start_ts", pa.int64()),
        ("seq", pa.int32()),
        ("db", pa.string()),
        ("table", pa.string()),
        ("op", pa.string()),
        ("topic", pa.string()),
        ("key_schema", pa.string()),
        ("value_schema", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
    ]
)
"""`op`: c, u or d; the schemas by fingerprint; `key` and `value` are bodies without header, `value` NULL for d."""


def fingerprint(schema: str) -> str:
    """What a schema's text is called in `message`: 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(schema.encode())


@dataclass(frozen=True)
class TableForm:
    """How the rows of one definition are sent: `topic` and the texts of both schemas."""

    table: TableDef
    topic: str
    key_schema: str
    value_schema: str


class AvroEncoder:
    """Encodes the rows of one window. `forms`: those met so far, whose schemas the fingerprints name."""

    def __init__(
        self, definitions: WindowDefinitions, segments: Segments, topics: Topics, options: AvroOptions
    ) -> None:
        self._definitions, self._segments = definitions, segments
        self._topics, self._options = topics, options
        self._starts = np.array(segments.starts, np.int64)
        self.forms: dict[tuple[str, str, int], TableForm] = {}

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

    def _groups(self, rows: pa.RecordBatch) -> Iterator[tuple[tuple[str, str], int, Ints]]:
        """The numbers of the rows of each table and segment, in their order."""
        segments = np.searchsorted(self._starts, np.asarray(rows.column("commit_ts")), side="right")
        for name, numbers in rows_by_table(rows):
            own = segments[numbers]
            for segment in np.unique(own):
                yield name, int(segment), numbers[own == segment]

    def _form(self, db: str, table: str, segment: int) -> TableForm:
        form = self.forms.get((db, table, segment))
        if form is None:
            definition = self._definitions.within(db, table, *self._segments.bounds(segment))
            form = self.forms[db, table, segment] = TableForm(
                definition,
                self._topics.topic(db, table),
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
        gone, form, pa.repeat("d", len(gone)), encode_keys(form.table, old, options), pa.nulls(len(gone), pa.binary())
    )
    values = encode_values(form.table, new, words, stays.column("commit_ts"), options)
    writes = _table(stays, form, words, encode_keys(form.table, new, options), values)
    return pa.concat_tables([deletions, writes]), np.concatenate([2 * removed, 2 * written + 1])


def _table(rows: pa.RecordBatch, form: TableForm, ops: Array, keys: Array, values: Array) -> pa.Table:
    texts = (form.topic, fingerprint(form.key_schema), fingerprint(form.value_schema))
    columns = [rows.column(name) for name in ("commit_ts", "start_ts", "seq", "db", "table")]
    columns += [ops, *(pa.repeat(text, rows.num_rows) for text in texts), keys, values]
    return pa.Table.from_arrays(columns, schema=MESSAGE_SCHEMA)
