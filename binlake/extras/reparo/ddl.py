"""Maps a DDL of a binlog file, of which only the text is known, to statements, by the definitions of the target.

Rule: what the text leaves open is decided by the target, such as a database's character set. TiDB logs a DROP of
several tables once per table, each time with the whole text; so each of these DDL drops one table: the first that still
exists. Definitions are read at the target when a table first gets rows, and again after each DDL, as the original's
loader does (tidb-binlog 5.10). A base that does not have the source's state at the start is detected here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from binlake import tso
from binlake.binlogfile.reading import BinlogDdl
from binlake.common.sql import Dialect
from binlake.dialect import DdlText, map_ddl
from binlake.dialect.classify import DdlKind, classify_tokens
from binlake.dialect.conversions import RESTORES
from binlake.dialect.names import DATABASES, put_target_names, split_statements
from binlake.dialect.replacement import find_replaced_names
from binlake.dialect.tokens import TokenKind, tokenize
from binlake.errors import SchemaError, TargetRefused
from binlake.mysqlbinlog.definitions.descriptions import build_visibility_sql, describe_table
from binlake.mysqlbinlog.definitions.tables import build_table_info
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema import ColumnInfo, DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json, fold_name, fold_pair
from binlake.rows.schema.state import DdlSide
from binlake.target import ExpectedState
from binlake.target.session.session import TargetSession

Name = tuple[str, str]

CURRENT = "CURRENT_TIMESTAMP"
"""A default that differs for each row."""

_DATABASES = "SELECT SCHEMA_NAME FROM information_schema.SCHEMATA WHERE {condition}"
_TABLES = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND {condition}"

# TiDB shows its tables as MySQL does.
_FLAVORS = {"mariadb": Flavor.MARIADB, "mysql": Flavor.MYSQL, "tidb": Flavor.MYSQL}
Keeps = Callable[[str, str], bool]
"""Whether changes of (db, table) are selected; (db, "") for a database."""
_DROPS = {DdlKind.DROP_TABLE, DdlKind.DROP_VIEW, DdlKind.DROP_SEQUENCE}
_YEARS = ("'1", "'2", '"1', '"2')
_CLOCK = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURDATE")
_HINT = (
    "make this change at the target by hand, then continue after it with start-tso above its commit_ts and a new"
    " --name; or leave its table out (replicate-ignore-table)"
)


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


@dataclass(frozen=True)
class FileDdl:
    """A DDL: `sql` without its USE, `db` for unqualified names, `names`: the (db, table) in it, (db, "") a database."""

    commit_ts: int
    db: str
    sql: str
    kind: DdlKind
    names: tuple[Name, ...]

    @classmethod
    def of(cls, item: BinlogDdl) -> FileDdl:
        """Parse a file's DDL. Raises SchemaError for a text that is not a DDL."""
        tokens = [token for token in tokenize(item.sql) if token.kind is not TokenKind.COMMENT]
        plain = [token for token in tokens if token.kind is not TokenKind.FEATURE]
        first = split_statements(plain)[0]
        statement = classify_tokens(first)
        names = tuple(dict.fromkeys(find_replaced_names(item.sql, item.db)))
        if statement.kind in DATABASES and not statement.tables and item.db:
            # ALTER DATABASE without a name refers to the session's database.
            names = ((item.db, ""),)
        return cls(item.commit_ts, item.db, item.sql, statement.kind, names)

    @property
    def table(self) -> str:
        """The first table that the DDL names."""
        return next((table for _, table in self.names if table), "")

    @property
    def depends_on_zone(self) -> bool:
        """True if it has a time that the source read in its session's zone: a partition's bound or TIMESTAMP default.

        The files do not have that zone, so the time is read as UTC.
        """
        words = [token for token in tokenize(self.sql) if token.kind is not TokenKind.COMMENT]
        if any(token.is_word("UNIX_TIMESTAMP") for token in words):
            return True
        pairs = pairwise(words)
        given = any(one.is_word("DEFAULT") and other.text[:2] in _YEARS for one, other in pairs)
        return given and any(token.is_word("TIMESTAMP") for token in words)

    def choose(self, keeps: Keeps) -> FileDdl | None:
        """The DDL if it is selected, else None. For a rename the new name decides, as in the drainer (tidb-binlog 5.6).

        A DROP keeps only its selected names, because the text of each of its jobs names all tables.
        """
        if self.kind in _DROPS:
            own = tuple(name for name in self.names if keeps(*name))
            return replace(self, names=own) if own else None
        judged = (self.db, "") if not self.names else self.names[-1 if self.kind is DdlKind.RENAME_TABLE else 0]
        return self if keeps(*judged) else None


@dataclass(frozen=True)
class TargetDdl:
    """The statements `sql` that run at the target in order, or none and the `reason`.

    `touched`: the names whose definitions show whether it ran; `after`: their definitions then, if known; `repeatable`:
    running it again changes nothing.
    """

    sql: tuple[str, ...]
    reason: str
    touched: tuple[Name, ...]
    after: ExpectedState | None
    repeatable: bool


def map_file_ddl(ddl: FileDdl, tables: ReparoTables, dialect: Dialect, gone: Collection[Name] = ()) -> TargetDdl:
    """The statements for `ddl` in the target's present state. `gone`: names dropped earlier in the same window.

    Raises TargetRefused for a DDL that its dialect cannot express.
    """
    db = _find_home(ddl, tables)
    sql = put_target_names(ddl.sql, db, tables)
    names = tuple(dict.fromkeys(find_replaced_names(sql, db))) or ddl.names
    if ddl.kind in _DROPS:
        own = {fold_pair(name) for name in ddl.names}
        left = (name for name in names if fold_pair(name) in own and name not in gone)
        names = next(((name,) for name in left if tables.exists(name)), ())
        if not names:
            return TargetDdl((), "what it drops does not exist", (), None, repeatable=True)
    before = [tables.find(*name) for name in names if name[1]]
    databases = tuple(DbInfo(1, name, "", "", {}) for name, table in names if not table)
    first = names[0] if names else (db, "")
    routed = DdlText(
        ddl.commit_ts,
        db or first[0],
        first[1],
        sql,
        DdlSide((), tuple(table for table in before if table is not None)),
        DdlSide(databases, ()),
    )
    try:
        mapped = map_ddl(routed, dialect)
    except TargetRefused as error:
        raise add_hint(error) from error
    return TargetDdl(
        _set_commit_time(ddl, mapped.sql),
        mapped.reason,
        names,
        _derive_expected(ddl, names),
        ddl.kind is DdlKind.TRUNCATE_TABLE,
    )


def add_hint(error: TargetRefused) -> TargetRefused:
    """`error` of a DDL, with a hint that applies to reparo."""
    return TargetRefused(error.message, where=error.where, hint=_HINT)


def _find_home(ddl: FileDdl, tables: ReparoTables) -> str:
    """The database of unqualified names. For a table renamed into another database, the file has the new one."""
    db = tables.map_database(ddl.db)
    if ddl.kind not in (DdlKind.ALTER_TABLE, DdlKind.RENAME_TABLE) or not ddl.names:
        return db
    named, table = ddl.names[0]
    if named != ddl.db or tables.exists(tables.map_table(named, table)):
        return db
    homes = tables.list_databases_with(table)
    return homes[0] if len(homes) == 1 else db


def _set_commit_time(ddl: FileDdl, sql: tuple[str, ...]) -> tuple[str, ...]:
    """`sql` with the clock set to its commit, so that existing rows get that time in a new column with current time."""
    clock = ddl.kind is DdlKind.ALTER_TABLE and any(token.is_word(*_CLOCK) for token in tokenize(ddl.sql))
    if not (clock and sql):
        return sql
    seconds = tso.extract_physical(ddl.commit_ts) // 1000
    alters = sql[1:] if sql[0].startswith("USE ") else sql
    return (*sql[: len(sql) - len(alters)], f"SET SESSION timestamp = {seconds}", *alters, RESTORES)


def _derive_expected(ddl: FileDdl, names: tuple[Name, ...]) -> ExpectedState | None:
    """The definitions after the DDL, if its text says everything about them."""
    if ddl.kind in _DROPS:
        return ExpectedState(tables=dict.fromkeys(names))
    if ddl.kind in (DdlKind.CREATE_DATABASE, DdlKind.DROP_DATABASE) and names:
        return ExpectedState(databases={names[0][0]: ddl.kind is DdlKind.CREATE_DATABASE})
    return None
