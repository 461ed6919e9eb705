"""Encodes many rows of a SELECT at once, column by column, to the same bytes as `rowtexts.RowWriter`.

If a row does not have the form in which servers send it, the plain writer encodes all rows of its block.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from binlake.base.varint import write_uvarint
from binlake.mysqlbinlog.rowimage.charsets import InvalidText
from binlake.mysqlbinlog.rowimage.columns import encode_comparable_floats
from binlake.mysqlbinlog.rowimage.lanes import Ints, LaneBuffer, encode_zigzag
from binlake.mysqlbinlog.rowimage.pieces import (
    FRAME,
    NUMBER_ROOM,
    TEXT_ROOM,
    Output,
    PieceRows,
    Values,
    join_pieces,
    put_text,
)
from binlake.mysqlbinlog.rowimage.together import MOST_COLUMN_ID, CutShort
from binlake.mysqlbinlog.tablerows import textlanes
from binlake.mysqlbinlog.tablerows.rowtexts import (
    AS_NUMBER,
    RowWriter,
    Write,
    build_row_text_writers,
    handle_datums,
    is_read_as_bytes,
)
from binlake.rows.codec import datum as d
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

BLOCK_ROWS, BLOCK_BYTES = 4096, 1 << 20
"""Limits of rows that are written together: their columns stay in the processor's caches."""
_FEWEST = 64
"""Least number of rows for which numpy pays off."""
INSERTED = 0x12
"""Protobuf's tag of TableMutation.inserted_rows."""
_PLAIN_ERRORS = (CutShort, ValueError, IndexError, OverflowError, struct.error)

_Write = Callable[[Output, Values], None]


class InsertEntries(NamedTuple):
    """Rows as entries of a TableMutation's list of inserts, preceded by their lengths, and where each ends."""

    data: memoryview | bytes
    ends: Ints

    def split_into_parts(self, most_rows: int, most_bytes: int) -> Iterator[tuple[int, memoryview | bytes]]:
        """(rows, entries) of parts with at most this many rows and bytes; a longer row is a part by itself."""
        first, begin, count = 0, 0, len(self.ends)
        while first < count:
            by_bytes = int(np.searchsorted(self.ends, begin + most_bytes, "right"))
            last = max(min(first + most_rows, by_bytes), first + 1)
            end = int(self.ends[last - 1])
            yield last - first, self.data[begin:end]
            first, begin = last, end


def group_into_blocks(
    packets: Iterable[list[bytes]], most_rows: int = BLOCK_ROWS, most_bytes: int = BLOCK_BYTES
) -> Iterator[list[bytes]]:
    """The same packets, grouped into blocks that are written together: the first ones that reach one of the limits."""
    block, size = list[bytes](), 0
    for group in packets:
        block += group
        size += sum(map(len, group))
        if len(block) >= most_rows or size >= most_bytes:
            yield block
            block, size = [], 0
    if block:
        yield block


class _Column(NamedTuple):
    """How a column is written; `room`: the most bytes that it takes in the sink; `cuts`: a text, a separate piece."""

    write: _Write
    room: int
    cuts: bool


class BlockWriter:
    """Writes inserts of `table` from the packets of its rows."""

    def __init__(self, table: TableDef, invalid_text: InvalidText | None = None) -> None:
        self._plain = RowWriter(table, invalid_text=invalid_text)
        columns = table.row_columns
        keys = [n for n, c in enumerate(columns) if table.pk_is_handle and c.flag & t.FLAG_PRIMARY]
        self._handle = keys[0] if keys else None
        self._fits = all(0 < column.id < MOST_COLUMN_ID for column in columns) and bool(columns)
        writers = build_row_text_writers(table, invalid_text)
        self._columns = [
            _build_column(column, write, as_bytes=is_read_as_bytes(column, invalid_text))
            for column, write in zip(columns, writers, strict=True)
            if self._fits
        ]
        self._handles_before = handle_datums(table)
        self._stride = (
            FRAME + NUMBER_ROOM * self._handles_before + sum(column.room for column in self._columns) + TEXT_ROOM
        )

    def write(self, packets: list[bytes]) -> InsertEntries:
        """The inserts for the rows, in their order."""
        if self._fits and len(packets) >= _FEWEST:
            try:
                return self._encode_together(packets)
            except _PLAIN_ERRORS:
                # The plain writer names the damaged row, or handles it.
                pass
        rows = self._plain.write(packets)
        entries = [bytes((INSERTED,)) + write_uvarint(len(row)) + row for row in rows]
        return InsertEntries(b"".join(entries), np.fromiter(map(len, entries), np.int64, len(entries)).cumsum())

    def _encode_together(self, packets: list[bytes]) -> InsertEntries:
        data, words, starts, ends = textlanes.pad_packets(packets)
        texts = textlanes.find_texts(words, starts, ends, len(self._columns))
        out = Output(PieceRows(data, words, starts, ends), LaneBuffer(len(packets), self._stride))
        out.begin(FRAME)
        handles = encode_zigzag(self._handles(out, texts))
        for _ in range(self._handles_before):
            out.sink.put_number(b"\x08", b"\x00", handles, None)
            out.offset += NUMBER_ROOM
        for column, values in zip(self._columns, texts, strict=True):
            column.write(out, values)
            if column.cuts:
                out.begin(out.offset + column.room)
            else:
                out.offset += column.room
        out.end()
        if self._handle is None:
            self._plain.next_handle += len(packets)
        return InsertEntries(*join_pieces(out, INSERTED))

    def _handles(self, out: Output, texts: list[Values]) -> Ints:
        if self._handle is not None:
            return textlanes.read_integers(out.rows.words, texts[self._handle])
        first = self._plain.next_handle
        return np.arange(first, first + len(out.rows.starts), dtype=np.int64)


def _build_column(column: ColumnInfo, write_datum: Write, *, as_bytes: bool) -> _Column:
    head = d.write_int(column.id)
    if as_bytes or column.tp == t.JSON:
        return _Column(_build_plain_value_writer(head, write_datum), TEXT_ROOM, True)
    if column.tp in t.STRINGS:
        return _Column(lambda out, values: put_text(out, head, values), TEXT_ROOM, True)
    if column.tp == t.NEWDECIMAL:
        precision, scale = derive_decimal_layout(column)
        room = len(head) + 3 + d.compute_decimal_size(precision, scale) + 8
        return _Column(_build_decimal_writer(head, precision, scale), room, False)
    if column.tp in (t.FLOAT, t.DOUBLE):
        return _Column(_build_float_writer(head), NUMBER_ROOM, False)
    return _Column(_number_writer(head, column), NUMBER_ROOM, False)


def _number_writer(head: bytes, column: ColumnInfo) -> _Write:
    is_signed = column.tp in (t.YEAR, t.DURATION) or (column.tp in t.INTEGERS and not column.unsigned)
    read = _choose_reader(column)
    full, null_head = head + (b"\x08" if is_signed else b"\x09"), head + b"\x00"

    def write(out: Output, values: Values) -> None:
        numbers = read(out.rows.words, values)
        if values.null is not None:
            numbers = np.where(values.null, 0, numbers)
        out.sink.put_number(
            full, null_head, encode_zigzag(numbers) if is_signed else numbers.view(np.uint64), values.null
        )

    return write


def _choose_reader(column: ColumnInfo) -> textlanes.NumberReader:
    if column.tp in t.INTEGERS | AS_NUMBER or column.tp == t.YEAR:
        return textlanes.read_integers
    return textlanes.build_duration_reader(column) if column.tp == t.DURATION else textlanes.build_moment_reader(column)


def _build_float_writer(head: bytes) -> _Write:
    full, null_head = head + b"\x05", head + b"\x00"

    def write(out: Output, values: Values) -> None:
        bits = textlanes.read_doubles(out.rows.data, values)
        word = encode_comparable_floats(bits, np.arange(len(bits)), 8)
        out.sink.put_words(full, null_head, [word], 8, values.null)

    return write


def _build_decimal_writer(head: bytes, precision: int, scale: int) -> _Write:
    full, null_head = head + bytes((d.DECIMAL, precision, scale)), head + b"\x00"
    size = d.compute_decimal_size(precision, scale)

    def write(out: Output, values: Values) -> None:
        words = textlanes.read_decimal_words(out.rows.words, values, precision, scale)
        out.sink.put_words(full, null_head, words, size, values.null)

    return write


def _build_plain_value_writer(head: bytes, write_datum: Write) -> _Write:
    """A writer for values that the plain writer encodes."""
    word = np.uint64(int.from_bytes(head, "little"))

    def write(out: Output, values: Values) -> None:
        assert values.size is not None
        data = out.rows.data
        nulls = values.null.tolist() if values.null is not None else [False] * len(values.at)
        spans = zip(nulls, values.at.tolist(), (values.at + values.size).tolist(), strict=True)
        made = [b"\x00" if null else write_datum(data[start:end].tobytes()) for null, start, end in spans]
        ends = np.fromiter(map(len, made), np.int64, len(made)).cumsum()
        out.made.append(b"".join(made))
        out.sink.put(word, len(head))
        out.append_text(len(out.made), np.concatenate((np.zeros(1, np.int64), ends[:-1])), ends)

    return write
