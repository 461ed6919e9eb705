"""Writes the changes of the catalog as DDL jobs of TiDB, of all sources one after the other: each with the next ids.

Jobs are the whole state: folding them in order gives the catalog, its next id and its next version. The field `feeder`
of a job holds what TiDB's jobs have no field for: the source, and the state of an online-DDL tool's tables (such a job
did not take effect). Names are those that everything downstream sees (`SourceNames.database`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from binlake.dialect.source import restore_text
from binlake.dialect.tokens import Token, render, tokenize
from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.columntext import CreateText, create_database_text
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, TableDescription, is_user_database
from binlake.mysqlbinlog.definitions.partitions import add_partitions
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY, build_table_info, to_tidb_charset
from binlake.mysqlbinlog.model import Flavor, LoggedSession
from binlake.rows.schema import Action, DbInfo, DdlJob, JobState, SchemaState, TableDef
from binlake.rows.schema.forms import Json, build_database_json, build_job_json, fold_name
from binlake.rows.schema.info import SOURCE_KEY
from binlake.rows.schema.job import PUBLIC
from binlake.statements.literal import quote_name, quote_qualified_name

_REMOVING = frozenset({Action.DROP_SCHEMA, Action.DROP_TABLE, Action.DROP_COLUMN, Action.DROP_INDEX})
_FIRST_ID = 102
"""Lower ids belong to TiDB's own tables."""


@dataclass(frozen=True)
class DefinitionChange:
    """`body`: the job without its times; `query`: the text of its binlog."""

    source: str
    query: str
    body: Json

    @property
    def job_id(self) -> int:
        """The id of the job."""
        return int(self.body["id"])

    @property
    def version(self) -> int:
        """The SchemaVersion after the change."""
        return int(self.body["binlog"]["SchemaVersion"])

    @property
    def schema_state(self) -> int:
        """`ddl_schema_state` of its binlog: 0 if something is removed, else public."""
        return 0 if Action(self.body["type"]) in _REMOVING else PUBLIC

    def build_job(self, start_ts: int, commit_ts: int) -> Json:
        """The job as `/ddl/history` shows it, and as the journal stores it. `commit_ts`: its own or a later one.

        Its only step is at its commit, unlike TiDB's (`binlake.rows.schema.window`): a statement's jobs are all
        submitted before the first of them commits, and one that drops must not be placed before those it follows.
        """
        binlog = {**self.body["binlog"], "FinishedTS": commit_ts}
        return {**self.body, "start_ts": start_ts, "real_start_ts": commit_ts, "binlog": binlog}


def read_source(job: Mapping[str, Any]) -> str:
    """The source that made a job's change."""
    return str(job["feeder"]["source"])


def find_greatest_id(jobs: Iterable[DdlJob]) -> int:
    """The greatest id of a job, database or table in `jobs`; 0 if there is none."""
    return max(
        (max(job.id, job.schema_id, job.table_id, (job.table_info or {}).get("id", 0)) for job in jobs), default=0
    )


def _return_unchanged(db: str) -> str:
    return db


def _ignores_none(_db: str, _table: str) -> bool:
    return False


@dataclass(frozen=True)
class SourceNames:
    """A source as the catalog knows it.

    `database`: gives its databases' names here (`SourceFile.derive_database_name`).

    `ignores(db, table)`: True for a table (table "": a database) whose definitions and rows are excluded.
    """

    name: str
    flavor: Flavor
    database: Callable[[str], str] = _return_unchanged
    ignores: Callable[[str, str], bool] = _ignores_none

    def leaves_out(self, db: str, table: str) -> bool:
        """True for tables of the server itself or a tracker, and for ignored ones."""
        return not is_user_database(db) or self.ignores(db, table)


class JobWriter:
    """`state`: the schema after the jobs so far; `owners`: (source, name at the source) by folded database name."""

    def __init__(self, jobs: Iterable[Json]) -> None:
        ordered = sorted(jobs, key=lambda job: int(job["id"]))
        self.owners: dict[str, tuple[str, str]] = {}
        for job in ordered:
            self._record_owner(job)
        parsed = [DdlJob.from_dict(job) for job in ordered]
        self.state = SchemaState().fold((0, job) for job in parsed)
        self._next_id = max(find_greatest_id(parsed), _FIRST_ID - 1) + 1

    def save_state(self) -> Callable[[], None]:
        """Returns a function that restores the current state."""
        state, next_id, owners = self.state, self._next_id, dict(self.owners)

        def restore() -> None:
            self.state, self._next_id, self.owners = state, next_id, owners

        return restore

    def allocate_id(self) -> int:
        """Allocate the next id for a job, database or table."""
        self._next_id += 1
        return self._next_id - 1

    def find_table(self, names: SourceNames, db: str, table: str) -> TableDef | None:
        """A table by its name at the source; None if there is none, or another source has the database."""
        name = names.database(db)
        owner = self.owners.get(fold_name(name))
        return self.state.find(name, table) if owner is not None and owner[0] == names.name else None

    def find_database(self, names: SourceNames, db: str) -> DbInfo | None:
        """A database by its name at the source, None if there is none; raises SchemaError if another source has it."""
        name = names.database(db)
        owner = self.owners.get(fold_name(name))
        if owner is not None and owner[0] != names.name:
            raise SchemaError(
                f"two sources have a database that is called {name} here: {owner[0]} and {names.name}",
                hint='set rename-schema = "{source}_{schema}" for one of them in feeder.toml, and route it from there',
                where={"database": name},
            )
        return self.state.find_database(name)

    def look_up_own_name(self, database: DbInfo) -> str:
        """A database's name at its source."""
        return self.owners[fold_name(database.name)][1]

    def require_table(self, names: SourceNames, db: str, table: str) -> TableDef:
        """Like `table`, but raises SchemaError if there is none."""
        definition = self.find_table(names, db, table)
        if definition is None:
            raise SchemaError(
                "the log names a table that the catalog does not have",
                hint="its definition was not read at the start, or its DDL did not reach the log (sql_log_bin = 0):"
                f" let the feeder load it (binlake feeder load-table --source {names.name} --table {db}.{table}, then"
                " start the feeder again), or exclude the table",
                where={"source": names.name, "table": f"{db}.{table}"},
            )
        return definition

    def require_database(self, names: SourceNames, db: str) -> DbInfo:
        """Like `database`, but raises SchemaError if there is none."""
        info = self.find_database(names, db)
        if info is None:
            raise SchemaError(
                "the log names a database that the catalog does not have",
                hint="take a new snapshot of the source (binlake bootstrap), or exclude the database",
                where={"source": names.name, "database": db},
            )
        return info

    def find_database_of(self, table: TableDef) -> DbInfo:
        """The database of a table."""
        return next(db for db in self.state.list_databases() if db.id == table.db_id)

    def create_database(self, names: SourceNames, database: DatabaseDescription) -> DefinitionChange:
        """CREATE DATABASE for one that the catalog does not have."""
        name = names.database(database.name)
        info = build_database_info(self.allocate_id(), name, database)
        text = tokenize(create_database_text(name, info["charset"], info["collate"]))
        self.owners[fold_name(name)] = (names.name, database.name)
        home, more = DbInfo.from_json(info), {"db": database.name}
        return self.build_change(names, Action.CREATE_SCHEMA, text, home, db_info=info, more=more)

    def create_table(self, names: SourceNames, described: TableDescription) -> DefinitionChange:
        """CREATE TABLE. Raises SchemaError for what is not supported."""
        home = self.require_database(names, described.db)
        info = build_table_info(described, self.allocate_id(), described.name)
        info = add_partitions(info, described.create, described.flavor, self.allocate_id)
        text = create_text(described).build_statement(home.name, described.name)
        return self.build_change(names, Action.CREATE_TABLE, text, home, TableDef.from_json(info, home), info)

    def drop_table(self, names: SourceNames, former: TableDef) -> DefinitionChange:
        """DROP TABLE."""
        text = tokenize(f"DROP TABLE {quote_qualified_name(former.db, former.name)}")
        return self.build_change(names, Action.DROP_TABLE, text, self.find_database_of(former), former, former.raw)

    def build_change(
        self,
        names: SourceNames,
        action: Action,
        text: Sequence[Token],
        home: DbInfo,
        table: TableDef | None = None,
        info: Mapping[str, Any] | None = None,
        *,
        db_info: Json | None = None,
        more: Mapping[str, Any] | None = None,
        session: LoggedSession | None = None,
    ) -> DefinitionChange:
        """The next change; on return the state includes it. `session`: for a change that converts values."""
        text = _rename_referenced_databases(text, names)
        job = build_job_json(
            self.allocate_id(), action, render(text), schema=(home.id, home.name),
            table=(table.id, table.name) if table is not None else (0, ""), version=self.state.version + 1, start_ts=0,
            finished_ts=0, db_info=db_info, table_info=None if info is None else {**info, SOURCE_KEY: names.name},
        )  # fmt: skip
        body = {**job, "feeder": {"source": names.name, **(more or {})}}
        if session is not None:
            body["feeder"] |= _build_conversion_settings(names.flavor, session)
            body["reorg_meta"] = {"location": _build_location(session)}
        self.state = self.state.apply(DdlJob.from_dict(body))
        if action is Action.DROP_SCHEMA:
            self.owners.pop(fold_name(home.name), None)
        return DefinitionChange(names.name, restore_text(text), body)

    def record_note(
        self, names: SourceNames, text: str, home: DbInfo | None, table: str, more: Mapping[str, Any]
    ) -> DefinitionChange:
        """Record a statement that changes nothing downstream: as a job that did not take effect. `home`: None for a
        table that is left out."""
        schema = (home.id, home.name) if home is not None else (0, "")
        job = build_job_json(
            self.allocate_id(), Action.TABLE_COMMENT, text, schema=schema, table=(0, table), version=0, start_ts=0,
            finished_ts=0,
        )  # fmt: skip
        body = {**job, "state": int(JobState.CANCELLED), "feeder": {"source": names.name, **more}}
        return DefinitionChange(names.name, restore_text(tokenize(text)), body)

    def describe_databases(self, names: SourceNames) -> list[DatabaseDescription]:
        """What a tracker is rebuilt from: the databases of a source with the CREATE texts of their tables."""
        databases = []
        for db in self.state.list_databases():
            source, own = self.owners.get(fold_name(db.name), ("", ""))
            if source == names.name:
                mine = [table for table in self.state.list_tables() if table.db_id == db.id]
                tables = tuple(
                    TableDescription.of_text(names.flavor, own, table.name, table.raw[CREATE_KEY]) for table in mine
                )
                databases.append(DatabaseDescription(own, db.charset, db.collate, tables))
        return databases

    def _record_owner(self, job: Json) -> None:
        if job["type"] == Action.CREATE_SCHEMA:
            self.owners[fold_name(job["binlog"]["DBInfo"]["db_name"]["O"])] = (read_source(job), job["feeder"]["db"])
        elif job["type"] == Action.DROP_SCHEMA:
            self.owners.pop(fold_name(job["schema_name"]), None)


def _rename_referenced_databases(text: Sequence[Token], names: SourceNames) -> list[Token]:
    """`text` whose foreign keys name databases as they are called here."""
    put = list(text)
    for at, token in enumerate(text[:-3]):
        if token.is_word("REFERENCES") and text[at + 2].is_mark("."):
            put[at + 1] = replace(text[at + 1], text=quote_name(names.database(text[at + 1].value)))
    return put


def _build_conversion_settings(flavor: Flavor, session: LoggedSession) -> Json:
    """The settings of `session`, besides the zone, on which converted values depend (`SourceSession`)."""
    seconds = (session.timestamp_us or 0) / 1_000_000
    moment = f"{seconds:.6f}" if seconds else ""
    return {"family": flavor.value, "sql_mode": session.sql_mode or 0, "moment": moment}


def _build_location(session: LoggedSession) -> Json:
    """The time zone of `session` as in TiDB's jobs; `SYSTEM` is treated as UTC."""
    zone = session.time_zone or "UTC"
    if zone[:1] in ("+", "-"):
        hours, _, minutes = zone[1:].partition(":")
        seconds = int(hours) * 3600 + int(minutes or 0) * 60
        return {"name": "" if seconds else "UTC", "offset": -seconds if zone[0] == "-" else seconds}
    return {"name": "UTC" if zone.upper() == "SYSTEM" else zone, "offset": 0}


def build_name_clash_error(names: Sequence[str]) -> SchemaError:
    """The error for two objects of a source whose names differ only in letter case: here they would be one."""
    return SchemaError(
        "two names of the source differ only in letter case, so they are the same name for TiDB and the like",
        hint="rename one of them at the source, or exclude one (ignore-tables of the source in feeder.toml)",
        where={"names": ", ".join(names)},
    )


def build_database_info(db_id: int, name: str, described: DatabaseDescription) -> Json:
    """The DBInfo of a database under the name `name`."""
    charset, collate = to_tidb_charset(described.charset), to_tidb_charset(described.collate)
    return {**build_database_json(db_id, name), "charset": charset, "collate": collate}


def create_text(described: TableDescription) -> CreateText:
    """The CREATE of a described table in parts."""
    charsets = {
        c.name: (to_tidb_charset(c.charset), to_tidb_charset(c.collate)) for c in described.columns if c.charset
    }
    collate = to_tidb_charset(described.collate)
    return CreateText(described.create, described.flavor, charsets, (collate.partition("_")[0], collate))
