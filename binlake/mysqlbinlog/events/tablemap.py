"""TABLE_MAP: the columns of the row events that follow it.

A column's `metadata` is one number: the length of VARCHAR and VAR_STRING and the bits of BIT (`bytes * 256 + rest`)
are little-endian; STRING, ENUM and SET (`real type * 256 + length`) and DECIMAL (`precision * 256 + scale`) are
big-endian, as the servers write them; all others have one byte or none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from binlake.errors import WireError
from binlake.mysqlbinlog.events.header import HEADER_BYTES
from binlake.mysqlbinlog.events.numbers import read_length, read_text
from binlake.mysqlbinlog.model import TableMap


class ColumnType(IntEnum):
    """MySQL's and MariaDB's type numbers in the log."""

    DECIMAL = 0
    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    NULL = 6
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    NEWDATE = 14
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140
    VARCHAR_COMPRESSED = 141
    VECTOR = 242
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255


_T = ColumnType
_ONE_BYTE = frozenset({
    _T.FLOAT, _T.DOUBLE, _T.BLOB, _T.TINY_BLOB, _T.MEDIUM_BLOB, _T.LONG_BLOB, _T.GEOMETRY, _T.JSON, _T.VECTOR,
    _T.TIMESTAMP2, _T.DATETIME2, _T.TIME2, _T.BLOB_COMPRESSED,
})  # fmt: skip
_TWO_LITTLE = frozenset({_T.VARCHAR, _T.VAR_STRING, _T.BIT, _T.VARCHAR_COMPRESSED})
_TWO_BIG = frozenset({_T.STRING, _T.NEWDECIMAL, _T.ENUM, _T.SET})
_NUMERIC = frozenset({_T.TINY, _T.SHORT, _T.INT24, _T.LONG, _T.LONGLONG, _T.NEWDECIMAL, _T.FLOAT, _T.DOUBLE})
_TEXT = frozenset({
    _T.STRING, _T.VAR_STRING, _T.VARCHAR, _T.BLOB, _T.TINY_BLOB, _T.MEDIUM_BLOB, _T.LONG_BLOB, _T.BLOB_COMPRESSED,
    _T.VARCHAR_COMPRESSED,
})  # fmt: skip


class _Field(IntEnum):
    SIGNEDNESS = 1
    DEFAULT_CHARSET = 2
    COLUMN_CHARSET = 3
    COLUMN_NAME = 4
    SET_VALUES = 5
    ENUM_VALUES = 6
    PRIMARY_KEY = 8
    PRIMARY_KEY_WITH_PREFIX = 9
    ENUM_AND_SET_DEFAULT_CHARSET = 10
    ENUM_AND_SET_COLUMN_CHARSET = 11


@dataclass
class _Optional:
    """What may follow the columns."""

    unsigned: list[bool] | None = None
    charsets: dict[int, int] = field(default_factory=dict)
    has_charsets: bool = False
    names: tuple[str, ...] | None = None
    elements: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    has_elements: bool = False
    primary_key: tuple[int, ...] | None = None


def read_table_map(event: bytes) -> TableMap:
    """The table map that an event without checksum is. Raises WireError."""
    try:
        return _read(event)
    except IndexError:
        raise WireError("a table map ends before its columns do") from None


def _read(event: bytes) -> TableMap:
    at = HEADER_BYTES + 8
    db, at = event[at + 1 : at + 1 + event[at]], at + event[at] + 2
    table, at = event[at + 1 : at + 1 + event[at]], at + event[at] + 2
    count, at = read_length(event, at)
    types, at = event[at : at + count], at + count
    raw, at = read_text(event, at)
    metadata = _metadata(types, raw)
    nulls, at = event[at : at + (count + 7) // 8], at + (count + 7) // 8
    more = _read_optional(event, at, types, metadata)
    return TableMap(
        table_id=int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 6], "little"),
        db=db.decode("utf-8"),
        table=table.decode("utf-8"),
        types=types,
        metadata=metadata,
        nullable=tuple(bool(nulls[place >> 3] >> (place & 7) & 1) for place in range(count)),
        unsigned=None if more.unsigned is None else tuple(more.unsigned),
        charsets=tuple(more.charsets.get(place, 0) for place in range(count)) if more.has_charsets else None,
        names=more.names,
        elements=tuple(more.elements.get(place, ()) for place in range(count)) if more.has_elements else None,
        primary_key=more.primary_key,
    )


def _metadata(types: bytes, raw: bytes) -> tuple[int, ...]:
    numbers, at = [], 0
    for kind in types:
        if kind in _ONE_BYTE:
            numbers.append(raw[at])
            at += 1
        elif kind in _TWO_LITTLE:
            numbers.append(raw[at] | raw[at + 1] << 8)
            at += 2
        elif kind in _TWO_BIG:
            numbers.append(raw[at] << 8 | raw[at + 1])
            at += 2
        else:
            numbers.append(0)
    if at != len(raw):
        raise WireError(f"a table map has {len(raw)} bytes of column metadata, its types take {at}")
    return tuple(numbers)


def real_type(kind: int, metadata: int) -> int:
    """The type of a column: ENUM and SET travel as STRING, with their own number in the metadata."""
    return metadata >> 8 if kind == _T.STRING and metadata >> 8 in (_T.ENUM, _T.SET) else kind


def _read_optional(event: bytes, at: int, types: bytes, metadata: tuple[int, ...]) -> _Optional:
    kinds = [real_type(kind, number) for kind, number in zip(types, metadata, strict=True)]
    texts = [place for place, kind in enumerate(kinds) if kind in _TEXT]
    choices = [place for place, kind in enumerate(kinds) if kind in (_T.ENUM, _T.SET)]
    found = _Optional()
    while at < len(event):
        number, at = event[at], at + 1
        value, at = read_text(event, at)
        if number == _Field.SIGNEDNESS:
            found.unsigned = _read_signs(value, kinds)
        elif number in (_Field.DEFAULT_CHARSET, _Field.ENUM_AND_SET_DEFAULT_CHARSET):
            places = texts if number == _Field.DEFAULT_CHARSET else choices
            found.charsets |= _default_charsets(value, places)
            found.has_charsets = True
        elif number in (_Field.COLUMN_CHARSET, _Field.ENUM_AND_SET_COLUMN_CHARSET):
            places = texts if number == _Field.COLUMN_CHARSET else choices
            found.charsets |= dict(zip(places, _lengths(value), strict=True))
            found.has_charsets = True
        elif number == _Field.COLUMN_NAME:
            found.names = tuple(name.decode("utf-8") for name in _texts(value))
        elif number in (_Field.SET_VALUES, _Field.ENUM_VALUES):
            kind = _T.SET if number == _Field.SET_VALUES else _T.ENUM
            places = [place for place in choices if kinds[place] == kind]
            found.elements |= dict(zip(places, _element_lists(value), strict=True))
            found.has_elements = True
        elif number == _Field.PRIMARY_KEY:
            found.primary_key = tuple(_lengths(value))
        elif number == _Field.PRIMARY_KEY_WITH_PREFIX:
            found.primary_key = tuple(_lengths(value)[::2])
    return found


def _read_signs(value: bytes, kinds: list[int]) -> list[bool]:
    """A bit for each number column, the first in the highest bit; a server that counts YEAR among them has one more."""
    numeric = [kind in _NUMERIC for kind in kinds]
    signs, bit = [], 0
    for is_number in numeric:
        signs.append(is_number and bool(value[bit >> 3] & 0x80 >> (bit & 7)))
        bit += is_number
    return signs


def _default_charsets(value: bytes, places: list[int]) -> dict[int, int]:
    numbers = _lengths(value)
    others = dict(zip(numbers[1::2], numbers[2::2], strict=True))
    return {place: others.get(order, numbers[0]) for order, place in enumerate(places)}


def _lengths(value: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(value):
        number, at = read_length(value, at)
        numbers.append(number)
    return numbers


def _texts(value: bytes) -> list[bytes]:
    texts, at = [], 0
    while at < len(value):
        text, at = read_text(value, at)
        texts.append(text)
    return texts


def _element_lists(value: bytes) -> list[tuple[bytes, ...]]:
    lists, at = [], 0
    while at < len(value):
        count, at = read_length(value, at)
        elements = []
        for _ in range(count):
            element, at = read_text(value, at)
            elements.append(element)
        lists.append(tuple(elements))
    return lists
