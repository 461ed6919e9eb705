"""Source transactions to the prewrite values that a pump takes, in TiDB's form (tidb-binlog 1.2).

A transaction's changes stay in their order: neighbours of one table are one mutation, whose `sequence` tells theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from binlake.base.varint import write_uvarint
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap
from binlake.mysqlbinlog.rowimage.plain import encode_rows
from binlake.mysqlbinlog.rowimage.shape import Shape, shape_of
from binlake.rows.schema.info import TableDef

DefinitionOf = Callable[[TableMap], TableDef | None]
"""A table map to the definition of its place; None: the table is left out."""

# Protobuf's tags of the fields, and of `sequence` also what an entry says.
_VERSION, _MUTATION, _TABLE_ID = b"\x08", b"\x12", b"\x08"
_INSERTED, _UPDATED, _DELETED = b"\x12", b"\x1a", b"\x32"
_FIELDS = {
    RowKind.INSERT: (_INSERTED, b"\x38\x00"),
    RowKind.UPDATE: (_UPDATED, b"\x38\x01"),
    RowKind.PARTIAL_UPDATE: (_UPDATED, b"\x38\x01"),
    RowKind.DELETE: (_DELETED, b"\x38\x04"),
}


class EncodedRows(NamedTuple):
    """The rows of an event as entries of their field, tags and lengths included; `rows`: how many."""

    table_id: int
    kind: RowKind
    entries: bytes
    rows: int


def encode_transactions(
    batch: Sequence[Sequence[RowsEvent]], definition_of: DefinitionOf, schema_version: int
) -> list[bytes]:
    """A serialised PrewriteValue for each transaction of `batch`; b"" for one without a change that is wanted.

    All of them stand between the same two DDLs. Raises SchemaError where a definition and the log differ or a type
    cannot be replicated, WireError for rows that are not whole or are damaged.
    """
    shapes = _Shapes(definition_of)
    return [_value(schema_version, _encoded(events, shapes)) for events in batch]


class _Shapes:
    """The shapes of a batch's events: asked for once a table map and kind."""

    def __init__(self, definition_of: DefinitionOf) -> None:
        self._definition_of = definition_of
        self._tables: dict[TableMap, TableDef | None] = {}
        self._shapes: dict[tuple[TableMap, RowKind, bytes, bytes], Shape] = {}

    def of(self, event: RowsEvent) -> Shape | None:
        """The shape of an event's rows; None where its table is left out."""
        key = (event.table, event.kind, event.before, event.after)
        shape = self._shapes.get(key)
        if shape is None:
            if event.table not in self._tables:
                self._tables[event.table] = self._definition_of(event.table)
            table = self._tables[event.table]
            if table is None:
                return None
            shape = self._shapes[key] = shape_of(event, table)
        return shape


def _encoded(events: Iterable[RowsEvent], shapes: _Shapes) -> list[EncodedRows]:
    encoded: list[EncodedRows] = []
    number = 1
    for event in events:
        shape = shapes.of(event)
        if shape is None:
            continue
        rows = encode_rows(event, shape, number)
        tag = _FIELDS[event.kind][0]
        entries = b"".join([tag + write_uvarint(len(row)) + row for row in rows])
        encoded.append(EncodedRows(shape.table.id, event.kind, entries, len(rows)))
        number += len(rows)
    return encoded


def _value(schema_version: int, encoded: list[EncodedRows]) -> bytes:
    if not encoded:
        return b""
    mutations = [_mutation(table_id, list(group)) for table_id, group in groupby(encoded, key=lambda e: e.table_id)]
    return _VERSION + write_uvarint(schema_version) + b"".join(mutations)


def _mutation(table_id: int, encoded: list[EncodedRows]) -> bytes:
    fields: dict[bytes, list[bytes]] = {_INSERTED: [], _UPDATED: [], _DELETED: []}
    sequence: list[bytes] = []
    for part in encoded:
        tag, entry = _FIELDS[part.kind]
        fields[tag].append(part.entries)
        sequence.append(entry * part.rows)
    parts = [_TABLE_ID, write_uvarint(table_id), *(entry for field in fields.values() for entry in field), *sequence]
    body = b"".join(parts)
    return _MUTATION + write_uvarint(len(body)) + body
