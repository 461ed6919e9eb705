"""The columns of a row that are sent to the target, and the columns that the target computes."""

from __future__ import annotations

import re

from binlake.base.sql import Dialect
from binlake.errors import SchemaError
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.generation import is_exact, list_expressions, list_names, may_store

_ZONED = re.compile(r"\b(?:from_unixtime|unix_timestamp)\s*\(", re.IGNORECASE)


def is_computed(column: ColumnInfo, table: TableDef, dialect: Dialect) -> bool:
    """True if the target computes `column` from its row.

    MariaDB allows no primary key on a generated column; there it is a plain column with the source's values. On every
    server, so is a stored generated column that depends on the time zone of the session that wrote the row (hazards
    R-29), or whose values another server may compute differently or refuse (`generation`). A TiDB computes what a TiDB
    computed.
    """
    if not column.is_generated or (column.generated_stored and not _is_computed_alike(column, table, dialect)):
        return False
    return not (dialect == "mariadb" and column.name in table.primary_key)


def _is_computed_alike(column: ColumnInfo, table: TableDef, dialect: Dialect) -> bool:
    is_same_server = dialect == "tidb" and not table.source
    is_alike = is_same_server or (is_exact(column, table) and may_store(column, table, dialect))
    return is_alike and not depends_on_zone(column, table)


def depends_on_zone(column: ColumnInfo, table: TableDef) -> bool:
    """True if a generated column reads a TIMESTAMP, or uses a function that converts between timestamps and local
    time; itself, or by way of a virtual column."""
    stamps = {each.name.lower() for each in table.columns if each.tp == t.TIMESTAMP}
    return any(
        _ZONED.search(expression) or not stamps.isdisjoint(list_names(expression))
        for expression in list_expressions(column, table)
    )


def list_written_columns(table: TableDef, dialect: Dialect) -> list[ColumnInfo]:
    """The columns of an image that statements name."""
    return [column for column in table.row_columns if not is_computed(column, table, dialect)]


def list_key_columns(table: TableDef) -> list[ColumnInfo]:
    """The columns of the table's identity. Raises SchemaError if the table lacks one of them."""
    return [_require_column(table, name) for name in table.find_identity().columns]


def _require_column(table: TableDef, name: str) -> ColumnInfo:
    column = table.find_column(name)
    if column is None:
        raise SchemaError("a key names a column that its table lacks", where={"table": table.name, "column": name})
    return column
