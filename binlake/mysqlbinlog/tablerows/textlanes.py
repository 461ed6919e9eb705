"""Reads numbers and times of many texts at once, from words of the texts' bytes; `rowtexts` reads them one by one.

Texts come from a server, which has one form for each type; a text of another length raises CutShort, and the plain
writer is used. There are FRONT bytes before the first text, and `lanes.ROOM` after the last one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from binlake.mysqlbinlog.rowimage.lanes import Bools, Bytes, Ints, Uints, Values, view_words
from binlake.mysqlbinlog.rowimage.together import CutShort
from binlake.rows.codec import datum as d
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

FRONT = 24
"""A number is read as the words that end with it."""
Words = NDArray[Any]
NumberReader = Callable[[Words, Values], Ints]
"""(words, texts) -> numbers; unsigned ones as signed ones with the same bits; any number for NULLs."""

_MOST_DIGITS = 20
_DATE, _SECONDS = len("YYYY-MM-DD"), len("YYYY-MM-DD HH:MM:SS")
_MINUS = np.uint64(ord("-"))


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


_NULL = 0xFB
_PREFIX: Ints = np.ones(256, np.int64)
_PREFIX[0xFC:0xFF] = (3, 4, 9)
_MASK: Uints = np.zeros(256, np.uint64)
_MASK[0xFC:0xFF] = (0xFFFF, 0xFFFFFF, 0x00FFFFFFFFFFFFFF)


def pad_packets(packets: list[bytes]) -> tuple[Bytes, Words, Ints, Ints]:
    """(bytes, their words, where each packet begins, where it ends)."""
    sizes = np.fromiter(map(len, packets), np.int64, len(packets))
    ends = sizes.cumsum() + FRONT
    data = np.frombuffer(b"".join([bytes(FRONT), *packets, bytes(ROOM_BEHIND)]), np.uint8)
    return data, view_words(data), ends - sizes, ends


ROOM_BEHIND = 64


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
