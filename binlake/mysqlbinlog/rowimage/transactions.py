"""Encodes source transactions as prewrite values for a pump, in TiDB's form (tidb-binlog 1.2).

A transaction's changes stay in order: consecutive changes of one table are one mutation, whose `sequence` keeps their
order. The row events of one shape in a batch are located and encoded together, and returned event by event. Rows have
no stored lengths; a row begins where the one before it ends. A function generated for one shape, which only adds up
sizes, finds where each row begins.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import itemgetter
from struct import Struct
from typing import NamedTuple

import numpy as np

from binlake.common.varint import write_uvarint
from binlake.errors import SourceRefused
from binlake.mysqlbinlog.charsets import InvalidText
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap
from binlake.mysqlbinlog.rowimage.lanes import ROOM, Ints, PieceRows
from binlake.mysqlbinlog.rowimage.plain import encode_rows
from binlake.mysqlbinlog.rowimage.shape import ImageShape, Shape, derive_shape
from binlake.mysqlbinlog.rowimage.together import MOST_COLUMN_ID, CutShort, encode_together
from binlake.rows.schema.info import TableDef

Walk = Callable[[bytes, int], list[int]]
"""(rows, where they end) -> the offset of each row. Raises IndexError or struct.error if a row is cut short."""

_KNOWN_WALKERS = 1024
_LENGTHS = {1: "d[i]", 2: "(d[i] | d[i + 1] << 8)", 3: "(d[i] | d[i + 1] << 8 | d[i + 2] << 16)", 4: "u32(d, i)[0]"}
FEWEST = 64
"""Least number of rows for which numpy pays off; fewer are encoded one by one."""
_ROWS_AT_ONCE, _BYTES_AT_ONCE = 4096, 4 << 20
"""Limits of a piece of work, so that its columns stay in the processor's caches."""
_PLAIN_ERRORS = (
    CutShort,
    SourceRefused,
    ValueError,
    IndexError,
    KeyError,
    TypeError,
    OverflowError,
    OSError,
    struct.error,
)
INSERT_SEQUENCE = b"\x38\x00"
"""The entry of a TableMutation's `sequence` for an insert."""
_LISTS = {
    RowKind.INSERT: (0x12, 0, INSERT_SEQUENCE),
    RowKind.UPDATE: (0x1A, 1, b"\x38\x01"),
    RowKind.PARTIAL_UPDATE: (0x1A, 1, b"\x38\x01"),
    RowKind.DELETE: (0x32, 2, b"\x38\x04"),
}
"""For each list of rows in a TableMutation: protobuf's tag, its order, and the entry of `sequence` for one row."""
DefinitionOf = Callable[[TableMap], TableDef | None]
"""The definition for a table map at its position; None: the table is excluded."""
Guard = Callable[[RowsEvent, Shape | None], None]
"""Raises an error for an event whose transaction must not be published; no shape: its table is excluded."""
# Protobuf's tags of PrewriteValue and TableMutation.
_VERSION, _MUTATION, _TABLE_ID = b"\x08", b"\x12", b"\x08"
_KNOWN_NUMBERS = 1 << 16


@lru_cache(_KNOWN_WALKERS)
def compile_walker(shape: Shape) -> Walk:
    """The walker of a shape; not for partial updates, whose rows contain more than images."""
    lines = ["def walk(d, n):", " i, out = 0, []", " add = out.append", " while i < n:", "  add(i)"]
    for image in shape.images:
        lines += _render_image_lines(image)
    lines += [" if i != n: raise IndexError(i)", " return out"]
    names: dict[str, Walk] = {}
    exec("\n".join(lines), {"u32": Struct("<I").unpack_from}, names)
    return names["walk"]


def _render_image_lines(image: ImageShape) -> Iterator[str]:
    size, count = image.null_bytes, len(image.columns)
    bits = _LENGTHS[size] if size < 3 else f"int.from_bytes(d[i:i + {size}], 'little')"
    # Bits beyond the last column may be set.
    yield f"  b = {bits} & {(1 << count) - 1}"
    yield f"  i += {size}"
    yield "  if not b:"
    yield from (f"   {line}" for line in _render_whole_lines(image))
    yield "  else:"
    for index, column in enumerate(image.columns):
        layout = column.layout
        step = f"{layout.prefix} + {_LENGTHS[layout.prefix]}" if layout.prefix else str(layout.size)
        yield f"   if not b & {1 << index}: i += {step}"


def _render_whole_lines(image: ImageShape) -> Iterator[str]:
    """Lines for rows without NULLs: consecutive columns of fixed size are one step."""
    step, length = 0, ""
    for column in image.columns:
        layout = column.layout
        if layout.prefix:
            yield f"i += {step}{length}"
            step, length = layout.prefix, f" + {_LENGTHS[layout.prefix]}"
        else:
            step += layout.size
    yield f"i += {step}{length}"


class MutationEntries(NamedTuple):
    """The rows of an event as a mutation of the table holds them.

    `order`: the number of their list in it; `data`: their entries there, tags and lengths included; `sequence`: their
    part of that list.
    """

    table_id: int
    order: int
    data: memoryview | bytes
    sequence: bytes


class EventGroup:
    """The `events` of one `shape`. `rows`: number of rows of each. Raises WireError for damaged events."""

    def __init__(self, shape: Shape, events: Sequence[RowsEvent]) -> None:
        self._shape, self._events = shape, events
        self._plain: list[list[bytes]] | None = None
        if shape.kind is RowKind.PARTIAL_UPDATE or not _fits(shape):
            self._plain = [encode_rows(event, shape, 0) for event in events]
            self.rows = np.fromiter(map(len, self._plain), np.int64, len(events))
            return
        self._data = b"".join([*(event.rows for event in events), bytes(ROOM)])
        sizes = np.fromiter((len(event.rows) for event in events), np.int64, len(events))
        self._limits: Ints = np.concatenate((np.zeros(1, np.int64), sizes.cumsum()))
        self._starts, self._bounds = self._walk()
        self.rows = np.diff(self._bounds)

    def _walk(self) -> tuple[Ints, Ints]:
        """Where each row begins, plus the end; the number of each event's first row, plus the total."""
        size = len(self._data) - ROOM
        try:
            starts = np.asarray([*compile_walker(self._shape)(self._data, size), size], np.int64)
            bounds: Ints = np.searchsorted(starts, self._limits)
            # No row spans two events.
            if np.array_equal(starts[bounds], self._limits):
                return starts, bounds
        except (IndexError, struct.error):
            pass
        for event in self._events:
            encode_rows(event, self._shape, 0)
        raise AssertionError("rows that can be read one by one were not located together")

    def encode(self, numbers: Ints) -> list[MutationEntries]:
        """The entries of each event; `numbers`: the number of its first row within its transaction."""
        if self._plain is not None:
            return [self._encode_entries(rows) for rows in self._plain]
        if len(self._starts) <= FEWEST:
            return self._encode_one_by_one(0, len(self._events), numbers)
        entries: list[MutationEntries] = []
        for first, last in self._split_into_shares():
            entries += self._encode_together(first, last, numbers)
        return entries

    def _split_into_shares(self) -> list[tuple[int, int]]:
        """(first, last) events of pieces of work."""
        shares, first = [], 0
        while first < len(self._events):
            by_rows = np.searchsorted(self._bounds, self._bounds[first] + _ROWS_AT_ONCE)
            by_bytes = np.searchsorted(self._limits, self._limits[first] + _BYTES_AT_ONCE)
            last = min(max(int(min(by_rows, by_bytes)), first + 1), len(self._events))
            shares.append((first, last))
            first = last
        return shares

    def _encode_together(self, first: int, last: int, numbers: Ints) -> list[MutationEntries]:
        low, high = int(self._bounds[first]), int(self._bounds[last])
        if low == high:
            return [self._build_entries(b"", 0)] * (last - first)
        counts = self.rows[first:last]
        row_numbers = np.arange(low, high) + np.repeat(numbers[first:last] - self._bounds[first:last], counts)
        rows = PieceRows.of(self._data, self._starts[low:high], self._starts[low + 1 : high + 1])
        try:
            data, row_ends = encode_together(self._shape, rows, row_numbers, _LISTS[self._shape.kind][0])
        except _PLAIN_ERRORS:
            # The plain writer names the damaged row, or handles it.
            return self._encode_one_by_one(first, last, numbers)
        table_id, (_, order, sequence) = self._shape.table.id, _LISTS[self._shape.kind]
        bounds = np.concatenate((np.zeros(1, np.int64), row_ends))[self._bounds[first : last + 1] - low].tolist()
        return [
            MutationEntries(table_id, order, data[start:end], sequence * count)
            for start, end, count in zip(bounds, bounds[1:], counts.tolist(), strict=False)
        ]

    def _encode_one_by_one(self, first: int, last: int, numbers: Ints) -> list[MutationEntries]:
        return [
            self._encode_entries(encode_rows(self._events[index], self._shape, int(numbers[index])))
            for index in range(first, last)
        ]

    def _encode_entries(self, rows: list[bytes]) -> MutationEntries:
        tag = bytes((_LISTS[self._shape.kind][0],))
        return self._build_entries(b"".join([tag + write_uvarint(len(row)) + row for row in rows]), len(rows))

    def _build_entries(self, data: bytes, count: int) -> MutationEntries:
        _, order, sequence = _LISTS[self._shape.kind]
        return MutationEntries(self._shape.table.id, order, data, sequence * count)


def _fits(shape: Shape) -> bool:
    return all(0 < c.info.id < MOST_COLUMN_ID for image in shape.images for c in image.columns)


def encode_transactions(
    batch: Sequence[Collection[RowsEvent]],
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
    shape_by_event = EventShapes(definition_of, invalid_text).find_shape
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
    parts = encode_events(shaped, bounds, on_rows)
    version = encode_version(schema_version)
    return [_encode_value(version, parts[first:last]) for first, last in pairwise(bounds)]


def encode_inserts(schema_version: int, table_id: int, entries: memoryview | bytes, rows: int) -> bytes:
    """A serialised PrewriteValue of `rows` inserts, given as the `entries` of its list of inserts."""
    part = MutationEntries(table_id, 0, entries, INSERT_SEQUENCE * rows)
    return _encode_value(encode_version(schema_version), [part])


class EventShapes:
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


def encode_events(
    shaped: list[tuple[RowsEvent, Shape]], bounds: list[int], on_rows: Callable[[int], None], rows_before: int = 0
) -> list[MutationEntries]:
    """The encoded rows of each event. `bounds`: of the transactions; `rows_before`: of the first one."""
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
    numbers = before - before[firsts] + 1 + rows_before
    encoded: dict[int, MutationEntries] = {}
    for shape, own in indexes.items():
        encoded.update(zip(own, groups[shape].encode(numbers[own]), strict=True))
    return [encoded[index] for index in range(len(shaped))]


def _encode_value(version: bytes, parts: list[MutationEntries]) -> bytes:
    if len(parts) == 1:
        table_id, _, data, sequence = parts[0]
        head = encode_table_head(table_id)
        return b"".join((version, encode_mutation_head(len(head) + len(data) + len(sequence)), head, data, sequence))
    if not parts:
        return b""
    pieces: list[memoryview | bytes] = [version]
    for table_id, group in groupby(parts, key=itemgetter(0)):
        pieces += encode_mutation(table_id, list(group))
    return b"".join(pieces)


def encode_mutation(table_id: int, parts: list[MutationEntries]) -> list[memoryview | bytes]:
    """The pieces of a mutation, preceded by its tag and length."""
    pieces: list[memoryview | bytes] = [part.data for part in sorted(parts, key=itemgetter(1))]
    pieces += [part.sequence for part in parts]
    head = encode_table_head(table_id)
    return [encode_mutation_head(len(head) + sum(map(len, pieces))), head, *pieces]


def encode_version(schema_version: int) -> bytes:
    """The begin of a PrewriteValue."""
    return _VERSION + write_uvarint(schema_version)


@lru_cache(_KNOWN_NUMBERS)
def encode_mutation_head(size: int) -> bytes:
    """What precedes a mutation of `size` bytes."""
    return _MUTATION + write_uvarint(size)


@lru_cache(_KNOWN_NUMBERS)
def encode_table_head(table_id: int) -> bytes:
    """The begin of a mutation."""
    return _TABLE_ID + write_uvarint(table_id)
