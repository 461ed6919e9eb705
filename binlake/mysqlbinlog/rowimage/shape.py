"""The form of an event's rows: its columns with their definitions and layouts, checked once for all rows.

The definition is the one at this position of the log: as many columns as the table map, of the same types. An image may
lack only virtual columns, which TiDB does not store either (R-11). MariaDB's rows may end with columns that no
definition shows: a hash for each unique key over texts too long for an index.

The type number and the metadata of the table map tell how a value is written. It has a fixed size, or is preceded by a
length of 1 to 4 bytes (little endian) (MySQL internals manual, "Table_map_event"; MariaDB KB, "Rows_event_v1"). A
string's real type is in its metadata; old temporal types have no metadata, so the definition gives the number of
digits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from binlake.dialect.tokens import tokenize
from binlake.errors import BinlakeError, SchemaError, SourceRefused
from binlake.mysqlbinlog.charsets import InvalidText, find_replaced_columns
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap
from binlake.rows.codec.datum import compute_decimal_size
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import build_name_json, fold_name
from binlake.rows.schema.info import CREATE_KEY, ColumnInfo, TableDef

TIMESTAMP2, DATETIME2, TIME2 = 17, 18, 19
"""The temporal types of MySQL 5.6 and later, with fractions; a definition has them under the older numbers."""

_SIZES = {
    t.TINY: 1, t.SHORT: 2, t.INT24: 3, t.LONG: 4, t.LONGLONG: 8, t.FLOAT: 4, t.DOUBLE: 8, t.YEAR: 1,
    t.DATE: 3, t.NEWDATE: 3,
}  # fmt: skip
_BIG_ENDIAN = frozenset((t.STRING, t.NEWDECIMAL))
"""Types whose two bytes of metadata are a big-endian number, not a little-endian one."""
_NEW_TEMPORALS = {TIMESTAMP2: 4, DATETIME2: 5, TIME2: 3}
# By digits of the fraction: MariaDB's formats before it adopted MySQL's (mysql56_temporal_format=OFF).
_OLD_TEMPORALS = {
    t.TIMESTAMP: (4, 5, 5, 6, 6, 7, 7),
    t.DATETIME: (8, 6, 6, 7, 7, 7, 8),
    t.DURATION: (3, 4, 4, 5, 5, 5, 6),
}
_DEFINED_AS = {
    TIMESTAMP2: {t.TIMESTAMP}, DATETIME2: {t.DATETIME}, TIME2: {t.DURATION}, t.DATE: t.DATES, t.NEWDATE: t.DATES,
    t.VARCHAR: {t.VARCHAR, t.VARSTRING}, t.VARSTRING: {t.VARCHAR, t.VARSTRING}, t.BLOB: t.BLOBS | {t.JSON},
}  # fmt: skip
_NAMES = {
    140: "compressed BLOB or TEXT", 141: "compressed VARCHAR or VARBINARY", 242: "VECTOR", 255: "geometry",
    0: "DECIMAL of MySQL 4",
}  # fmt: skip
_NAME = "db_row_hash_"
_KNOWN_SHAPES = 1024


@dataclass(frozen=True, slots=True)
class ValueLayout:
    """`tp`: the type of the values, for a string the real one; `size`: bytes of a value, or 0 if preceded by a length
    of `prefix` bytes; `first`, `second`: the bytes of the metadata in the order of the event."""

    tp: int
    size: int
    prefix: int
    first: int
    second: int


def derive_layout(column: ColumnInfo, tp: int, metadata: int) -> ValueLayout:
    """The layout of `column`'s values. Raises SchemaError, naming the column, for a type that TiDB does not have or
    that contradicts the definition."""
    low, high = metadata & 0xFF, metadata >> 8
    layout = _find_layout(column, tp, *((high, low) if tp in _BIG_ENDIAN else (low, high)))
    if layout is None:
        raise SchemaError(
            f"column {column.name} has a type that cannot be replicated: {_NAMES.get(tp, f'type number {tp}')}",
            hint="exclude the table at the feeder, or change the column's type at the source",
        )
    if column.tp not in _DEFINED_AS.get(layout.tp, {layout.tp}) or not _agrees(column, layout):
        raise SchemaError(
            f"column {column.name} is {column.type_text} in the definition, and another type in the log"
            f" (number {layout.tp}, metadata {metadata})",
            hint="the definition is not the one that the table had at this position of the log",
        )
    return layout


def _find_layout(column: ColumnInfo, tp: int, first: int, second: int) -> ValueLayout | None:
    if tp in _SIZES:
        return ValueLayout(tp, _SIZES[tp], 0, first, second)
    if tp in _NEW_TEMPORALS:
        return ValueLayout(tp, _NEW_TEMPORALS[tp] + (first + 1) // 2, 0, first, second)
    if tp in _OLD_TEMPORALS:
        return ValueLayout(tp, _OLD_TEMPORALS[tp][min(column.fsp, 6)], 0, column.fsp, 0)
    if tp in (t.VARCHAR, t.VARSTRING):
        return ValueLayout(tp, 0, 1 if first | second << 8 < 256 else 2, first, second)
    if tp in (t.BLOB, t.JSON):
        return ValueLayout(tp, 0, first, first, second)
    if tp == t.NEWDECIMAL:
        return ValueLayout(tp, compute_decimal_size(first, second), 0, first, second)
    if tp == t.BIT:
        return ValueLayout(tp, second + (first > 0), 0, first, second)
    return _find_string_layout(first, second) if tp == t.STRING else None


def _find_string_layout(first: int, second: int) -> ValueLayout | None:
    if first in (t.ENUM, t.SET):
        return ValueLayout(first, second, 0, first, second)
    # Two bits of a length above 255 are in the type, inverted.
    length = second | ((first & 0x30) ^ 0x30) << 4
    return (
        ValueLayout(t.STRING, 0, 1 if length < 256 else 2, length & 0xFF, length >> 8)
        if first | 0x30 == t.STRING
        else None
    )


def _agrees(column: ColumnInfo, layout: ValueLayout) -> bool:
    if layout.tp == t.NEWDECIMAL:
        return (layout.first, layout.second) == derive_decimal_layout(column)
    if layout.tp == t.BIT:
        return layout.first + 8 * layout.second == max(column.flen, 1)
    if layout.tp in _NEW_TEMPORALS:
        return layout.first == column.fsp
    if layout.tp in (t.STRING, t.VARCHAR, t.VARSTRING) and column.flen > 0:
        # The length in bytes is a multiple of the number of characters.
        length = layout.first | layout.second << 8
        return length == column.flen if column.is_binary else length % column.flen == 0 and length >= column.flen
    return True


def find_hash_columns(table: TableDef, event: TableMap) -> list[ColumnInfo]:
    """The hash columns that `event` has after the columns of `table`, as virtual columns: no row here contains them."""
    first = len(table.all_columns)
    extra = event.types[first:]
    names = event.names[first:] if event.names is not None else [f"{_NAME}{n + 1}" for n in range(len(extra))]
    are_hashes = set(extra) == {t.LONGLONG} and all(fold_name(name).startswith(_NAME) for name in names)
    if not are_hashes or len(extra) != _count_hash_keys(table):
        return []
    return [_build_hash_column(name, first + n) for n, name in enumerate(names)]


def _count_hash_keys(table: TableDef) -> int:
    tokens = tokenize(str(table.raw.get(CREATE_KEY, "")))
    return sum(using.is_word("USING") and how.is_word("HASH") for using, how in pairwise(tokens))


def _build_hash_column(name: str, offset: int) -> ColumnInfo:
    kind = {
        "Tp": t.LONGLONG,
        "Flag": t.FLAG_UNSIGNED,
        "Flen": 20,
        "Decimal": 0,
        "Charset": "binary",
        "Collate": "binary",
    }
    more = {"id": 0, "offset": offset, "state": 5, "generated_expr_string": "hash", "hidden": True}
    return ColumnInfo.from_json({"name": build_name_json(name), "type": kind, **more})


@dataclass(frozen=True, slots=True)
class LoggedColumn:
    """A column in the images; `json_place`: its number among the table's JSON columns, -1 for others; `replaced_in`:
    the table (`db.table`) if bytes without a character become question marks, otherwise empty."""

    info: ColumnInfo
    layout: ValueLayout
    json_place: int = -1
    replaced_in: str = ""

    @property
    def is_written(self) -> bool:
        """False for columns that are not in TiDB's rows."""
        return not self.info.is_virtual


@dataclass(frozen=True, slots=True)
class ImageShape:
    """The columns of an image, in the order of their values; `null_bytes`: the size of the bitmap before them."""

    columns: tuple[LoggedColumn, ...]

    @property
    def null_bytes(self) -> int:
        """Size in bytes of the bitmap of NULLs."""
        return (len(self.columns) + 7) // 8


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """`images`: one, or before and after of an update; `handle`: the integer key by which rows are stored, if any;
    `json_columns`: how many the table has. Compared by identity."""

    table: TableDef
    kind: RowKind
    images: tuple[ImageShape, ...]
    handle: ColumnInfo | None
    json_columns: int

    @property
    def is_update(self) -> bool:
        """True for rows with two images."""
        return len(self.images) == 2


def derive_shape(event: RowsEvent, table: TableDef, invalid_text: InvalidText = "refuse") -> Shape:
    """The shape of `event`'s rows under the definition `table`. Raises SchemaError, SourceRefused."""
    return _build_shape(event.table, event.kind, event.before, event.after, table, invalid_text)


@lru_cache(_KNOWN_SHAPES)
def _build_shape(
    table_map: TableMap, kind: RowKind, before: bytes, after: bytes, table: TableDef, invalid_text: InvalidText
) -> Shape:
    # Cached across batches: preparing a shape costs as much as many rows.
    try:
        columns = _build_columns(table_map, table, invalid_text)
        bitmaps = [bitmap for bitmap in (before, after) if bitmap]
        images = tuple(_build_image(columns, bitmap) for bitmap in bitmaps)
    except BinlakeError as error:
        where = {**error.where, "table": f"{table_map.db}.{table_map.table}"}
        raise type(error)(error.message, hint=error.hint, where=where) from error
    json_columns = sum(column.json_place >= 0 for column in columns)
    return Shape(table, kind, images, _handle(table), json_columns)


def _build_columns(table_map: TableMap, table: TableDef, invalid_text: InvalidText) -> list[LoggedColumn]:
    infos = [c for c in table.all_columns if c.is_public]
    infos += find_hash_columns(table, table_map)
    if len(infos) != len(table_map.types) or not _has_same_names(table_map.names, infos):
        raise SchemaError(
            f"the definition has the columns {', '.join(c.name for c in infos)}, the log has"
            f" {', '.join(table_map.names or ()) or len(table_map.types)}",
            hint="the definition is not the one that the table had at this position of the log",
        )
    columns: list[LoggedColumn] = []
    replaced = find_replaced_columns(table, invalid_text)
    json_columns = 0
    for info, tp, metadata in zip(infos, table_map.types, table_map.metadata, strict=True):
        is_json = tp == t.JSON
        place = json_columns if is_json else -1
        replaced_in = f"{table.db}.{table.name}" if info.name in replaced else ""
        columns.append(LoggedColumn(info, derive_layout(info, tp, metadata), place, replaced_in))
        json_columns += is_json
    return columns


def _has_same_names(names: tuple[str, ...] | None, infos: list[ColumnInfo]) -> bool:
    return names is None or [fold_name(name) for name in names] == [fold_name(c.name) for c in infos]


def _build_image(columns: list[LoggedColumn], bitmap: bytes) -> ImageShape:
    bits = int.from_bytes(bitmap, "little")
    absent = [c.info.name for index, c in enumerate(columns) if not bits >> index & 1 and c.is_written]
    if absent:
        raise SourceRefused(
            f"a row image lacks the columns {', '.join(absent)}: the source does not log whole rows",
            hint="SET GLOBAL binlog_row_image = 'FULL' at the source, close the sessions that were open before, and"
            " start again after this position: what is not in the log cannot be replicated",
        )
    return ImageShape(tuple(c for index, c in enumerate(columns) if bits >> index & 1))


def _handle(table: TableDef) -> ColumnInfo | None:
    if table.is_common_handle:
        raise SchemaError(
            "the feeder has no definitions with a clustered key of several columns", where={"table": table.name}
        )
    return next((c for c in table.all_columns if c.flag & t.FLAG_PRIMARY), None) if table.pk_is_handle else None
