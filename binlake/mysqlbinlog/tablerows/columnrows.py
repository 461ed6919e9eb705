"""Rows of a SELECT as a block of columns (`columnblocks`): the texts that a decoder would read from their datums.

A server's text of a number, a time or a text is the canonical one already, except in the odd forms that are checked for
here. Everything else (JSON, ENUM, BIT, odd numbers) is written as its datum and read again, once for each distinct
value. So every text is that of the row which `rowblocks` would write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.arrowcolumns import encode_dictionary
from binlake.base.varint import write_uvarint
from binlake.mysqlbinlog.rowimage.charsets import InvalidText, build_utf8_writer
from binlake.mysqlbinlog.rowimage.lanes import Bytes
from binlake.mysqlbinlog.rowimage.pieces import Values
from binlake.mysqlbinlog.rowimage.together import CutShort
from binlake.mysqlbinlog.tablerows import textlanes
from binlake.mysqlbinlog.tablerows.rowblocks import INSERTED
from binlake.mysqlbinlog.tablerows.rowtexts import Write, build_row_text_writers, is_read_as_bytes
from binlake.rows.codec.columnblocks import encode_column_block
from binlake.rows.codec.columns import format_reals
from binlake.rows.codec.lanes import format_hex
from binlake.rows.codec.tabledecoder import build_reader
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

BLOCK_ROWS, BLOCK_BYTES = 16_384, 4 << 20
"""Most rows and bytes of a block."""
_ODD = (CutShort, ValueError, IndexError, OverflowError, struct.error)
_ZERO, _POINT, _MINUS = (ord(letter) for letter in "0.-")

_Convert = Callable[[pa.Array], pa.Array]
"""Converts a column's texts, as the server sent them (binary), to canonical texts; NULL stays NULL."""


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
            data, words, starts, ends = textlanes.pad_packets(packets)
            texts = textlanes.find_texts(words, starts, ends, len(self._columns))
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
