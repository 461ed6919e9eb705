"""Row events of both families and all versions, and the TABLE_MAP with their columns; the rows are not decoded yet.

A column's `metadata` is one number: for VARCHAR and VAR_STRING (length) and BIT (`bytes * 256 + rest`) it is
little-endian, for STRING, ENUM and SET (`real type * 256 + length`) and DECIMAL (`precision * 256 + scale`) big-endian,
as the servers write it; all other types have one byte or none.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from enum import IntEnum

from binlake.errors import WireError
from binlake.mysqlbinlog.events.header import HEADER_BYTES, EventType, read_length, read_text, uncompress_mariadb
from binlake.mysqlbinlog.model import Flavor, RowKind, RowsEvent, TableMap
from binlake.rows.schema import mysqltypes as t

TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
BLOB_COMPRESSED, VARCHAR_COMPRESSED, VECTOR, GEOMETRY = 140, 141, 242, 255
"""Types that occur in the log but not in TiDB's definitions."""

_ONE_BYTE = t.BLOBS | {
    t.FLOAT, t.DOUBLE, t.JSON, TIMESTAMP2, DATETIME2, TIME2, BLOB_COMPRESSED, VECTOR, GEOMETRY,
}  # fmt: skip
_TWO_LITTLE = frozenset({t.VARCHAR, t.VARSTRING, t.BIT, VARCHAR_COMPRESSED})
_TWO_BIG = frozenset({t.STRING, t.NEWDECIMAL, t.ENUM, t.SET})
_CHOICES = frozenset({t.ENUM, t.SET})
_NUMERIC = t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE, t.YEAR}
_TEXT = t.STRINGS | {BLOB_COMPRESSED, VARCHAR_COMPRESSED}
_LIKE_TEXT = {Flavor.MYSQL: VECTOR, Flavor.MARIADB: GEOMETRY}
"""The type for which each family also logs a charset, though it has none."""
_E = EventType
_INSERTS = (_E.WRITE_ROWS_V1, _E.WRITE_ROWS, _E.MARIADB_WRITE_ROWS_COMPRESSED_V1, _E.MARIADB_WRITE_ROWS_COMPRESSED)
_UPDATES = (_E.UPDATE_ROWS_V1, _E.UPDATE_ROWS, _E.MARIADB_UPDATE_ROWS_COMPRESSED_V1, _E.MARIADB_UPDATE_ROWS_COMPRESSED)
_DELETES = (_E.DELETE_ROWS_V1, _E.DELETE_ROWS, _E.MARIADB_DELETE_ROWS_COMPRESSED_V1, _E.MARIADB_DELETE_ROWS_COMPRESSED)
KINDS: dict[int, RowKind] = {
    **dict.fromkeys(_INSERTS, RowKind.INSERT),
    **dict.fromkeys(_UPDATES, RowKind.UPDATE),
    **dict.fromkeys(_DELETES, RowKind.DELETE),
    _E.PARTIAL_UPDATE_ROWS: RowKind.PARTIAL_UPDATE,
}
_NO_FOREIGN_KEY_CHECKS = 1 << 1
_COMPRESSED = range(_E.MARIADB_WRITE_ROWS_COMPRESSED_V1, _E.MARIADB_DELETE_ROWS_COMPRESSED + 1)
_WITH_EXTRA = frozenset({
    _E.WRITE_ROWS, _E.UPDATE_ROWS, _E.DELETE_ROWS, _E.PARTIAL_UPDATE_ROWS, _E.MARIADB_WRITE_ROWS_COMPRESSED,
    _E.MARIADB_UPDATE_ROWS_COMPRESSED, _E.MARIADB_DELETE_ROWS_COMPRESSED,
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
    """Optional metadata after the columns."""

    unsigned: list[bool] | None = None
    charsets: dict[int, int] = field(default_factory=dict)
    has_charsets: bool = False
    names: tuple[str, ...] | None = None
    elements: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    has_elements: bool = False
    primary_key: tuple[int, ...] | None = None


def read_table_map(event: bytes, flavor: Flavor) -> TableMap:
    """Parse a TABLE_MAP event without checksum. Raises WireError."""
    try:
        return _read(event, flavor)
    except (IndexError, ValueError) as error:
        raise WireError(f"a table map does not fit its own columns: {error}") from None


def _read(event: bytes, flavor: Flavor) -> TableMap:
    at = HEADER_BYTES + 8
    db, at = event[at + 1 : at + 1 + event[at]], at + event[at] + 2
    table, at = event[at + 1 : at + 1 + event[at]], at + event[at] + 2
    count, at = read_length(event, at)
    types, at = event[at : at + count], at + count
    raw, at = read_text(event, at)
    metadata = _read_metadata(types, raw)
    nulls, at = event[at : at + (count + 7) // 8], at + (count + 7) // 8
    kinds = [find_real_type(kind, number) for kind, number in zip(types, metadata, strict=True)]
    more = _read_optional(event, at, kinds, _TEXT | {_LIKE_TEXT[flavor]})
    return TableMap(
        table_id=int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 6], "little"),
        db=db.decode("utf-8"),
        table=table.decode("utf-8"),
        types=types,
        metadata=metadata,
        nullable=tuple(bool(nulls[index >> 3] >> (index & 7) & 1) for index in range(count)),
        unsigned=None if more.unsigned is None else tuple(more.unsigned),
        charsets=tuple(more.charsets.get(index, 0) for index in range(count)) if more.has_charsets else None,
        names=more.names,
        elements=tuple(more.elements.get(index, ()) for index in range(count)) if more.has_elements else None,
        primary_key=more.primary_key,
    )


def _read_metadata(types: bytes, raw: bytes) -> tuple[int, ...]:
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


def find_real_type(kind: int, metadata: int) -> int:
    """The real type of a column: ENUM and SET are logged as STRING, with their own number in the metadata."""
    return metadata >> 8 if kind == t.STRING and metadata >> 8 in _CHOICES else kind


def _read_optional(event: bytes, at: int, kinds: list[int], with_charset: Set[int]) -> _Optional:
    texts = [index for index, kind in enumerate(kinds) if kind in with_charset]
    choices = [index for index, kind in enumerate(kinds) if kind in _CHOICES]
    optional = _Optional()
    while at < len(event):
        number, at = event[at], at + 1
        value, at = read_text(event, at)
        if number == _Field.SIGNEDNESS:
            optional.unsigned = _read_signs(value, kinds)
        elif number in (_Field.DEFAULT_CHARSET, _Field.ENUM_AND_SET_DEFAULT_CHARSET):
            indexes = texts if number == _Field.DEFAULT_CHARSET else choices
            optional.charsets |= _read_default_charsets(value, indexes)
            optional.has_charsets = True
        elif number in (_Field.COLUMN_CHARSET, _Field.ENUM_AND_SET_COLUMN_CHARSET):
            indexes = texts if number == _Field.COLUMN_CHARSET else choices
            optional.charsets |= dict(zip(indexes, _read_lengths(value), strict=True))
            optional.has_charsets = True
        elif number == _Field.COLUMN_NAME:
            optional.names = tuple(name.decode("utf-8") for name in _read_texts(value))
        elif number in (_Field.SET_VALUES, _Field.ENUM_VALUES):
            kind = t.SET if number == _Field.SET_VALUES else t.ENUM
            indexes = [index for index in choices if kinds[index] == kind]
            optional.elements |= dict(zip(indexes, _read_element_lists(value), strict=True))
            optional.has_elements = True
        elif number == _Field.PRIMARY_KEY:
            optional.primary_key = tuple(_read_lengths(value))
        elif number == _Field.PRIMARY_KEY_WITH_PREFIX:
            optional.primary_key = tuple(_read_lengths(value)[::2])
    return optional


def _read_signs(value: bytes, kinds: list[int]) -> list[bool]:
    """One bit for each numeric column, including YEAR, the first in the highest bit."""
    numeric = [kind in _NUMERIC for kind in kinds]
    signs, bit = [], 0
    for is_number in numeric:
        signs.append(is_number and bool(value[bit >> 3] & 0x80 >> (bit & 7)))
        bit += is_number
    return signs


def _read_default_charsets(value: bytes, indexes: list[int]) -> dict[int, int]:
    numbers = _read_lengths(value)
    others = dict(zip(numbers[1::2], numbers[2::2], strict=True))
    return {index: others.get(order, numbers[0]) for order, index in enumerate(indexes)}


def _read_lengths(value: bytes) -> list[int]:
    numbers, at = [], 0
    while at < len(value):
        number, at = read_length(value, at)
        numbers.append(number)
    return numbers


def _read_texts(value: bytes) -> list[bytes]:
    texts, at = [], 0
    while at < len(value):
        text, at = read_text(value, at)
        texts.append(text)
    return texts


def _read_element_lists(value: bytes) -> list[tuple[bytes, ...]]:
    lists, at = [], 0
    while at < len(value):
        count, at = read_length(value, at)
        elements = []
        for _ in range(count):
            element, at = read_text(value, at)
            elements.append(element)
        lists.append(tuple(elements))
    return lists


def read_table_id(event: bytes) -> int:
    """The table id of a row event or table map."""
    return int.from_bytes(event[HEADER_BYTES : HEADER_BYTES + 6], "little")


def read_rows(kind: int, event: bytes, table: TableMap) -> RowsEvent:
    """The row event of type `kind` without checksum, whose table map is `table`. Raises WireError."""
    at = HEADER_BYTES + 8
    if kind in _WITH_EXTRA:
        at += event[at] | event[at + 1] << 8
    columns, at = read_length(event, at)
    if columns != len(table.types):
        raise WireError(
            f"a row event has {columns} columns, the table map before it {len(table.types)}",
            where={"table": f"{table.db}.{table.table}"},
        )
    width = (columns + 7) >> 3
    first, at = event[at : at + width], at + width
    row_kind = KINDS[kind]
    before, after = (b"", first) if row_kind is RowKind.INSERT else (first, b"")
    if row_kind in (RowKind.UPDATE, RowKind.PARTIAL_UPDATE):
        after, at = event[at : at + width], at + width
    rows = uncompress_mariadb(event[at:]) if kind in _COMPRESSED else event[at:]
    flags = event[HEADER_BYTES + 6] | event[HEADER_BYTES + 7] << 8
    return RowsEvent(row_kind, table, before, after, rows, bool(flags & _NO_FOREIGN_KEY_CHECKS))
