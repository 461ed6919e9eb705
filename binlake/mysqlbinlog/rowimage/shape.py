"""The form of an event's rows: its columns with their definitions and layouts, checked once for all rows.

The definition is the one at this position of the log: as many columns as the table map, of the same types. An image may
lack only virtual columns, which TiDB does not store either (R-11).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from binlake.errors import BinlakeError, SchemaError, SourceRefused
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap
from binlake.mysqlbinlog.rowimage.charsets import InvalidText, find_replaced_columns
from binlake.mysqlbinlog.rowimage.hashkeys import find_hash_columns
from binlake.mysqlbinlog.rowimage.layout import ValueLayout, derive_layout
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.rows.schema.info import ColumnInfo, TableDef

_KNOWN_SHAPES = 1024


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
