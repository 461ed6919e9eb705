"""Reads the definitions of the target's tables: files have none, so the target's at that position are used.

Rule: they are read when a table first gets rows, and again after each DDL, as the original's loader does (tidb-binlog
5.10). A base that does not have the source's state at the start is detected here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from binlake.base.sql import Dialect
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.descriptions import build_visibility_sql, describe_table
from binlake.mysqlbinlog.definitions.tables import build_table_info
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema import ColumnInfo, DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json, fold_name
from binlake.target.session.session import TargetSession

Name = tuple[str, str]

CURRENT = "CURRENT_TIMESTAMP"
"""A default that differs for each row."""

_DATABASES = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE {condition}"
_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND {condition}"

# TiDB shows its tables as MySQL does.
_FLAVORS = {"mariadb": Flavor.MARIADB, "mysql": Flavor.MYSQL, "tidb": Flavor.MYSQL}


class ReparoTables:
    """The base tables of the target of `session`. Each is read once until `forget`."""

    def __init__(self, session: TargetSession, dialect: Dialect) -> None:
        self._session = session
        self._flavor = _FLAVORS[dialect]
        self._visibility = build_visibility_sql(self._query)
        self._known: dict[Name, TableDef | None] = {}
        self._names: dict[tuple[str, ...], str] = {}

    def map_database(self, db: str) -> str:
        """The target's spelling of the database name `db`, whatever its letter case; `db` if it does not exist."""
        return self._find_spelling(_DATABASES, db, ())

    def map_table(self, db: str, table: str, *, new: bool = False) -> Name:
        """The target's spelling of a table's name. A `new` table's name is used as written."""
        db = self.map_database(db)
        return db, table if new else self._find_spelling(_TABLES, table, (db,))

    def exists(self, name: Name) -> bool:
        """Whether a table, view or sequence of exactly this name exists."""
        return bool(self._session.fetch_rows(_TABLES.format(condition="TABLE_NAME = %s"), name))

    def list_databases_with(self, table: str) -> list[str]:
        """The databases that have a table `table`, in any letter case."""
        sql = "SELECT DISTINCT TABLE_SCHEMA FROM information_schema.TABLES WHERE LOWER(TABLE_NAME) = LOWER(%s)"
        return [str(name) for name in self._session.fetch_column(sql, (table,))]

    def find(self, db: str, table: str) -> TableDef | None:
        """The table of that name, or None. Raises SchemaError for a type that binlog files cannot have."""
        name = self.map_table(db, table)
        if name not in self._known:
            self._known[name] = self._read(*name)
        return self._known[name]

    def require(self, db: str, table: str, commit_ts: int) -> TableDef:
        """The table for rows of `commit_ts`. Raises SchemaError if it does not exist."""
        definition = self.find(db, table)
        if definition is None:
            raise SchemaError(
                "the files have rows of a table that the target does not have at this position",
                where={"table": f"{db}.{table}", "commit_ts": commit_ts},
                hint="the base must be the source's state right before the first restored change: start-tso must be the"
                " commit_ts after the base; or leave the table out (replicate-ignore-table)",
            )
        return definition

    def forget(self) -> None:
        """Forget all definitions after a DDL."""
        self._known.clear()
        self._names.clear()

    def _find_spelling(self, query: str, name: str, scope: tuple[str, ...]) -> str:
        key = (query, *scope, name)
        if key not in self._names:
            column = "TABLE_NAME" if scope else "SCHEMA_NAME"
            found = self._session.fetch_column(query.format(condition=f"LOWER({column}) = LOWER(%s)"), (*scope, name))
            self._names[key] = name if name in found or not found else str(found[0])
        return self._names[key]

    def _read(self, db: str, table: str) -> TableDef | None:
        described = describe_table(self._query, self._flavor, db, table, self._visibility)
        if described is None:
            return None
        info = build_table_info(described, 1, described.name)
        columns = [_with_origin(column) for column in info["cols"]]
        return _leave_generated_to_target(TableDef.from_json({**info, "cols": columns}, DbInfo(1, db, "", "", {})))

    def _query(self, sql: str, arguments: Sequence[object]) -> Iterable[Mapping[str, Any]]:
        return self._session.fetch_mappings(sql, arguments)


def _leave_generated_to_target(table: TableDef) -> TableDef:
    """`table` in which the target computes every generated column: this definition is its own, not the source's.

    A stored one counts as virtual then: rows do not have it. A key needs its columns, so those of a key stay.
    """
    keys = {part.name for index in table.list_unique_keys() for part in index.columns}
    columns = tuple(
        replace(c, generated_stored=False) if c.generated_stored and c.name not in keys else c
        for c in table.all_columns
    )
    return replace(table, all_columns=columns)


def _with_origin(column: Json) -> Json:
    """Add the origin default: a row that was written before ADD COLUMN has the column's default."""
    is_clock = column["default"] == CURRENT and column["type"]["Tp"] in t.MOMENTS
    if column["default"] is None or column["default_is_expr"] or is_clock:
        return column
    return {**column, "origin_default": column["default"], "origin_default_bit": column["default_bit"]}


def with_json_columns(table: TableDef, names: Iterable[str]) -> TableDef:
    """`table` with JSON type for the columns `names`, which are JSON at the source but LONGTEXT in MariaDB."""
    wanted = {fold_name(name) for name in names}
    if not wanted:
        return table
    columns = tuple(_as_json(c) if fold_name(c.name) in wanted else c for c in table.all_columns)
    return replace(table, all_columns=columns)


def _as_json(column: ColumnInfo) -> ColumnInfo:
    return replace(column, tp=t.JSON) if column.tp in t.BLOBS and not column.is_binary else column
