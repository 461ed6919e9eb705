"""Encodes many rows of a SELECT at once: as rows, to the same bytes as `rowtexts.RowWriter`, or as a block of columns.

If a row does not have the form in which servers send it, the plain writer encodes all rows of its block.

A block of columns (`columnblocks`) has the texts that a decoder would read from the rows' datums. A server's text of a
number, a time or a text is the canonical one already, except in the odd forms that are checked for here. Everything
else (JSON, ENUM, BIT, odd numbers) is written as its datum and read again, once for each distinct value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import encode_dictionary
from binlake.common.varint import write_uvarint
from binlake.mysqlbinlog.charsets import InvalidText, build_utf8_writer
from binlake.mysqlbinlog.rowimage.lanes import (
    FRAME,
    NUMBER_ROOM,
    TEXT_ROOM,
    Bytes,
    Ints,
    LaneBuffer,
    Output,
    PieceRows,
    Values,
    encode_zigzag,
    join_pieces,
    put_text,
)
from binlake.mysqlbinlog.rowimage.numbers import encode_comparable_floats
from binlake.mysqlbinlog.rowimage.together import MOST_COLUMN_ID, CutShort
from binlake.mysqlbinlog.tablerows import rowtexts
from binlake.mysqlbinlog.tablerows.rowtexts import (
    AS_NUMBER,
    RowWriter,
    Write,
    build_row_text_writers,
    handle_datums,
    is_read_as_bytes,
)
from binlake.rows.codec import datum as d
from binlake.rows.codec.columnblocks import encode_column_block
from binlake.rows.codec.columns import format_reals
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.codec.lanes import format_hex
from binlake.rows.codec.tabledecoder import build_reader
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
COLUMN_BLOCK_ROWS, COLUMN_BLOCK_BYTES = 16_384, 4 << 20
"""Most rows and bytes of a block."""
_ODD = (CutShort, ValueError, IndexError, OverflowError, struct.error)
_ZERO, _POINT, _MINUS = (ord(letter) for letter in "0.-")
_Convert = Callable[[pa.Array], pa.Array]
"""Converts a column's texts, as the server sent them (binary), to canonical texts; NULL stays NULL."""


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
        data, words, starts, ends = rowtexts.pad_packets(packets)
        texts = rowtexts.find_texts(words, starts, ends, len(self._columns))
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
            return rowtexts.read_integers(out.rows.words, texts[self._handle])
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


def _choose_reader(column: ColumnInfo) -> rowtexts.NumberReader:
    if column.tp in t.INTEGERS | AS_NUMBER or column.tp == t.YEAR:
        return rowtexts.read_integers
    return rowtexts.build_duration_reader(column) if column.tp == t.DURATION else rowtexts.build_moment_reader(column)


def _build_float_writer(head: bytes) -> _Write:
    full, null_head = head + b"\x05", head + b"\x00"

    def write(out: Output, values: Values) -> None:
        bits = rowtexts.read_doubles(out.rows.data, values)
        word = encode_comparable_floats(bits, np.arange(len(bits)), 8)
        out.sink.put_words(full, null_head, [word], 8, values.null)

    return write


def _build_decimal_writer(head: bytes, precision: int, scale: int) -> _Write:
    full, null_head = head + bytes((d.DECIMAL, precision, scale)), head + b"\x00"
    size = d.compute_decimal_size(precision, scale)

    def write(out: Output, values: Values) -> None:
        words = rowtexts.read_decimal_words(out.rows.words, values, precision, scale)
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


class ColumnWriter:
    """Writes blocks of inserts of `table` from the packets of its rows."""

    def __init__(self, table: TableDef, invalid_text: InvalidText | None = None) -> None:
        writers = build_row_text_writers(table, invalid_text)
        self._columns = {
            column.id: _choose_conversion(column, write, as_bytes=is_read_as_bytes(column, invalid_text))
            for column, write in zip(table.row_columns, writers, strict=True)
        }

    def write(self, packets: list[bytes]) -> bytes | None:
        """The block as the only entry of a TableMutation's list of inserts.

        A single row is one, too: windows with nothing but blocks cost less. None if a row does not have the form in
        which servers send it: a row writer names the damaged row, or handles it.
        """
        if not packets or not self._columns:
            return None
        try:
            data, words, starts, ends = rowtexts.pad_packets(packets)
            texts = rowtexts.find_texts(words, starts, ends, len(self._columns))
            columns = {
                column_id: convert(_cut(data, values))
                for (column_id, convert), values in zip(self._columns.items(), texts, strict=True)
            }
        except _ODD:
            return None
        block = encode_column_block(columns)
        return bytes((INSERTED,)) + write_uvarint(len(block)) + block


def _cut(data: Bytes, values: Values) -> pa.Array:
    """The values as binaries."""
    assert values.size is not None
    bounds = np.empty(2 * len(values.at), np.int32)
    bounds[::2], bounds[1::2] = values.at, values.at + values.size
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    return pieces.take(pa.array(np.arange(0, len(bounds), 2), mask=values.null))


def _choose_conversion(column: ColumnInfo, write: Write, *, as_bytes: bool) -> _Convert:
    if as_bytes:
        return _build_decoding_conversion(column, write)
    plainly = _build_plain_conversion(column, write)
    if column.tp in t.STRINGS:
        return _convert_bytes if column.is_binary else _read_utf8
    if column.tp in t.INTEGERS:
        kind = pa.uint64() if column.unsigned else pa.int64()
        return lambda texts: _read_utf8(texts).cast(kind).cast(pa.string())
    if column.tp in (t.FLOAT, t.DOUBLE):
        return lambda texts: _convert_reals(texts, single=column.tp == t.FLOAT)
    if column.tp == t.NEWDECIMAL:
        return lambda texts: plainly(texts) if _has_zerofill(texts) or _has_minus_zero(texts) else _read_utf8(texts)
    if column.tp == t.DURATION:
        return lambda texts: plainly(texts) if _has_minus_zero(texts) else _read_utf8(texts)
    is_moment = column.tp in t.MOMENTS or column.tp in t.DATES
    return _read_utf8 if is_moment else plainly


def _read_utf8(texts: pa.Array) -> pa.Array:
    """The same as texts. Raises ValueError if one is not UTF-8."""
    return texts.cast(pa.string())


def _convert_bytes(texts: pa.Array) -> pa.Array:
    found = format_hex(texts)
    return found if not texts.null_count else pc.if_else(texts.is_valid(), found, pa.scalar(None, pa.string()))


def _convert_reals(texts: pa.Array, *, single: bool) -> pa.Array:
    numbers = _read_utf8(texts).cast(pa.float64())
    found = format_reals(numbers.fill_null(0.0).to_numpy(), single=single)
    return found if not texts.null_count else pc.if_else(texts.is_valid(), found, pa.scalar(None, pa.string()))


def _has_zerofill(texts: pa.Array) -> bool:
    """Whether a DECIMAL may have leading zeros."""
    first, second = _read_beginnings(texts)
    return bool(((first == _ZERO) & (second != _POINT) & (second != 0)).any())


def _has_minus_zero(texts: pa.Array) -> bool:
    """Whether a text has a minus before zero."""
    first, _ = _read_beginnings(texts)
    negative = texts.filter(pa.array(first == _MINUS)).cast(pa.string())
    return bool(pc.any(pc.match_substring_regex(negative, "^-[0:.]*$")).as_py())


def _read_beginnings(texts: pa.Array) -> tuple[Bytes, Bytes]:
    """The first and the second byte of each text; 0 where there is none."""
    _, offsets, buffer = texts.buffers()
    at = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    data = np.frombuffer(b"".join((memoryview(buffer), b"\0\0")) if buffer is not None else b"\0\0", np.uint8)
    sizes = np.diff(at)
    return np.where(sizes > 0, data[at[:-1]], 0), np.where(sizes > 1, data[at[:-1] + 1], 0)


def _build_decoding_conversion(column: ColumnInfo, write: Write) -> _Convert:
    """As `_build_plain_conversion`, for bytes of a text: each in which bytes are replaced is written, and counts."""
    plainly, to_utf8 = _build_plain_conversion(column, write), build_utf8_writer(column.charset)
    assert to_utf8 is not None

    def convert(texts: pa.Array) -> pa.Array:
        found = plainly(texts)
        for value, count in zip(*pc.value_counts(texts.drop_null()).flatten(), strict=True):
            try:
                to_utf8(value.as_py())
            except UnicodeDecodeError:
                for _ in range(count.as_py() - 1):
                    write(value.as_py())
        return found

    return convert


def _build_plain_conversion(column: ColumnInfo, write: Write) -> _Convert:
    """The datum of each distinct value, read as a decoder reads it."""
    read = build_reader(column)

    def convert(texts: pa.Array) -> pa.Array:
        coded = encode_dictionary(texts)
        found = [read(write(value), 0)[0] for value in coded.dictionary.to_pylist()]
        return pa.array(found, pa.string()).take(coded.indices)

    return convert
