"""The catalog: the definitions of all sources at the position up to which their logs are read, as a fold of DDL jobs.

Every change is a `DefinitionChange` with the next id and the next SchemaVersion; they must be journaled and published
in the order in which they were made, whatever their source: hold `lock` from `follow` (or `adopt`) until that is done.
After a failure in between the process ends, and the catalog is rebuilt from the journal's jobs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from binlake.errors import BinlakeError
from binlake.mysqlbinlog.cascades import Cascade, build_cascade_guard
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, TableDescription
from binlake.mysqlbinlog.definitions.statements import split_ddl
from binlake.mysqlbinlog.definitions.tablemaps import check_table_map, is_sequence
from binlake.mysqlbinlog.definitions.writer import DefinitionChange, JobWriter, SourceNames, build_name_clash_error
from binlake.mysqlbinlog.model import Flavor, LoggedStatement, TableMap
from binlake.mysqlbinlog.rowimage.transactions import Guard
from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.following import SourceFollower
from binlake.pump_service.feeder.foreignkeys import ForeignKeys
from binlake.pump_service.feeder.tracker import SourceTracker
from binlake.rows.schema import SchemaState, TableDef
from binlake.rows.schema.forms import Json, fold_name, fold_pair

__all__ = ["Catalog", "SourceNames"]


class Catalog:
    """`jobs`: those of the journal. `trackers`: one for each source, by its name.

    Readers (`find_table`, `find_definition`) need no lock: they use the current state.
    """

    def __init__(
        self, sources: Sequence[SourceNames], trackers: Mapping[str, SourceTracker], jobs: Iterable[Json]
    ) -> None:
        self.lock = threading.RLock()
        known = sorted(jobs, key=lambda job: int(job["id"]))
        self._writer = JobWriter(known)
        self._sources = {source.name: source for source in sources}
        self._followers = {
            source.name: SourceFollower(source, trackers[source.name], self._writer, known) for source in sources
        }
        self._keys = {source.name: ForeignKeys(source, known) for source in sources}
        self._read: dict[tuple[str, str, str], tuple[TableMap, int, TableDef | None]] = {}
        self._guards: dict[str, tuple[int, Guard | None]] = {}

    @property
    def state(self) -> SchemaState:
        """The definitions now."""
        return self._writer.state

    @property
    def version(self) -> int:
        """The SchemaVersion that transactions carry now."""
        return self.state.version

    def look_up_flavor(self, source: str) -> Flavor:
        """The family of a source."""
        return self._sources[source].flavor

    def find_table(self, source: str, db: str, table: str) -> TableDef | None:
        """The current definition of a table, by its name at the source; None if there is none."""
        return self._writer.find_table(self._sources[source], db, table)

    def find_definition(self, source: str, event: TableMap) -> TableDef | None:
        """The definition with which the rows of `event` are decoded; None if the table is excluded.

        Raises SchemaError for an unknown table, or one whose definition does not match the log.
        """
        key = (source, event.db, event.table)
        known, version = self._read.get(key), self.version
        columns = replace(event, table_id=0)
        if known is not None and known[0] == columns and known[1] == version:
            return known[2]
        definition = self._find_definition(source, event)
        self._read[key] = (columns, version, definition)
        return definition

    def build_cascade_guard(self, source: str) -> Guard | None:
        """The guard against rows that foreign keys of a source change without logging; None if it has no such key."""
        version, guard = self._guards.get(source, (-1, None))
        if version != self.version:
            cascades = self._keys[source].trace(self._list_tables(source))
            guard = build_cascade_guard([self._with_known_columns(source, cascade) for cascade in cascades])
            self._guards[source] = self.version, guard
        return guard

    def adopt(
        self, source: str, databases: Sequence[DatabaseDescription], outdated: Collection[Name] = ()
    ) -> list[DefinitionChange]:
        """Take over the first definitions of a source.

        Tables that an unfinished load left behind are kept if they are the same and not among `outdated`, else dropped
        and created again.
        """
        names, writer = self._sources[source], self._writer
        _refuse_name_clashes(names, databases)

        def is_new(table: TableDescription) -> bool:
            left_out = names.leaves_out(table.db, table.name)
            return not left_out and writer.find_table(names, table.db, table.name) is None

        with self._change_source(source):
            changes = self._drop_outdated(names, databases, outdated)
            changes += self._create_described(names, databases, is_new)
            changes += self._keys[source].adopt(writer, (table for database in databases for table in database.tables))
        return changes

    def renew_tables(
        self, source: str, databases: Sequence[DatabaseDescription], tables: Collection[Name]
    ) -> list[DefinitionChange]:
        """Drop those of `tables` that are known, and create those that `databases`, all that the source has, describe.

        Raises SchemaError; then nothing has changed.
        """
        names, writer = self._sources[source], self._writer
        with self._change_source(source):
            known = [found for name in sorted(tables) if (found := writer.find_table(names, *name)) is not None]
            changes = [writer.drop_table(names, table) for table in known]
            changes += self._create_described(names, databases, lambda table: (table.db, table.name) in tables)
            everything = [table for database in databases for table in database.tables]
            changes += self._keys[source].adopt(writer, everything, is_first=False)
        return changes

    @contextmanager
    def _change_source(self, source: str) -> Iterator[None]:
        """Change definitions of a source in the body: if it fails, nothing has changed."""
        restore, restore_keys = self._writer.save_state(), self._keys[source].save_state()
        try:
            yield
        except BaseException:
            restore()
            restore_keys()
            raise
        self._guards.pop(source, None)
        self._followers[source].invalidate_tracker()

    def _create_described(
        self, names: SourceNames, databases: Sequence[DatabaseDescription], is_new: Callable[[TableDescription], bool]
    ) -> list[DefinitionChange]:
        """Create the databases that are not left out and not known, and the tables that are new."""
        changes: list[DefinitionChange] = []
        for database in databases:
            if names.leaves_out(database.name, ""):
                continue
            if self._writer.find_database(names, database.name) is None:
                changes.append(self._writer.create_database(names, database))
            new = [table for table in database.tables if is_new(table)]
            changes += [self._writer.create_table(names, table) for table in new]
        return changes

    def find_by_id(self, source: str, table_id: int) -> tuple[Name, TableDef] | None:
        """The table with this id, or that PARTITION BY has made of it, and its name at the source; None if there is
        none any more."""
        table = self.state.find_table(table_id)
        if table is None:
            return None
        home = self._writer.find_database_of(table)
        owner, db = self._writer.owners[fold_name(home.name)]
        return ((db, table.name), table) if owner == source else None

    def follow(self, source: str, statement: LoggedStatement) -> list[DefinitionChange]:
        """The changes that `statement` makes, in order; none if it changes no definition.

        Raises SchemaError for a statement that cannot be followed, SourceUnavailable when the tracker is down; then
        nothing has changed.
        """
        names = self._sources[source]
        try:
            singles = split_ddl(statement, names.flavor)
            follower = self._followers[source]
            included = [single for single in singles if not follower.is_left_out(single)]
            changes = follower.follow(included, statement.session)
            noted = self._keys[source].follow(self._writer, singles, lambda: self._list_tables(source))
            if noted:
                self._guards.pop(source, None)
            return [*changes, *noted]
        except BinlakeError as error:
            error.where.setdefault("source", source)
            raise

    def follow_all(self, source: str, statements: Iterable[LoggedStatement]) -> list[DefinitionChange]:
        """`follow` all `statements`; if one of them raises, none has changed anything."""
        restore, follower = self._writer.save_state(), self._followers[source]
        online, restore_keys = dict(follower.online), self._keys[source].save_state()
        try:
            return [change for statement in statements for change in self.follow(source, statement)]
        except BaseException:
            restore()
            follower.online = online
            restore_keys()
            self._guards.pop(source, None)
            follower.invalidate_tracker()
            raise

    def _list_tables(self, source: str) -> list[TableDescription]:
        databases = self._writer.describe_databases(self._sources[source])
        return [table for database in databases for table in database.tables]

    def _with_known_columns(self, source: str, cascade: Cascade) -> Cascade:
        """`cascade` for any column, if one of its columns has another name since: no text of the child has it."""
        parent = self.find_table(source, *cascade.parent)
        names = {fold_name(column.name) for column in parent.columns} if parent is not None else set()
        return cascade if names.issuperset(cascade.columns) else replace(cascade, columns=())

    def _drop_outdated(
        self, names: SourceNames, databases: Sequence[DatabaseDescription], named: Collection[Name]
    ) -> list[DefinitionChange]:
        now = {(table.db, table.name): table.create for database in databases for table in database.tables}
        known = [table for database in self._writer.describe_databases(names) for table in database.tables]
        outdated = [
            table
            for table in known
            if (table.db, table.name) in named or now.get((table.db, table.name)) != table.create
        ]
        return [
            self._writer.drop_table(names, self._writer.require_table(names, table.db, table.name))
            for table in outdated
        ]

    def _find_definition(self, source: str, event: TableMap) -> TableDef | None:
        names = self._sources[source]
        if names.leaves_out(event.db, event.table):
            return None
        of_tool = self._followers[source].online.get(fold_pair((event.db, event.table)))
        if of_tool is not None and of_tool.is_left_out:
            return None
        if is_sequence(event) and self._writer.find_table(names, event.db, event.table) is None:
            return None
        definition = self._writer.require_table(names, event.db, event.table)
        check_table_map(definition, event)
        return definition


def _refuse_name_clashes(names: SourceNames, databases: Sequence[DatabaseDescription]) -> None:
    """Raises SchemaError for databases, or tables of one database, whose names differ only in letter case."""
    wanted = [database for database in databases if not names.leaves_out(database.name, "")]
    listed: list[tuple[str, ...]] = [(database.name,) for database in wanted]
    listed += [
        (database.name, table.name)
        for database in wanted
        for table in database.tables
        if not names.leaves_out(database.name, table.name)
    ]
    known = dict[tuple[str, ...], tuple[str, ...]]()
    for name in listed:
        other = known.setdefault(tuple(map(fold_name, name)), name)
        if other != name:
            raise build_name_clash_error([".".join(other), ".".join(name)])
