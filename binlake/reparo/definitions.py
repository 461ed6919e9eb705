"""The definitions of the target's tables: a file holds none, so those at its place in the files decide.

Rule: they are read when a table first gets rows, and again behind each DDL, as the original's loader does
(tidb-binlog 5.10). A base that is not the source's state at the start shows here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from binlake.base.dialects import Dialect
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.descriptions import describe_table, visible_column
from binlake.mysqlbinlog.definitions.tables import table_info
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema import ColumnInfo, DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json
from binlake.rows.schema.names import fold_name
from binlake.target.session.session import Session

Name = tuple[str, str]

CURRENT = "CURRENT_TIMESTAMP"
"""A default that is another one for each row."""

_DATABASES = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE {condition}"
_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND {condition}"

# TiDB shows its tables as MySQL does.
_FLAVORS = {"mariadb": Flavor.MARIADB, "mysql": Flavor.MYSQL, "tidb": Flavor.MYSQL}


class TargetTables:
    """The base tables of the target behind `session`, each read once until `forget`."""

    def __init__(self, session: Session, dialect: Dialect) -> None:
        self._session = session
        self._flavor = _FLAVORS[dialect]
        self._visibility = visible_column(self._query)
        self._known: dict[Name, TableDef | None] = {}
        self._names: dict[tuple[str, ...], str] = {}

    def database(self, db: str) -> str:
        """The name `db` as the target spells it, whatever its letter case; as it is where there is none."""
        return self._spelled(_DATABASES, db, ())

    def table(self, db: str, table: str, *, new: bool = False) -> Name:
        """The same of a table; a `new` one is called as it is written."""
        db = self.database(db)
        return db, table if new else self._spelled(_TABLES, table, (db,))

    def exists(self, name: Name) -> bool:
        """Whether there is a table, view or sequence of that very name."""
        return bool(self._session.rows(_TABLES.format(condition="TABLE_NAME = %s"), name))

    def homes(self, table: str) -> list[str]:
        """The databases that have a `table`, in whatever letter case."""
        sql = "SELECT DISTINCT TABLE_SCHEMA FROM information_schema.TABLES WHERE LOWER(TABLE_NAME) = LOWER(%s)"
        return [str(name) for name in self._session.column(sql, (table,))]

    def find(self, db: str, table: str) -> TableDef | None:
        """The table of that name; None where there is none. Raises SchemaError for a type that no file can hold."""
        name = self.table(db, table)
        if name not in self._known:
            self._known[name] = self._read(*name)
        return self._known[name]

    def require(self, db: str, table: str, commit_ts: int) -> TableDef:
        """The table that rows of `commit_ts` go into. Raises SchemaError where there is none."""
        found = self.find(db, table)
        if found is None:
            raise SchemaError(
                "rows of a table that the target does not have at this place",
                where={"table": f"{db}.{table}", "commit_ts": commit_ts},
                hint="the base must be the source's state right before the first change that is restored: start-tso is"
                " the commit_ts behind it; or leave the table out (replicate-ignore-table)",
            )
        return found

    def forget(self) -> None:
        """A DDL ran."""
        self._known.clear()
        self._names.clear()

    def _spelled(self, query: str, name: str, scope: tuple[str, ...]) -> str:
        key = (query, *scope, name)
        if key not in self._names:
            column = "TABLE_NAME" if scope else "SCHEMA_NAME"
            found = self._session.column(query.format(condition=f"LOWER({column}) = LOWER(%s)"), (*scope, name))
            self._names[key] = name if name in found or not found else str(found[0])
        return self._names[key]

    def _read(self, db: str, table: str) -> TableDef | None:
        described = describe_table(self._query, self._flavor, db, table, self._visibility)
        if described is None:
            return None
        info = table_info(described, 1, described.name)
        columns = [_with_origin(column) for column in info["cols"]]
        return TableDef.from_json({**info, "cols": columns}, DbInfo(1, db, "", "", {}))

    def _query(self, sql: str, arguments: Sequence[object]) -> Iterable[Mapping[str, Any]]:
        return self._session.mappings(sql, arguments)


def _with_origin(column: Json) -> Json:
    """A row that was written before the column was added has its default."""
    if column["default"] is None or column["default_is_expr"] or column["default"] == CURRENT:
        return column
    return {**column, "origin_default": column["default"], "origin_default_bit": column["default_bit"]}


def with_json_columns(table: TableDef, names: Iterable[str]) -> TableDef:
    """`table` where the columns `names` are JSON at the source: MariaDB says LONGTEXT of them, and compares texts."""
    wanted = {fold_name(name) for name in names}
    if not wanted:
        return table
    columns = tuple(_as_json(c) if fold_name(c.name) in wanted else c for c in table.all_columns)
    return replace(table, all_columns=columns)


def _as_json(column: ColumnInfo) -> ColumnInfo:
    return replace(column, tp=t.JSON) if column.tp in t.BLOBS and not column.is_binary else column
