"""The mutable state of a schema fold: databases, tables by id and by name, and the ids that were dropped recently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from binlake.rows.schema.actions import MAX_USER_ID
from binlake.rows.schema.emptied import Emptied
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.names import fold_pair
from binlake.rows.schema.reorganized import Reorganized
from binlake.rows.schema.stored import StoredName, StoredTables, dump_table, require_database

KEPT_TOMBSTONES = 4096
"""Number of dropped ids to remember. Few suffice: a change of one can only commit within its schema version's lease."""

KEPT_DATABASES = 16
"""Number of dropped databases whose tables to remember: newer TiDB's FLASHBACK DATABASE does not list them in its
job."""

MYSQL_DB = {
    "id": 1,
    "db_name": {"O": "mysql", "L": "mysql"},
    "charset": "utf8mb4",
    "collate": "utf8mb4_bin",
    "state": 5,
}
"""Since 6.2, TiDB creates `mysql` without a job (tidb-binlog 5.4)."""


@dataclass
class SchemaTables:
    """The objects of one schema version. Only a fold in progress changes it.

    `stored`: the tables of a snapshot; `changed`: by id, those that differ from it since (None: it has no more such
    table), so that a copy costs what has changed. `_touched`: the ids that may differ
    since the copy.
    """

    databases: dict[int, DbInfo] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    aliases: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    stored: StoredTables = field(default_factory=StoredTables)
    changed: dict[int, TableDef | None] = field(default_factory=dict)
    _names: dict[tuple[str, str], int | None] = field(default_factory=dict)
    _mark: object = field(default_factory=object, compare=False)
    _copied_from: object = field(default=None, compare=False)
    _touched: set[int] = field(default_factory=set, compare=False)

    @classmethod
    def build_preset(cls) -> SchemaTables:
        """The objects of a new cluster before its first job."""
        return cls(databases={1: DbInfo.from_json(MYSQL_DB)})

    def copy(self) -> SchemaTables:
        """A copy that shares the (immutable) definitions."""
        return SchemaTables(
            dict(self.databases),
            dict(self.gone),
            dict(self.aliases),
            dict(self.dropped),
            self.stored,
            dict(self.changed),
            dict(self._names),
            _copied_from=self._mark,
        )

    def __len__(self) -> int:
        """The number of tables, views and sequences."""
        new = sum((table is not None) - (key in self.stored) for key, table in self.changed.items())
        return len(self.stored) + new

    def get(self, table_id: int) -> TableDef | None:
        """The definition of exactly this id, or None."""
        return self.changed[table_id] if table_id in self.changed else self.stored.find(table_id)

    def list_ids(self) -> list[int]:
        """The ids of all tables, views and sequences, sorted."""
        unchanged = (name.id for name in self.stored if name.id not in self.changed)
        return sorted([*unchanged, *(key for key, table in self.changed.items() if table is not None)])

    def list_names(self) -> list[StoredName]:
        """All tables, views and sequences by id, without reading the definition of any."""
        unchanged = (name for name in self.stored if name.id not in self.changed)
        changed = (table for table in self.changed.values() if table is not None)
        return sorted([*unchanged, *(StoredName(table.id, table.db_id, table.name) for table in changed)])

    def dump_table(self, table_id: int) -> str:
        """The text of the row of a table in a snapshot; one of the `stored` ones is not parsed for it."""
        table = self.changed.get(table_id)
        return self.stored.read_text(table_id) if table is None else dump_table(table)

    def list_touched(self, before: SchemaTables) -> set[int]:
        """The ids of tables whose definitions may be others than in `before`."""
        if before is self:
            return set()
        if self._copied_from is before._mark:
            return self._touched
        if self.stored is before.stored:
            return {*self.changed, *before.changed}
        return {*self.list_ids(), *before.list_ids()}

    def find_table(self, table_id: int) -> TableDef | None:
        """The definition of `table_id`; follows an alias if PARTITION BY gave the table a new id."""
        definition = self.get(table_id)
        while definition is None and table_id in self.aliases:
            table_id = self.aliases[table_id]
            definition = self.get(table_id)
        return definition

    def find(self, db: str, table: str) -> TableDef | None:
        """The table of that name, or None."""
        table_id = self._find_id(fold_pair((db, table)))
        return None if table_id is None else self.get(table_id)

    def put(self, info: Mapping[str, Any], db_id: int, emptied: Emptied | None = None) -> None:
        """Create or replace the table of `info` in database `db_id`; DDL system tables are skipped.

        `emptied`: the partitions that this DDL removed. The table's next DDL discards this information, because it
        begins only after all transactions of the older version have ended.
        """
        if info["id"] > MAX_USER_ID:
            return
        self.add(TableDef.from_json(info, require_database(self.databases, db_id, info["id"]), emptied))

    def add(self, table: TableDef) -> None:
        """Create or replace a table of one of the databases."""
        self._forget(table.id)
        self._set(table)
        self._names[fold_pair((table.db, table.name))] = table.id
        self.gone.pop(table.id, None)
        # EXCHANGE PARTITION can give a table its former id back: the id then means this table, and after a drop none.
        self.aliases.pop(table.id, None)

    def note_reorganized(self, table_id: int, reorganized: Reorganized) -> None:
        """Note that the last DDL of `table_id` rearranged its partitions; the next DDL discards it like `emptied`."""
        table = self.get(table_id)
        assert table is not None
        self._set(replace(table, reorganized=reorganized))

    def remove(self, table_id: int, version: int) -> None:
        """Drop a table; its id is remembered as gone since schema `version`."""
        if self._forget(table_id):
            self.gone[table_id] = version
            _trim(self.gone, KEPT_TOMBSTONES)

    def remove_silently(self, table_id: int) -> None:
        """Drop a table whose id gets another meaning: a late change of that id is an error and is not ignored."""
        self._forget(table_id)

    def replace_id(self, old: int, new: int) -> None:
        """Drop `old`; from now on, changes of id `old` belong to table `new`."""
        self._forget(old)
        self.aliases[old] = new
        _trim(self.aliases, KEPT_TOMBSTONES)

    def drop_database(self, db_id: int, version: int) -> None:
        """Drop a database with its tables; their definitions are kept for a FLASHBACK DATABASE."""
        found = [self.get(name.id) for name in self.list_names() if name.db_id == db_id]
        tables = [table for table in found if table is not None]
        for table in tables:
            self.remove(table.id, version)
        self.dropped[db_id] = tuple(t.raw for t in tables)
        _trim(self.dropped, KEPT_DATABASES)
        self.databases.pop(db_id, None)

    def _find_id(self, name: tuple[str, str]) -> int | None:
        return self._names[name] if name in self._names else self.stored.find_id(name)

    def _set(self, table: TableDef) -> None:
        self.changed[table.id] = table
        self._touched.add(table.id)

    def _forget(self, table_id: int) -> bool:
        table = self.get(table_id)
        if table is None:
            return False
        if table_id in self.stored:
            self.changed[table_id] = None
        else:
            del self.changed[table_id]
        self._touched.add(table_id)
        name = fold_pair((table.db, table.name))
        # A swap of names may have given the name to another table in the meantime.
        if self._find_id(name) == table_id:
            self._names[name] = None
        return True


def _trim(ids: dict[int, Any], keep: int) -> None:
    while len(ids) > keep:
        del ids[next(iter(ids))]
