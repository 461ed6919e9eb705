"""The tables of a schema: those of a stored snapshot, and what the DDL of a fold in progress changed since.

Rule: what a window costs follows from the tables that it touches, not from those that live. So ids and names of all
tables of a snapshot are read at the first question, in a few rows; a definition is read and parsed, together with those
beside it, when it is asked for.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from binlake.errors import SchemaError
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rows.schema.info import DbInfo, TableDef
from binlake.rows.schema.job import MAX_USER_ID
from binlake.rows.schema.partitions import Emptied, Reorganized

READ_TOGETHER = 128
"""Number of tables whose definitions are read at once: about as many rows as `schema_snapshot` has in a row group."""
_HELD = 8
"""Number of such groups whose texts are held."""
_NAMED_TOGETHER = 4096
"""Number of tables of a row with names."""

Json = Mapping[str, Any]
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


class StoredName(NamedTuple):
    """A table of a snapshot, before its definition is read."""

    id: int
    db_id: int
    name: str


class StoredSnapshotReader(Protocol):
    """The rows of one snapshot. It can be pickled: a task reads the snapshot where it runs."""

    def read_names(self) -> list[str]:
        """The texts of `dump_names`, in any order; several times the same is allowed."""

    def read_tables(self, first: int, last: int) -> Mapping[int, str]:
        """By id, the texts of the tables with first <= id <= last."""


@dataclass(frozen=True, eq=False)
class SnapshotIndex:
    """Ids and names of the tables that `reader` finds, of `databases`; read when they are asked for, and then kept.

    The texts of the last definitions are kept too. All who open the snapshot share them. Safe to share among threads.
    """

    reader: StoredSnapshotReader | None = None
    databases: Mapping[int, DbInfo] = field(default_factory=dict)
    _texts: dict[int, Mapping[int, str]] = field(default_factory=dict, repr=False)

    @cached_property
    def names(self) -> dict[int, StoredName]:
        """All tables by id, sorted by it."""
        texts = self.reader.read_names() if self.reader is not None else []
        return {name.id: name for name in sorted({name for text in texts for name in parse_names(text)})}

    @cached_property
    def ids(self) -> Sequence[int]:
        """All ids, sorted."""
        return list(self.names)

    @cached_property
    def by_name(self) -> dict[tuple[str, str], int]:
        """The ids by (database, table), both folded."""
        folded = {db.id: fold_name(db.name) for db in self.databases.values()}
        return {(folded[name.db_id], fold_name(name.name)): name.id for name in self.names.values()}

    def read_text(self, table_id: int) -> str:
        """The text of the row of `table_id`, which the snapshot has. Raises SchemaError."""
        part = bisect_left(self.ids, table_id) // READ_TOGETHER
        texts = self._texts.get(part)
        if texts is None:
            texts = self._texts[part] = self._read_texts(part)
            for old in list(self._texts)[:-_HELD]:
                self._texts.pop(old, None)
        if (text := texts.get(table_id)) is None:
            raise SchemaError(
                "a schema snapshot lacks a table that it names",
                where={"table_id": table_id, "name": self.names[table_id].name},
                hint="restore the files of the lake's table `schema_snapshot` from a copy",
            )
        return text

    def _read_texts(self, part: int) -> Mapping[int, str]:
        ids = self.ids[part * READ_TOGETHER : (part + 1) * READ_TOGETHER]
        assert self.reader is not None
        return self.reader.read_tables(ids[0], ids[-1])

    def __reduce__(self) -> tuple[object, ...]:
        # What was read stays here: a task reads what it needs.
        return SnapshotIndex, (self.reader, self.databases)


@dataclass(frozen=True, eq=False)
class StoredTables:
    """The tables of a snapshot. Two are the same only if they are the same object: each has definitions of its own."""

    index: SnapshotIndex = field(default_factory=SnapshotIndex)
    _parsed: dict[int, TableDef] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.index.names)

    def __iter__(self) -> Iterator[StoredName]:
        """All tables by id."""
        return iter(self.index.names.values())

    def __contains__(self, table_id: object) -> bool:
        return table_id in self.index.names

    def find_id(self, name: tuple[str, str]) -> int | None:
        """The id of the table of that (database, table), both folded, or None."""
        return self.index.by_name.get(name)

    def find(self, table_id: int) -> TableDef | None:
        """The definition of `table_id`, always the same object; None if the snapshot has no such table."""
        known = self._parsed.get(table_id)
        if known is None and table_id in self:
            # Another thread may parse it too, and then both get the same object.
            known = self._parsed.setdefault(table_id, self._parse(table_id))
        return known

    def read_text(self, table_id: int) -> str:
        """The text of the row of `table_id`, which the snapshot has. Raises SchemaError."""
        return self.index.read_text(table_id)

    def _parse(self, table_id: int) -> TableDef:
        return parse_table(load_row("table", table_id, self.read_text(table_id)), self.index.databases)

    def __reduce__(self) -> tuple[object, ...]:
        return StoredTables, (self.index,)


def dump_names(names: Iterable[StoredName]) -> Iterator[str]:
    """The texts of rows that name the tables of a snapshot: `{"ids": […], "schema_ids": […], "names": […]}`."""
    listed = list(names)
    for first in range(0, len(listed), _NAMED_TOGETHER):
        ids, schemas, own = zip(*listed[first : first + _NAMED_TOGETHER], strict=True)
        yield dump_row({"ids": ids, "schema_ids": schemas, "names": own})


def parse_names(text: str) -> Iterator[StoredName]:
    """What `dump_names` wrote. Raises SchemaError."""
    raw = load_row("names", 0, text)
    try:
        yield from map(StoredName, raw["ids"], raw["schema_ids"], raw["names"])
    except (KeyError, TypeError) as error:
        raise SchemaError(f"the names of a schema snapshot cannot be read: {error!r}") from error


def dump_table(table: TableDef) -> str:
    """The text of a table's row."""
    left = {"emptied": table.emptied, "reorganized": table.reorganized}
    known = {name: value.to_json() for name, value in left.items() if value is not None}
    return dump_row({"schema_id": table.db_id, "info": table.raw, **known})


def parse_table(raw: Json, databases: Mapping[int, DbInfo]) -> TableDef:
    """The table of the JSON that `dump_table` wrote. Raises SchemaError."""
    db = require_database(databases, raw["schema_id"], raw["info"]["id"])
    emptied = Emptied.from_json(raw.get("emptied"))
    return TableDef.from_json(raw["info"], db, emptied, Reorganized.from_json(raw.get("reorganized")))


def require_database(databases: Mapping[int, DbInfo], db_id: int, table_id: int) -> DbInfo:
    """The database of a table. Raises SchemaError."""
    if db_id not in databases:
        raise SchemaError(
            "a table belongs to a database that the schema history does not have",
            where={"schema_id": db_id, "table_id": table_id},
        )
    return databases[db_id]


def dump_row(value: object) -> str:
    """JSON as the rows of a snapshot have it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def load_row(kind: str, object_id: int, text: str) -> dict[str, Any]:
    """The JSON object of a row. Raises SchemaError."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SchemaError("a row of a schema snapshot is not JSON", where={"kind": kind, "id": object_id}) from error
    if not isinstance(value, dict):
        raise SchemaError("a row of a schema snapshot is not a JSON object", where={"kind": kind, "id": object_id})
    return value


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
