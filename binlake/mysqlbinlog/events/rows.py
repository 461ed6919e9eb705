"""Row events of both families and all versions: their table, bitmaps and the bytes of their rows, not yet decoded."""

from __future__ import annotations

from binlake.errors import WireError
from binlake.mysqlbinlog.events.compressed import uncompress_mariadb
from binlake.mysqlbinlog.events.header import HEADER_BYTES, EventType
from binlake.mysqlbinlog.events.numbers import read_length
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap

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
