"""A TiDB source as of one commit_ts (`tidb_snapshot`): sessions that see its rows, and the definitions of its tables.

Binlake reads rows with the snapshot's definitions and writes them with those of the DDL history, so the two must match.
They differ if a DDL ended just before the snapshot and its job is not in the history yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from pymysql import err
from pymysql.constants import ER

from binlake.cluster.source import TidbSource
from binlake.common.sections import SqlSecurity
from binlake.common.sqllink import SqlLink, build_tls_arguments
from binlake.config.model import Replication
from binlake.config.servers import SourceSql
from binlake.errors import BinlakeError, ConfigError, LostRange, SourceRefused, SourceUnavailable, Transient
from binlake.mysqlbinlog.definitions.descriptions import is_user_database
from binlake.mysqlbinlog.tablerows.link import Link, Name, ask
from binlake.rows.schema import Action, DbInfo, DdlJob, SchemaState, TableDef
from binlake.rows.schema.forms import build_job_json, fold_pair
from binlake.rows.schema.state import JobSpool
from binlake.rules import Rules
from binlake.statements.literal import quote_name, quote_qualified_name

_READ_TIMEOUT_S = 600  # for one answer: finding the upper bound of a range may take long
_SETTINGS = (
    "SET NAMES utf8mb4",
    "SET time_zone = '+00:00', sql_mode = '', net_write_timeout = 3600, wait_timeout = 86400",
)
_GC_TOO_EARLY = (8055, 9006)
"""TiDB's errors when the snapshot is older than the GC safe point: when a session sets it, and when one reads on."""
_NO_ACCESS = frozenset(
    {
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
    }
)
_COLUMNS = (
    "SELECT c.table_schema, c.table_name, c.column_name, c.data_type, c.column_type FROM information_schema.columns c"
    " JOIN information_schema.tables t ON t.table_schema = c.table_schema AND t.table_name = c.table_name"
    " WHERE t.table_type = 'BASE TABLE' ORDER BY c.table_schema, c.table_name, c.ordinal_position"
)
_ROWS = "SELECT table_schema, table_name, table_rows FROM information_schema.tables WHERE table_type = 'BASE TABLE'"
_WORDS = {"longtext": "json", "integer": "int", "numeric": "decimal"}
"""Type names that mean the same: a server that stores JSON as text reports it as LONGTEXT."""
Shape = tuple[tuple[str, str, bool], ...]
"""(name, type name, whether it is unsigned) of each column, in order."""


@dataclass(frozen=True)
class SnapshotSource:
    """The server of `[source.sql]`, as of commit_ts `ts`."""

    sql: SourceSql
    ts: int
    security: SqlSecurity

    @classmethod
    def of(cls, replication: Replication, ts: int) -> SnapshotSource:
        """The snapshot source of `replication`. Raises ConfigError if it has no `[source.sql]`."""
        source = replication.source
        if source.sql is None:
            raise ConfigError(
                "a full load of a TiDB source reads its tables by SQL, but this replication names no SQL server",
                where={"replication": replication.name},
                hint="add a section [source.sql]: host, port and a user with SELECT on the tables",
            )
        return cls(source.sql, ts, source.sql_security)

    @contextmanager
    def open_session(self) -> Iterator[Link]:
        """A session that sees the snapshot; server errors inside the context become Binlake's errors.

        Raises SourceUnavailable, SourceRefused, LostRange.
        """
        link: Link | None = None
        try:
            link = self._connect()
            for statement in (*_SETTINGS, f"SET SESSION tidb_snapshot = '{self.ts}'"):
                ask(link, statement)
            yield link
        except err.MySQLError as error:
            raise self._translate_error(error) from error
        finally:
            if link is not None and link.open:
                # Not `close`, which would first read the remaining rows of an unfinished query.
                link._force_close()  # type: ignore[attr-defined]

    def _connect(self) -> Link:
        sql = self.sql
        tls = build_tls_arguments(self.security, plain_at=sql.host)
        return SqlLink(
            host=sql.host, port=sql.port, user=sql.user, password=sql.password, charset="utf8mb4", autocommit=True,
            connect_timeout=10, read_timeout=_READ_TIMEOUT_S, **tls,
        )  # fmt: skip

    def _translate_error(self, error: err.MySQLError) -> BinlakeError:
        code, text = (error.args[0] if error.args else 0), str(error.args[-1:])
        where = {"server": f"{self.sql.host}:{self.sql.port}", "commit_ts": self.ts}
        if code == ER.UNKNOWN_SYSTEM_VARIABLE:
            return SourceRefused(
                "the server of [source.sql] has no tidb_snapshot: it is not a TiDB",
                where=where,
                hint="name a TiDB server of the source cluster; a MySQL or MariaDB source is loaded by its feeder",
            )
        if code in _GC_TOO_EARLY:
            return LostRange(
                f"the snapshot can no longer be read: {text}",
                where=where,
                hint="raise tidb_gc_life_time, give the replication a new lake folder, and load again",
            )
        if code in _NO_ACCESS:
            return SourceRefused(
                f"the source refuses the load: {code} {text}",
                where=where,
                hint="the user of [source.sql] needs SELECT and SHOW VIEW on all replicated tables",
            )
        return SourceUnavailable(f"the source interrupted the load: {code} {text}", where=where)


class DefinitionsDiffer(Transient):
    """The DDL history and the snapshot show different tables. A later snapshot will match, once the DDL has ended."""


@dataclass(frozen=True)
class BootstrapTable:
    """A table to load; `create`: its CREATE statement, `estimated`: the server's estimate of its row count."""

    definition: TableDef
    create: str
    estimated: int

    @property
    def name(self) -> Name:
        """(database, table) at the source."""
        return self.definition.db, self.definition.name


@dataclass(frozen=True)
class Structures:
    """The whole schema of the source at a commit_ts (`state`), and the objects to load, each with its CREATE statement.

    `sequences`: columns of tables may take their values from them. `left_out`: views, which are not loaded; an operator
    must create them at the target.
    """

    state: SchemaState
    databases: tuple[tuple[DbInfo, str], ...]
    tables: tuple[BootstrapTable, ...]
    sequences: tuple[tuple[TableDef, str], ...] = ()
    left_out: tuple[str, ...] = ()

    def build_jobs(self, from_ts: int) -> list[tuple[int, DdlJob]]:
        """(commit_ts, job) of the DDL that creates the objects, from `from_ts` + 1 on.

        A job has its object's id, which TiDB never gives to a job, and the snapshot's schema version.
        """
        of_table = {db.id: db for db, _ in self.databases}
        parts: list[tuple[Action, DbInfo, TableDef | None, str]] = []
        parts += [(Action.CREATE_SCHEMA, db, None, create) for db, create in self.databases]
        parts += [(Action.CREATE_SEQUENCE, of_table[one.db_id], one, create) for one, create in self.sequences]
        parts += [(Action.CREATE_TABLE, of_table[t.definition.db_id], t.definition, t.create) for t in self.tables]
        return [(ts, self._build_job(ts, *part)) for ts, part in enumerate(parts, from_ts + 1)]

    def _build_job(self, ts: int, action: Action, db: DbInfo, table: TableDef | None, create: str) -> DdlJob:
        own = (table.id, table.name) if table is not None else (0, "")
        raw = build_job_json(
            own[0] or db.id, action, create, schema=(db.id, db.name), table=own, version=self.state.version,
            start_ts=ts - 1, finished_ts=ts, db_info=None if table is not None else dict(db.raw),
            table_info=None if table is None else dict(table.raw),
        )  # fmt: skip
        # The session that read `create` used this time zone, so times in the statement are in it.
        return DdlJob.from_dict({**raw, "reorg_meta": {"location": {"name": "UTC", "offset": 0}}})


def read_structures(source: TidbSource, link: Link, ts: int, rules: Rules) -> Structures:
    """The structures seen by `link`, a session as of `ts`. Raises DefinitionsDiffer, SourceUnavailable, SchemaError."""
    state = _read_state(source, ts)
    replicated = [table for table in state.list_tables() if rules.keeps(table.db, table.name)]
    tables = [table for table in replicated if table.kind == "table"]
    _compare(tables, _read_shapes(link), rules)
    estimates = {(row[0], row[1]): int(row[2] or 0) for row in ask(link, _ROWS)}
    source_tables = tuple(
        BootstrapTable(
            table,
            _create(link, "TABLE", quote_qualified_name(table.db, table.name)),
            estimates.get((table.db, table.name), 0),
        )
        for table in tables
    )
    sequences = [table for table in replicated if table.kind == "sequence"]
    needed = {table.db_id for table in (*tables, *sequences)}
    databases = [db for db in state.list_databases() if db.id in needed or rules.keeps(db.name, "")]
    return Structures(
        state,
        tuple((db, _create(link, "DATABASE", quote_name(db.name))) for db in databases),
        source_tables,
        tuple((one, _create(link, "SEQUENCE", quote_qualified_name(one.db, one.name))) for one in sequences),
        tuple(f"{table.db}.{table.name}" for table in replicated if table.kind == "view"),
    )


def _read_state(source: TidbSource, ts: int) -> SchemaState:
    with JobSpool() as spool:
        spool.fill(source.fetch_ddl_jobs(0))
        return SchemaState().fold(takewhile(lambda placed: placed[0] <= ts, spool.iterate_jobs()))


def _compare(tables: Sequence[TableDef], shown: dict[Name, Shape], rules: Rules) -> None:
    known = {fold_pair((table.db, table.name)): derive_shape(table) for table in tables}
    seen = {fold_pair(name): shape for name, shape in shown.items() if is_user_database(name[0]) and rules.keeps(*name)}
    for name in sorted(known.keys() | seen.keys()):
        if known.get(name) != seen.get(name):
            raise DefinitionsDiffer(
                "a table differs between the DDL history and the snapshot",
                where={
                    "table": ".".join(name),
                    "history": _format_shape(known.get(name)),
                    "snapshot": _format_shape(seen.get(name)),
                },
                hint="wait until its DDL has ended (ADMIN SHOW DDL JOBS), then load again",
            )


def _format_shape(shape: Shape | None) -> str:
    return "no such table" if shape is None else ", ".join(f"{name} {word}" for name, word, _ in shape)


def derive_shape(table: TableDef) -> Shape:
    """The shape of a table definition from the history."""
    return tuple((c.name.lower(), _normalize_type(c.type_name), "unsigned" in c.type_text) for c in table.columns)


def _read_shapes(link: Link) -> dict[Name, Shape]:
    shapes: dict[Name, list[tuple[str, str, bool]]] = {}
    for db, table, *column in ask(link, _COLUMNS):
        shapes.setdefault((db, table), []).append(derive_column_shape(*map(str, column)))
    return {name: tuple(columns) for name, columns in shapes.items()}


def derive_column_shape(name: str, word: str, kind: str) -> tuple[str, str, bool]:
    """The shape of a column that the server shows: its name, DATA_TYPE (`word`) and COLUMN_TYPE (`kind`)."""
    return name.lower(), _normalize_type(word.lower()), "unsigned" in kind.lower()


def _normalize_type(word: str) -> str:
    return _WORDS.get(word, word)


def _create(link: Link, kind: str, name: str) -> str:
    return str(ask(link, f"SHOW CREATE {kind} {name}")[0][1])
