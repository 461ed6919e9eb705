"""The mutable state of a schema fold: databases, tables by id and by name, and the ids that were dropped recently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from binlake.errors import SchemaError
from binlake.rows.schema.actions import MAX_USER_ID
from binlake.rows.schema.emptied import Emptied
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.names import fold_pair
from binlake.rows.schema.reorganized import Reorganized

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
    """The objects of one schema version. Only a fold in progress changes it."""

    databases: dict[int, DbInfo] = field(default_factory=dict)
    by_id: dict[int, TableDef] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    aliases: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    _names: dict[tuple[str, str], int] = field(default_factory=dict)

    @classmethod
    def build_preset(cls) -> SchemaTables:
        """The objects of a new cluster before its first job."""
        return cls(databases={1: DbInfo.from_json(MYSQL_DB)})

    def copy(self) -> SchemaTables:
        """A copy that shares the (immutable) definitions."""
        return SchemaTables(
            dict(self.databases),
            dict(self.by_id),
            dict(self.gone),
            dict(self.aliases),
            dict(self.dropped),
            dict(self._names),
        )

    def find_table(self, table_id: int) -> TableDef | None:
        """The definition of `table_id`; follows an alias if PARTITION BY gave the table a new id."""
        definition = self.by_id.get(table_id)
        while definition is None and table_id in self.aliases:
            table_id = self.aliases[table_id]
            definition = self.by_id.get(table_id)
        return definition

    def find(self, db: str, table: str) -> TableDef | None:
        """The table of that name, or None."""
        table_id = self._names.get(fold_pair((db, table)))
        return None if table_id is None else self.by_id[table_id]

    def put(self, info: Mapping[str, Any], db_id: int, emptied: Emptied | None = None) -> None:
        """Create or replace the table of `info` in database `db_id`; DDL system tables are skipped.

        `emptied`: the partitions that this DDL removed. The table's next DDL discards this information, because it
        begins only after all transactions of the older version have ended.
        """
        if info["id"] > MAX_USER_ID:
            return
        db = self.databases.get(db_id)
        if db is None:
            raise SchemaError(
                "a table belongs to a database that the schema history does not have",
                where={"schema_id": db_id, "table_id": info["id"]},
            )
        self._forget(info["id"])
        table = TableDef.from_json(info, db, emptied)
        self.by_id[table.id] = table
        self._names[fold_pair((db.name, table.name))] = table.id
        self.gone.pop(table.id, None)
        # EXCHANGE PARTITION can give a table its former id back: the id then means this table, and after a drop none.
        self.aliases.pop(table.id, None)

    def note_reorganized(self, table_id: int, reorganized: Reorganized) -> None:
        """Note that the last DDL of `table_id` rearranged its partitions; the next DDL discards it like `emptied`."""
        self.by_id[table_id] = replace(self.by_id[table_id], reorganized=reorganized)

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
        tables = [t for t in self.by_id.values() if t.db_id == db_id]
        for table in tables:
            self.remove(table.id, version)
        self.dropped[db_id] = tuple(t.raw for t in tables)
        _trim(self.dropped, KEPT_DATABASES)
        self.databases.pop(db_id, None)

    def _forget(self, table_id: int) -> bool:
        table = self.by_id.pop(table_id, None)
        if table is None:
            return False
        name = fold_pair((table.db, table.name))
        # A swap of names may have given the name to another table in the meantime.
        if self._names.get(name) == table_id:
            del self._names[name]
        return True


def _trim(ids: dict[int, Any], keep: int) -> None:
    while len(ids) > keep:
        del ids[next(iter(ids))]
