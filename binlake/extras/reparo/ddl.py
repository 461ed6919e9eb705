"""Maps a DDL of a binlog file to the statements that the target runs. Only the DDL's text is known.

Rule: what the text leaves open is decided by the target, such as a database's character set. TiDB logs a DROP of
several tables once per table, each time with the whole text; so each of these DDL drops one table: the first that still
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise

from binlake import tso
from binlake.base.sql import Dialect
from binlake.binlogfile.reading import BinlogDdl
from binlake.dialect import DdlText, map_ddl
from binlake.dialect.classify import DdlKind, classify_tokens
from binlake.dialect.conversions import RESTORES
from binlake.dialect.names import DATABASES, put_target_names, split_statements
from binlake.dialect.replacement import find_replaced_names
from binlake.dialect.tokens import TokenKind, tokenize
from binlake.errors import TargetRefused
from binlake.extras.reparo.definitions import ReparoTables
from binlake.rows.schema import DbInfo
from binlake.rows.schema.forms import fold_pair
from binlake.rows.schema.state import DdlSide
from binlake.target import ExpectedState

Name = tuple[str, str]
Keeps = Callable[[str, str], bool]
"""Whether changes of (db, table) are selected; (db, "") for a database."""

_DROPS = {DdlKind.DROP_TABLE, DdlKind.DROP_VIEW, DdlKind.DROP_SEQUENCE}
_YEARS = ("'1", "'2", '"1', '"2')
_CLOCK = ("CURRENT_TIMESTAMP", "NOW", "LOCALTIME", "LOCALTIMESTAMP", "CURRENT_DATE", "CURDATE")
_HINT = (
    "make this change at the target by hand, then continue after it with start-tso above its commit_ts and a new"
    " --name; or leave its table out (replicate-ignore-table)"
)


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
