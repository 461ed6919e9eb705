"""Rows of a SELECT as TiDB's rows: the expression selected for each column, and the datum of its text.

Texts are as the server sends them in a session of `opening`: UTF-8 whatever the column's charset, UTC, numbers in full.
With `invalid_text`, the bytes of other charsets are selected and read as those of the log are: the server would replace
bytes without a character. ENUM, SET and BIT are selected as numbers; FLOAT and DOUBLE(10,3) as the stored DOUBLE, since
their texts are rounded.

Numbers and times of many texts are read at once, from words of the texts' bytes. A server has one form for each type; a
text of another length raises CutShort, and the plain writer is used. There are FRONT bytes before the first text, and
`lanes.ROOM` after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.mysqlbinlog.charsets import InvalidText, build_text_writer, build_utf8_writer, find_replaced_columns
from binlake.mysqlbinlog.rowimage.lanes import Bools, Bytes, Ints, Uints, Values, view_words
from binlake.mysqlbinlog.rowimage.together import CutShort
from binlake.mysqlbinlog.tablerows.link import read_row_values
from binlake.rows.codec import datum as d
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.codec.jsons import write_json
from binlake.rows.codec.temporal import pack_moment, parse_duration
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote_name

AS_NUMBER = frozenset({t.ENUM, t.SET, t.BIT})
_NIL = bytes((d.NIL,))
_SECONDS = len("YYYY-MM-DD HH:MM:SS")

Write = Callable[[bytes], bytes]
"""Converts a text to its datum."""
FRONT = 24
"""A number is read as the words that end with it."""
Words = NDArray[Any]
NumberReader = Callable[[Words, Values], Ints]
"""(words, texts) -> numbers; unsigned ones as signed ones with the same bits; any number for NULLs."""
_MOST_DIGITS = 20
_DATE = len("YYYY-MM-DD")
_MINUS = np.uint64(ord("-"))
_NULL = 0xFB
_PREFIX: Ints = np.ones(256, np.int64)
_PREFIX[0xFC:0xFF] = (3, 4, 9)
_MASK: Uints = np.zeros(256, np.uint64)
_MASK[0xFC:0xFF] = (0xFFFF, 0xFFFFFF, 0x00FFFFFFFFFFFFFF)
ROOM_BEHIND = 64


def select_columns(table: TableDef, invalid_text: InvalidText | None = None) -> str:
    """The select list for `table` that `RowWriter` reads."""
    return ", ".join(_build_expression(column, invalid_text) for column in table.row_columns)


def is_read_as_bytes(column: ColumnInfo, invalid_text: InvalidText | None) -> bool:
    """Whether a text is selected as its bytes. (Each byte is a character of latin1.)"""
    if invalid_text is None or column.tp not in t.STRINGS or column.is_binary:
        return False
    return column.charset != "latin1" and build_utf8_writer(column.charset) is not None


class RowWriter:
    """Writes inserts of `table` from the packets of its rows. `next_handle`: row id of the next row without a key."""

    def __init__(self, table: TableDef, next_handle: int = 1, invalid_text: InvalidText | None = None) -> None:
        self.next_handle = next_handle
        columns = table.row_columns
        self._count = len(columns)
        writers = build_row_text_writers(table, invalid_text)
        self._parts = [(d.write_int(c.id), write) for c, write in zip(columns, writers, strict=True)]
        keys = [n for n, c in enumerate(columns) if table.pk_is_handle and c.flag & t.FLAG_PRIMARY]
        self._handle = keys[0] if keys else None
        self._handles = handle_datums(table)

    def write(self, rows: Sequence[bytes]) -> list[bytes]:
        """The bytes of an insert for each row, in their order."""
        return [self._insert(read_row_values(row, self._count)) for row in rows]

    def _insert(self, values: Sequence[bytes | None]) -> bytes:
        parts = [self._handle_of(values)]
        for (name, write), value in zip(self._parts, values, strict=True):
            parts.append(name)
            parts.append(_NIL if value is None else write(value))
        return b"".join(parts)

    def _handle_of(self, values: Sequence[bytes | None]) -> bytes:
        if self._handle is None:
            self.next_handle += 1
            return d.write_int(self.next_handle - 1) * self._handles
        number = int(values[self._handle] or 0)
        return d.write_int(number - (1 << 64) if number >> 63 > 0 else number)


def handle_datums(table: TableDef) -> int:
    """Number of datums that an insert of `table` has before its columns.

    For a clustered key in TiDB, as many as the key has columns. The values of such a key are in the row as well, and
    are read from there: the datums here are only counted.
    """
    return len(table.primary_key) if table.is_common_handle else 1


def build_row_text_writers(table: TableDef, invalid_text: InvalidText | None) -> list[Write]:
    """A function for each column of `select_columns`, as `build_row_text_writer`."""
    replaced = find_replaced_columns(table, invalid_text or "refuse")
    return [
        build_text_writer(column, replaced_in=f"{table.db}.{table.name}" if column.name in replaced else "")
        if is_read_as_bytes(column, invalid_text)
        else build_row_text_writer(column)
        for column in table.row_columns
    ]


def _build_expression(column: ColumnInfo, invalid_text: InvalidText | None) -> str:
    name = quote_name(column.name)
    if is_read_as_bytes(column, invalid_text):
        return f"CAST({name} AS BINARY)"
    if column.tp in AS_NUMBER:
        return f"CAST({name} AS UNSIGNED)"
    is_rounded = column.tp == t.FLOAT or (column.tp == t.DOUBLE and column.decimal >= 0)
    return f"{name} + 0e0" if is_rounded else name


def build_row_text_writer(column: ColumnInfo) -> Write:
    """A function that converts a text selected by `select_columns` to its datum."""
    if column.tp in t.STRINGS:
        return d.write_bytes
    if column.tp in AS_NUMBER or (column.tp in t.INTEGERS and column.unsigned):
        return lambda text: d.write_uint(int(text))
    if column.tp in t.INTEGERS or column.tp == t.YEAR:
        return lambda text: d.write_int(int(text))
    if column.tp in (t.FLOAT, t.DOUBLE):
        return lambda text: d.write_float(float(text))
    if column.tp == t.NEWDECIMAL:
        return _build_decimal_writer(*derive_decimal_layout(column))
    if column.tp == t.JSON:
        return lambda text: b"\x0a" + write_json(text.decode())
    if column.tp == t.DURATION:
        return lambda text: d.write_int(parse_duration(text.decode()))
    return lambda text: d.write_uint(_pack_text(text))


def _build_decimal_writer(precision: int, scale: int) -> Write:
    """Like `write_decimal` for a text with all its decimals, at a third of the cost."""
    head, size = bytes((d.DECIMAL, precision, scale)), d.compute_decimal_size(precision, scale)
    slices, at = list[tuple[int, int, int]](), 0
    for width, digits in d.list_decimal_groups(precision, scale):
        slices.append((at, at + digits, width))
        at += digits
    sign, mask = 1 << 8 * size - 1, (1 << 8 * size) - 1

    def write(text: bytes) -> bytes:
        negative = text[:1] == b"-"
        # A server shows a zero before the point even if the type has no such digit.
        digits = text.lstrip(b"-").replace(b".", b"").rjust(precision, b"0")[-precision:]
        number = 0
        for first, end, width in slices:
            number = number << 8 * width | int(digits[first:end])
        if negative and number:
            number ^= mask
        return head + (number ^ sign).to_bytes(size, "big")

    return write


def _pack_text(text: bytes) -> int:
    """Like `pack_moment`, for a text that a server sent, `YYYY-MM-DD[ HH:MM:SS[.ffffff]]`."""
    day = _pack_day(text[:10])
    if len(text) < _SECONDS:
        return day
    clock = int(text[11:13]) << 12 | int(text[14:16]) << 6 | int(text[17:19])
    micro = int(text[20:].ljust(6, b"0")) if len(text) > _SECONDS else 0
    return day | clock << 24 | micro


@lru_cache(maxsize=65536)
def _pack_day(text: bytes) -> int:
    return pack_moment(text.decode())


def read_digits(words: Words, first: Ints, end: Ints) -> Uints:
    """The number in each text of at most 8 digits; 0 for an empty one."""
    size = end - first
    spare = np.minimum(64 - (size << 3), 56).view(np.uint64)
    word = (words[end - 8] >> spare) << spare
    word &= np.uint64(0x0F0F0F0F0F0F0F0F)
    # Combine neighbours: pairs, fours, all eight.
    word = word * np.uint64(10 << 8 | 1) >> np.uint64(8)
    word = (word & np.uint64(0x00FF00FF00FF00FF)) * np.uint64(100 << 16 | 1) >> np.uint64(16)
    word = (word & np.uint64(0x0000FFFF0000FFFF)) * np.uint64(10_000 << 32 | 1) >> np.uint64(32)
    numbers: Uints = word if int(size.min()) else np.where(size == 0, np.uint64(0), word)
    return numbers


def read_integers(words: Words, values: Values) -> Ints:
    """Integers, including unsigned ones above the signed range."""
    first, negative = _split_sign(words, values)
    end = values.at + _get_sizes(values)
    longest = int((end - first).max())
    if longest > _MOST_DIGITS:
        raise CutShort("a whole number has too many digits")
    magnitudes = read_digits(words, np.maximum(first, end - 8), end)
    for power in (8, 16):
        if longest > power:
            high = np.maximum(first, end - power)
            magnitudes = magnitudes + read_digits(words, np.maximum(first, end - power - 8), high) * np.uint64(
                10**power
            )
    numbers: Ints = magnitudes.view(np.int64)
    return np.where(negative, -numbers, numbers) if negative.any() else numbers


def build_moment_reader(column: ColumnInfo) -> NumberReader:
    """TiDB's packed time of DATE, DATETIME and TIMESTAMP."""
    fsp = max(column.decimal, 0) if column.tp in t.MOMENTS else 0
    is_date = column.tp in t.DATES
    whole = _DATE if is_date else _SECONDS + (fsp + 1 if fsp else 0)

    def read(words: Words, values: Values) -> Ints:
        _require_size(values, whole)
        at = values.at
        year = read_digits(words, at, at + 4).view(np.int64)
        packed = (year * 13 + _read_pair(words, at + 5)) << 5 | _read_pair(words, at + 8)
        packed <<= 17
        if not is_date:
            packed |= _read_pair(words, at + 11) << 12 | _read_pair(words, at + 14) << 6 | _read_pair(words, at + 17)
        return packed << 24 | _read_micro(words, at + whole, fsp)

    return read


def build_duration_reader(column: ColumnInfo) -> NumberReader:
    """Nanoseconds of TIME."""
    fsp = max(column.decimal, 0)
    tail = len(":MM:SS") + (fsp + 1 if fsp else 0)

    def read(words: Words, values: Values) -> Ints:
        first, negative = _split_sign(words, values)
        end = values.at + _get_sizes(values)
        colon = end - tail
        hours_size = colon - first if values.null is None else np.where(values.null, 2, colon - first)
        if int(hours_size.min()) < 1 or int(hours_size.max()) > 8:
            raise CutShort("a time does not have the expected form")
        hours = read_digits(words, colon - hours_size, colon).view(np.int64)
        seconds = (hours * 60 + _read_pair(words, colon + 1)) * 60 + _read_pair(words, colon + 4)
        nanos = (seconds * 1_000_000 + _read_micro(words, end, fsp)) * 1000
        return np.where(negative, -nanos, nanos)

    return read


def read_decimal_words(words: Words, values: Values, precision: int, scale: int) -> list[Uints]:
    """The body of TiDB's DECIMAL, 8 bytes per word."""
    size = d.compute_decimal_size(precision, scale)
    first, negative = _split_sign(words, values)
    point = values.at + _get_sizes(values) - (scale + 1 if scale else 0)
    whole = precision - scale
    if values.null is not None:
        # So that a NULL passes the check below: its digits are not read.
        first = np.where(values.null, point, first)
    if int((point - first).min()) < 0 or int((point - first).max()) > max(whole, 1):
        raise CutShort("a DECIMAL does not have the expected form")
    body = np.zeros((len(values.at), -(-size // 8) * 8), np.uint8)
    at, done = 0, 0
    for width, count in d.list_decimal_groups(precision, scale):
        low = point - whole + done + (1 if done >= whole else 0)
        number = _read_group(words, np.maximum(low, first), low + count)
        body[:, at : at + width] = number.astype(">u8").view(np.uint8).reshape(-1, 8)[:, 8 - width :]
        at, done = at + width, done + count
    flipped = negative & body.any(1)
    if flipped.any():
        body[flipped, :size] ^= 0xFF
    body[:, 0] ^= 0x80
    body_words = body.view("<u8")
    return [np.ascontiguousarray(body_words[:, n]) for n in range(body_words.shape[1])]


def read_doubles(data: Bytes, values: Values) -> Uints:
    """The bits of each DOUBLE."""
    at, size = values.at, _get_sizes(values)
    if values.null is not None:
        if values.null.all():
            return np.zeros(len(at), np.uint64)
        present = int(np.argmin(values.null))
        at, size = np.where(values.null, at[present], at), np.where(values.null, size[present], size)
    bounds = np.stack((at, at + size), 1).ravel()
    pieces = pa.Array.from_buffers(pa.large_utf8(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    texts = pieces.take(pa.array(np.arange(0, len(bounds), 2)))
    bits: Uints = texts.cast(pa.float64()).to_numpy().view(np.uint64)
    return bits


def find_texts(words: Words, starts: Ints, ends: Ints, columns: int) -> list[Values]:
    """The texts of rows as the protocol has them, column by column. Raises CutShort."""
    at, column_texts = starts, list[Values]()
    for _ in range(columns):
        word = words[at]
        lead = word & np.uint64(0xFF)
        if int(lead.max()) < _NULL:
            size: Ints = lead.view(np.int64)
            value_at, null = at + 1, None
        else:
            is_null: Bools = lead == _NULL
            prefix, size = _PREFIX[lead], (word >> np.uint64(8) & _MASK[lead]).view(np.int64)
            size = np.where(lead < _NULL, lead.view(np.int64), size)
            value_at, null = at + prefix, is_null if is_null.any() else None
        column_texts.append(Values(value_at, size, null))
        at = value_at + size
    if not np.array_equal(at, ends):
        raise CutShort("rows do not end where their columns do")
    return column_texts


def pad_packets(packets: list[bytes]) -> tuple[Bytes, Words, Ints, Ints]:
    """(bytes, their words, where each packet begins, where it ends)."""
    sizes = np.fromiter(map(len, packets), np.int64, len(packets))
    ends = sizes.cumsum() + FRONT
    data = np.frombuffer(b"".join([bytes(FRONT), *packets, bytes(ROOM_BEHIND)]), np.uint8)
    return data, view_words(data), ends - sizes, ends


def _split_sign(words: Words, values: Values) -> tuple[Ints, Bools]:
    """(where the digits begin, which numbers are negative)."""
    negative: Bools = (words[values.at] & np.uint64(0xFF)) == _MINUS
    if values.null is not None:
        negative &= ~values.null
    return values.at + negative, negative


def _get_sizes(values: Values) -> Ints:
    assert values.size is not None
    return values.size


def _require_size(values: Values, size: int) -> None:
    wrong = _get_sizes(values) != size
    if values.null is not None:
        wrong &= ~values.null
    if wrong.any():
        raise CutShort("a time does not have the expected form")


def _read_pair(words: Words, at: Ints) -> Ints:
    word = words[at].view(np.int64)
    return (word & 0xF) * 10 + (word >> 8 & 0xF)


def _read_micro(words: Words, end: Ints, fsp: int) -> Ints | int:
    return read_digits(words, end - fsp, end).view(np.int64) * 10 ** (6 - fsp) if fsp else 0


def _read_group(words: Words, first: Ints, end: Ints) -> Uints:
    """The number in at most nine digits; 0 if `first` is not below `end`."""
    first = np.minimum(first, end)
    high = np.maximum(first, end - 8)
    return read_digits(words, high, end) + read_digits(words, first, high) * np.uint64(10**8)
