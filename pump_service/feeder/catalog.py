"""The catalog: the definitions of all sources at the place of their logs that is read, as a fold of DDL jobs.

Every change is a `SchemaChange` with the next id and the next SchemaVersion; they must be journaled and published in
the order in which they were made, whatever their source: hold `lock` from `follow` (or `adopt`) until that is done.
After a failure in between the process ends, and the catalog is made again from the journal's jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from binlake.dialect.classify import Kind
from binlake.dialect.source import restored_text
from binlake.dialect.tokens import Token, render, tokenize
from binlake.errors import BinlakeError, SchemaError
from binlake.mysqlbinlog.definitions.alters import Altered, refuse_unlogged_rows, standard_specs
from binlake.mysqlbinlog.definitions.changes import SchemaChange, greatest_id, source_of
from binlake.mysqlbinlog.definitions.columns import tidb_charset
from binlake.mysqlbinlog.definitions.columntext import CreateText, create_database_text
from binlake.mysqlbinlog.definitions.described import SYSTEM_DATABASES, DatabaseDescription, TableDescription
from binlake.mysqlbinlog.definitions.statements import SingleStatement, split_ddl
from binlake.mysqlbinlog.definitions.tablemaps import check_table_map
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY, table_info, with_origin_defaults
from binlake.mysqlbinlog.model import Flavor, Session, Statement, TableMap
from binlake.rows.schema import Action, DbInfo, DdlJob, SchemaState, TableDef
from binlake.rows.schema.forms import Json, database_json, job_json
from binlake.rows.schema.info import SOURCE_KEY
from binlake.rows.schema.names import fold_name
from binlake.statements.literal import qualified, quote_name
from pump_service.feeder.tracker import Tracker


def _as_it_is(db: str) -> str:
    return db


def _nothing(_db: str, _table: str) -> bool:
    return False


@dataclass(frozen=True)
class SourceNames:
    """A source as the catalog knows it. `database`: what its databases are called here (`SourceFile.database_name`).

    `ignores(db, table)`: True for a table (table "": a database) that is left out, definitions and rows.
    """

    name: str
    flavor: Flavor
    database: Callable[[str], str] = _as_it_is
    ignores: Callable[[str, str], bool] = _nothing

    def leaves_out(self, db: str, table: str) -> bool:
        """True for what is the server's own or ignored."""
        return db.lower() in SYSTEM_DATABASES or self.ignores(db, table)


class Catalog:
    """`jobs`: those of the journal, in order. `trackers`: one for each source, by its name.

    Readers (`table`, `definition_of`) need no lock: they take the state as it is.
    """

    def __init__(self, sources: Sequence[SourceNames], trackers: Mapping[str, Tracker], jobs: Iterable[Json]) -> None:
        self.lock = threading.RLock()
        self._sources = {source.name: source for source in sources}
        self._trackers = trackers
        self._owners: dict[str, tuple[str, str]] = {}
        self._stale = set(self._sources)
        self._known: dict[tuple[str, str, str], tuple[bytes, int, TableDef | None]] = {}
        parsed = list(jobs)
        for job in parsed:
            self._note_owner(job)
        read = [DdlJob.from_dict(job) for job in parsed]
        self.state = SchemaState().fold((0, job) for job in read)
        self._next_id = max(greatest_id(read), _FIRST_ID - 1) + 1

    @property
    def version(self) -> int:
        """The SchemaVersion that transactions carry now."""
        return self.state.version

    def table(self, source: str, db: str, table: str) -> TableDef | None:
        """The definition now of a table by its name at the source; None where there is none."""
        return self.state.find(self._sources[source].database(db), table)

    def definition_of(self, source: str, event: TableMap) -> TableDef | None:
        """The definition by which the rows of `event` are read; None where the table is left out.

        Raises SchemaError for a table that is not known, or whose definition is not that of the log.
        """
        key = (source, event.db, event.table)
        known = self._known.get(key)
        if known is not None and known[0] == event.types and known[1] == self.version:
            return known[2]
        version, found = self.version, self._looked_up(source, event)
        self._known[key] = (event.types, version, found)
        return found

    def adopt(self, source: str, databases: Sequence[DatabaseDescription]) -> list[SchemaChange]:
        """The first definitions of a source; what is known already is passed over."""
        names, changes = self._sources[source], list[SchemaChange]()
        for database in databases:
            if names.leaves_out(database.name, ""):
                continue
            if self.state.database(names.database(database.name)) is None:
                changes.append(self._create_database(names, database))
            for table in database.tables:
                if names.leaves_out(table.db, table.name) or self.table(source, table.db, table.name) is not None:
                    continue
                changes.append(self._create_table(names, table))
        self._stale.add(source)
        return changes

    def follow(self, source: str, statement: Statement) -> list[SchemaChange]:
        """What `statement` changes, in order; nothing for one that changes no definition.

        Raises SchemaError for a statement that cannot be followed, SourceUnavailable when the tracker is away; then
        nothing has changed.
        """
        names = self._sources[source]
        singles = split_ddl(statement, names.flavor)
        singles = [single for single in singles if not names.leaves_out(single.db, single.table)]
        before = self.state, self._next_id, dict(self._owners)
        try:
            if singles and source in self._stale:
                self._trackers[source].rebuild(self._described(names))
                self._stale.discard(source)
            return [change for single in singles for change in self._follow_one(names, single, statement.session)]
        except BinlakeError as error:
            self.state, self._next_id, self._owners = before
            self._stale.add(source)
            error.where.setdefault("source", source)
            raise

    def _follow_one(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        return _FOLLOW[single.kind](self, names, single, session)

    # Databases.

    def _database_created(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        if self.state.database(names.database(single.db)) is not None:
            return []
        self._trackers[names.name].run(single, session)
        return [self._create_database(names, self._tracked_database(names, single.db))]

    def _database_altered(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        db = self._database(names, single.db)
        self._trackers[names.name].run(single, session)
        after = self._tracked_database(names, single.db)
        info = _database_info(db.id, db.name, after)
        text = f"ALTER DATABASE {quote_name(db.name)} CHARACTER SET {info['charset']} COLLATE {info['collate']}"
        if (db.charset, db.collate) == (info["charset"], info["collate"]):
            return []
        return [self._change(names, Action.SCHEMA_CHARSET, tokenize(text), db, db_info=info)]

    def _database_dropped(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        db = self.state.database(names.database(single.db))
        if db is None:
            return []
        self._trackers[names.name].run(single, session)
        return [self._change(names, Action.DROP_SCHEMA, tokenize(f"DROP DATABASE {quote_name(db.name)}"), db)]

    # Tables.

    def _table_created(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        former = self.table(names.name, single.db, single.table)
        replaces = any(token.is_word("REPLACE") for token in single.tokens[:3])
        if former is not None and not replaces:
            return []
        self._trackers[names.name].run(single, session)
        dropped = [] if former is None else [self._drop(names, former)]
        return [*dropped, self._create_table(names, self._tracked(names, single.db, single.table))]

    def _table_dropped(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        former = self.table(names.name, single.db, single.table)
        if former is None:
            return []
        self._trackers[names.name].run(single, session)
        return [self._drop(names, former)]

    def _table_truncated(self, names: SourceNames, single: SingleStatement, _session: Session) -> list[SchemaChange]:
        former = self._table(names, single.db, single.table)
        text = tokenize(f"TRUNCATE TABLE {qualified(former.db, former.name)}")
        info = {**former.raw, "id": self._new_id()}
        return [self._change(names, Action.TRUNCATE_TABLE, text, self._home(former), former, info)]

    def _table_renamed(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        former = self._table(names, single.db, single.table)
        db, name = single.to or ("", "")
        home = self._database(names, db)
        self._trackers[names.name].run(single, session)
        described = self._tracked(names, db, name)
        info = {**former.raw, "name": {"O": name, "L": fold_name(name)}, CREATE_KEY: described.create}
        text = tokenize(f"RENAME TABLE {qualified(former.db, former.name)} TO {qualified(home.name, name)}")
        return [self._change(names, Action.RENAME_TABLE, text, home, former, info)]

    def _table_altered(self, names: SourceNames, single: SingleStatement, session: Session) -> list[SchemaChange]:
        former, specs = self._table(names, single.db, single.table), single.tokens[_SPECS_AT:]
        refuse_unlogged_rows(specs)
        self._trackers[names.name].run(single, session)
        described = self._tracked(names, single.db, single.table)
        altered = standard_specs(specs, former, _create_text(described))
        return self._alter(names, former, described, altered, session)

    def _alter(
        self, names: SourceNames, former: TableDef, described: TableDescription, altered: Altered, session: Session
    ) -> list[SchemaChange]:
        info = table_info(described, former.id, former.name, former, altered.renamed)
        if not altered.specs:
            return []
        info = with_origin_defaults(info, former, _moments(session))
        text = [*tokenize(f"ALTER TABLE {qualified(former.db, former.name)} "), *_apart(altered.tokens())]
        return [self._change(names, altered.action, text, self._home(former), former, info)]

    # Parts.

    def _create_database(self, names: SourceNames, database: DatabaseDescription) -> SchemaChange:
        name = names.database(database.name)
        taken = self._owners.get(fold_name(name))
        if taken is not None and taken[0] != names.name:
            raise SchemaError(
                f"two sources have a database that is {name} here: {taken[0]} and {names.name}",
                hint='give one of them rename-schema = "{source}_{schema}" in feeder.toml, and route it from there',
                where={"database": name},
            )
        info = _database_info(self._new_id(), name, database)
        text = tokenize(create_database_text(name, info["charset"], info["collate"]))
        self._owners[fold_name(name)] = (names.name, database.name)
        return self._change(
            names, Action.CREATE_SCHEMA, text, DbInfo.from_json(info), db_info=info, more={"db": database.name}
        )

    def _create_table(self, names: SourceNames, described: TableDescription) -> SchemaChange:
        home = self._database(names, described.db)
        info = table_info(described, self._new_id(), described.name)
        text = _create_text(described).statement(home.name, described.name)
        table = TableDef.from_json(info, home)
        return self._change(names, Action.CREATE_TABLE, text, home, table, info)

    def _drop(self, names: SourceNames, former: TableDef) -> SchemaChange:
        text = tokenize(f"DROP TABLE {qualified(former.db, former.name)}")
        return self._change(names, Action.DROP_TABLE, text, self._home(former), former, former.raw)

    def _change(
        self,
        names: SourceNames,
        action: Action,
        text: Sequence[Token],
        home: DbInfo,
        table: TableDef | None = None,
        info: Mapping[str, object] | None = None,
        *,
        db_info: Json | None = None,
        more: Mapping[str, str] | None = None,
    ) -> SchemaChange:
        """The next change; the state is the one behind it when this returns."""
        job = job_json(
            self._new_id(), action, render(text), schema=(home.id, home.name),
            table=(table.id, table.name) if table is not None else (0, ""), version=self.version + 1, start_ts=0,
            finished_ts=0, db_info=db_info, table_info=None if info is None else {**info, SOURCE_KEY: names.name},
        )  # fmt: skip
        body = {**job, "feeder": {"source": names.name, **(more or {})}}
        self.state = self.state.apply(DdlJob.from_dict(body))
        if action is Action.DROP_SCHEMA:
            self._owners.pop(fold_name(home.name), None)
        return SchemaChange(names.name, restored_text(text), body)

    def _looked_up(self, source: str, event: TableMap) -> TableDef | None:
        names = self._sources[source]
        if names.leaves_out(event.db, event.table):
            return None
        found = self._table(names, event.db, event.table)
        check_table_map(found, event)
        return found

    def _table(self, names: SourceNames, db: str, table: str) -> TableDef:
        found = self.table(names.name, db, table)
        if found is None:
            raise SchemaError(
                "the log names a table that the catalog does not have",
                hint="its definition was not read at the start, or its DDL did not reach the log (sql_log_bin = 0):"
                " take a new snapshot of the source (binlake bootstrap), or leave the table out",
                where={"source": names.name, "table": f"{db}.{table}"},
            )
        return found

    def _database(self, names: SourceNames, db: str) -> DbInfo:
        found = self.state.database(names.database(db))
        if found is None:
            raise SchemaError(
                "the log names a database that the catalog does not have",
                hint="take a new snapshot of the source (binlake bootstrap), or leave the database out",
                where={"source": names.name, "database": db},
            )
        return found

    def _home(self, table: TableDef) -> DbInfo:
        return next(db for db in self.state.databases() if db.id == table.db_id)

    def _tracked(self, names: SourceNames, db: str, table: str) -> TableDescription:
        found = self._trackers[names.name].table(db, table)
        if found is None:
            raise SchemaError(
                "the tracker has no such table behind a statement of it", where={"table": f"{db}.{table}"}
            )
        return found

    def _tracked_database(self, names: SourceNames, db: str) -> DatabaseDescription:
        found = self._trackers[names.name].database(db)
        if found is None:
            raise SchemaError("a statement left no database at the tracker", where={"database": db})
        return found

    def _described(self, names: SourceNames) -> list[DatabaseDescription]:
        """What the tracker is made of again: the databases of a source with the texts of their tables."""
        return [
            replace(DatabaseDescription(own, db.charset, db.collate), tables=self._texts(names, db, own))
            for db in self.state.databases()
            for source, own in (self._owners.get(fold_name(db.name), ("", "")),)
            if source == names.name
        ]

    def _texts(self, names: SourceNames, db: DbInfo, own: str) -> tuple[TableDescription, ...]:
        mine = [table for table in self.state.tables() if table.db_id == db.id]
        return tuple(
            TableDescription(names.flavor, own, table.name, "", "", (), (), table.raw[CREATE_KEY]) for table in mine
        )

    def _note_owner(self, job: Json) -> None:
        if job["type"] == Action.CREATE_SCHEMA:
            self._owners[fold_name(job["binlog"]["DBInfo"]["db_name"]["O"])] = (source_of(job), job["feeder"]["db"])
        elif job["type"] == Action.DROP_SCHEMA:
            self._owners.pop(fold_name(job["schema_name"]), None)

    def _new_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1


_FIRST_ID = 102
"""TiDB's ids below are its own tables'."""
_SPECS_AT = len(tokenize("ALTER TABLE `d`.`t`"))
"""Where the first clause of a single ALTER TABLE stands."""

_Follower = Callable[[Catalog, SourceNames, SingleStatement, Session], list[SchemaChange]]
_FOLLOW: Mapping[Kind, _Follower] = {
    Kind.CREATE_DATABASE: Catalog._database_created,
    Kind.ALTER_DATABASE: Catalog._database_altered,
    Kind.DROP_DATABASE: Catalog._database_dropped,
    Kind.CREATE_TABLE: Catalog._table_created,
    Kind.CREATE_TABLE_LIKE: Catalog._table_created,
    Kind.DROP_TABLE: Catalog._table_dropped,
    Kind.TRUNCATE_TABLE: Catalog._table_truncated,
    Kind.RENAME_TABLE: Catalog._table_renamed,
    Kind.ALTER_TABLE: Catalog._table_altered,
}


def _database_info(db_id: int, name: str, described: DatabaseDescription) -> Json:
    charset, collate = tidb_charset(described.charset), tidb_charset(described.collate)
    return {**database_json(db_id, name), "charset": charset, "collate": collate}


def _create_text(described: TableDescription) -> CreateText:
    charsets = {c.name: (tidb_charset(c.charset), tidb_charset(c.collate)) for c in described.columns if c.charset}
    collate = tidb_charset(described.collate)
    return CreateText(described.create, described.flavor, charsets, (collate.partition("_")[0], collate))


def _apart(tokens: Sequence[Token]) -> list[Token]:
    return [replace(tokens[0], space=True), *tokens[1:]]


def _moments(session: Session) -> dict[str, str]:
    """The statement's time as the text of a column that takes it: a TIMESTAMP in UTC, others in the session's zone."""
    at = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=session.timestamp_us or 0)
    text = at.isoformat(sep=" ", timespec="microseconds")[:26]
    return {"timestamp": text, "datetime": text}
