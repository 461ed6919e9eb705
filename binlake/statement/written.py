"""Which columns of a row the target is told, and which it computes itself."""

from __future__ import annotations

from binlake.errors import SchemaError
from binlake.schema import ColumnInfo, TableDef
from binlake.statement.keyless import Dialect


def is_computed(column: ColumnInfo, table: TableDef, dialect: Dialect) -> bool:
    """True when the target computes `column` from its row.

    MariaDB takes no primary key on a generated column: there a stored one is a plain column with the source's values.
    """
    return column.is_generated and not (dialect == "mariadb" and column.name in table.primary_key)


def written_columns(table: TableDef, dialect: Dialect) -> list[ColumnInfo]:
    """The columns of an image that a statement names."""
    return [column for column in table.row_columns if not is_computed(column, table, dialect)]


def key_columns(table: TableDef) -> list[ColumnInfo]:
    """The columns of the table's identity. Raises SchemaError for one that the table lacks."""
    return [_column(table, name) for name in table.identity().columns]


def _column(table: TableDef, name: str) -> ColumnInfo:
    column = table.column(name)
    if column is None:
        raise SchemaError("a key names a column that its table lacks", where={"table": table.name, "column": name})
    return column
