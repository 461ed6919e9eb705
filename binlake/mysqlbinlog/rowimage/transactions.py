"""Encodes source transactions as prewrite values for a pump, in TiDB's form (tidb-binlog 1.2).

A transaction's changes stay in order: consecutive changes of one table are one mutation, whose `sequence` keeps their
order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np

from binlake.base.varint import write_uvarint
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap
from binlake.mysqlbinlog.rowimage.charsets import InvalidText
from binlake.mysqlbinlog.rowimage.groups import INSERT_SEQUENCE, EventGroup, MutationEntries
from binlake.mysqlbinlog.rowimage.shape import Shape, derive_shape
from binlake.rows.schema.info import TableDef

DefinitionOf = Callable[[TableMap], TableDef | None]
"""The definition for a table map at its position; None: the table is excluded."""
Guard = Callable[[RowsEvent, Shape | None], None]
"""Raises an error for an event whose transaction must not be published; no shape: its table is excluded."""

# Protobuf's tags of PrewriteValue and TableMutation.
_VERSION, _MUTATION, _TABLE_ID = b"\x08", b"\x12", b"\x08"
_KNOWN_NUMBERS = 1 << 16


def encode_transactions(
    batch: Sequence[Sequence[RowsEvent]],
    definition_of: DefinitionOf,
    schema_version: int,
    on_rows: Callable[[int], None] = lambda _: None,
    guard: Guard | None = None,
    invalid_text: InvalidText = "refuse",
) -> list[bytes]:
    """A serialised PrewriteValue for each transaction of `batch`; b"" for one without included changes.

    `on_rows` is called with the number of rows, `guard` with each event before any is encoded.

    All of them must lie between the same two DDLs. Raises SchemaError if a definition and the log differ or a type
    cannot be replicated, SourceRefused for incomplete rows, WireError for damaged ones.
    """
    shape_by_event = _Shapes(definition_of, invalid_text).find_shape
    shaped: list[tuple[RowsEvent, Shape]] = []
    bounds = [0]
    for events in batch:
        for event in events:
            shape = shape_by_event(event)
            if guard is not None:
                guard(event, shape)
            if shape is not None:
                shaped.append((event, shape))
        bounds.append(len(shaped))
    parts = _encode_events(shaped, bounds, on_rows)
    version = _VERSION + write_uvarint(schema_version)
    return [_encode_value(version, parts[first:last]) for first, last in pairwise(bounds)]


def encode_inserts(schema_version: int, table_id: int, entries: memoryview | bytes, rows: int) -> bytes:
    """A serialised PrewriteValue of `rows` inserts, given as the `entries` of its list of inserts."""
    part = MutationEntries(table_id, 0, entries, INSERT_SEQUENCE * rows)
    return _encode_value(_VERSION + write_uvarint(schema_version), [part])


class _Shapes:
    """The shapes of a batch's events: determined once for each table map and kind."""

    def __init__(self, definition_of: DefinitionOf, invalid_text: InvalidText) -> None:
        self._definition_of, self._invalid_text = definition_of, invalid_text
        # First by object identity: a table map has many fields, and is shared by many events.
        self._by_object: dict[tuple[int, int, bytes, bytes], Shape | None] = {}
        self._shapes: dict[tuple[TableMap, RowKind, bytes, bytes], Shape | None] = {}
        self._tables: dict[TableMap, TableDef | None] = {}

    def find_shape(self, event: RowsEvent) -> Shape | None:
        """The shape of an event's rows; None if its table is excluded."""
        key = (id(event.table), id(event.kind), event.before, event.after)
        try:
            return self._by_object[key]
        except KeyError:
            shape = self._by_object[key] = self._find_by_content(event)
            return shape

    def _find_by_content(self, event: RowsEvent) -> Shape | None:
        key = (event.table, event.kind, event.before, event.after)
        if key not in self._shapes:
            if event.table not in self._tables:
                self._tables[event.table] = self._definition_of(event.table)
            table = self._tables[event.table]
            self._shapes[key] = None if table is None else derive_shape(event, table, self._invalid_text)
        return self._shapes[key]


def _encode_events(
    shaped: list[tuple[RowsEvent, Shape]], bounds: list[int], on_rows: Callable[[int], None]
) -> list[MutationEntries]:
    """The encoded rows of each event; `bounds`: of the transactions."""
    indexes: dict[Shape, list[int]] = {}
    for index, (_, shape) in enumerate(shaped):
        indexes.setdefault(shape, []).append(index)
    groups = {shape: EventGroup(shape, [shaped[index][0] for index in own]) for shape, own in indexes.items()}
    rows = np.zeros(len(shaped) + 1, np.int64)
    for shape, own in indexes.items():
        rows[1:][own] = groups[shape].rows
    on_rows(int(rows.sum()))
    # The number of an event's first row in its transaction makes handles of rows without a key unique.
    before = rows.cumsum()[:-1]
    firsts = np.repeat(np.asarray(bounds[:-1], np.int64), np.diff(bounds))
    numbers = before - before[firsts] + 1
    encoded: dict[int, MutationEntries] = {}
    for shape, own in indexes.items():
        encoded.update(zip(own, groups[shape].encode(numbers[own]), strict=True))
    return [encoded[index] for index in range(len(shaped))]


def _encode_value(version: bytes, parts: list[MutationEntries]) -> bytes:
    if len(parts) == 1:
        table_id, _, data, sequence = parts[0]
        head = _encode_table_head(table_id)
        return b"".join((version, _encode_mutation_head(len(head) + len(data) + len(sequence)), head, data, sequence))
    if not parts:
        return b""
    pieces: list[memoryview | bytes] = [version]
    for table_id, group in groupby(parts, key=itemgetter(0)):
        pieces += _encode_mutation(table_id, list(group))
    return b"".join(pieces)


def _encode_mutation(table_id: int, parts: list[MutationEntries]) -> list[memoryview | bytes]:
    """The pieces of a mutation, preceded by its tag and length."""
    pieces: list[memoryview | bytes] = [part.data for part in sorted(parts, key=itemgetter(1))]
    pieces += [part.sequence for part in parts]
    head = _encode_table_head(table_id)
    return [_encode_mutation_head(len(head) + sum(map(len, pieces))), head, *pieces]


@lru_cache(_KNOWN_NUMBERS)
def _encode_mutation_head(size: int) -> bytes:
    return _MUTATION + write_uvarint(size)


@lru_cache(_KNOWN_NUMBERS)
def _encode_table_head(table_id: int) -> bytes:
    return _TABLE_ID + write_uvarint(table_id)
