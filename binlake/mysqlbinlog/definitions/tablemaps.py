"""Checks a table map of the log against the definition: rows are decoded with it only if the two agree."""

from __future__ import annotations

from collections.abc import Sequence

from binlake.errors import BinlakeError, SchemaError
from binlake.mysqlbinlog.charsets import decode_text, look_up_charset
from binlake.mysqlbinlog.definitions.descriptions import mask_four_byte_characters
from binlake.mysqlbinlog.definitions.tables import to_tidb_charset
from binlake.mysqlbinlog.model import TableMap
from binlake.mysqlbinlog.rowimage.shape import find_hash_columns
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name

_TIMESTAMP2, _DATETIME2, _TIME2 = 17, 18, 19
_BLOB_COMPRESSED, _VARCHAR_COMPRESSED = 140, 141
_EQUIVALENT = {
    _TIMESTAMP2: t.TIMESTAMP, _DATETIME2: t.DATETIME, _TIME2: t.DURATION, t.NEWDATE: t.DATE,
    t.TINYBLOB: t.BLOB, t.MEDIUMBLOB: t.BLOB, t.LONGBLOB: t.BLOB, t.VARSTRING: t.VARCHAR,
    t.ENUM: t.STRING, t.SET: t.STRING, _BLOB_COMPRESSED: t.BLOB, _VARCHAR_COMPRESSED: t.VARCHAR,
}  # fmt: skip
"""Types that are equal for this comparison: an event has ENUM and SET as strings, and one number for all BLOBs."""
_SEQUENCE_TYPES = bytes([t.LONGLONG] * 6 + [t.TINY, t.LONGLONG])
"""Types of the eight columns that every sequence has (MariaDB KB, "CREATE SEQUENCE")."""

_WITH_CHARSET = t.STRINGS | {t.ENUM, t.SET}


def check_table_map(table: TableDef, event: TableMap) -> None:
    """Raises SchemaError naming what differs: the number of columns, a name, a type, the primary key.

    Of a type also what affects values but is not in the type number, if the log has it: signs, charsets, elements.
    """
    columns = [*table.all_columns, *find_hash_columns(table, event)]
    what = _compare_columns(columns, event) or _compare_keys(table, event)
    if what:
        raise SchemaError(
            f"the log's rows do not fit the definition of their table: {what}",
            hint="a DDL of this table did not reach the catalog (sql_log_bin = 0, a skipped transaction, definitions of"
            " another position): take a new snapshot of the source (binlake bootstrap)",
            where={"table": f"{event.db}.{event.table}"},
        )


def is_sequence(event: TableMap) -> bool:
    """Whether the rows are those of a MariaDB sequence: NEXTVAL writes them into the log as a table's."""
    if event.types != _SEQUENCE_TYPES or any(event.nullable):
        return False
    return event.names is None or fold_name(event.names[0]) == "next_not_cached_value"


def _compare_columns(columns: Sequence[ColumnInfo], event: TableMap) -> str:
    if len(columns) != len(event.types):
        return f"{len(event.types)} columns in the log, {len(columns)} in the definition"
    for at, (column, kind) in enumerate(zip(columns, event.types, strict=True)):
        if event.names is not None and fold_name(event.names[at]) != fold_name(column.name):
            return f"column {at + 1} is {event.names[at]} in the log, {column.name} in the definition"
        if _EQUIVALENT.get(kind, kind) != _EQUIVALENT.get(column.tp, column.tp):
            return f"column {column.name} has the type {kind} in the log, {column.tp} in the definition"
        what = _compare_values(column, event, at)
        if what:
            return f"column {column.name} has other {what} in the log than in the definition"
    return ""


def _compare_values(column: ColumnInfo, event: TableMap, at: int) -> str:
    if event.unsigned is not None and column.tp in t.INTEGERS and event.unsigned[at] != column.unsigned:
        return "signs"
    charset = event.charsets[at] if event.charsets is not None else 0
    if not charset or column.tp not in _WITH_CHARSET:
        return ""
    if to_tidb_charset(look_up_charset(charset)) != to_tidb_charset(column.charset):
        return "charsets"
    logged = event.elements[at] if event.elements is not None else ()
    if logged and _decode_elements(logged, charset) != tuple(map(mask_four_byte_characters, column.elems)):
        return "elements"
    return ""


def _decode_elements(elements: Sequence[bytes], charset: int) -> tuple[str, ...]:
    try:
        return tuple(mask_four_byte_characters(decode_text(element, charset)) for element in elements)
    except BinlakeError:
        return ()


def _compare_keys(table: TableDef, event: TableMap) -> str:
    # A server that logs names also logs the key.
    if event.names is None:
        return ""
    logged = {fold_name(event.names[index]) for index in event.primary_key or ()}
    return "" if logged in _list_loggable_keys(table) else "another primary key"


def _list_loggable_keys(table: TableDef) -> list[set[str]]:
    """Keys that the log may name as the primary key: for a table without one, servers log a unique key without NULL."""
    keys = [table.primary_key]
    if not table.primary_key:
        unique = [[part.name for part in index.columns] for index in table.list_unique_keys()]
        keys += [tuple(names) for names in unique if all(_is_not_null(table, name) for name in names)]
    return [{fold_name(name) for name in key} for key in keys]


def _is_not_null(table: TableDef, name: str) -> bool:
    column = table.find_column(name)
    return column is not None and column.not_null
