"""The source's tables under the target's names: one to one, or several source tables in one target table.

If tables share a target, the widest one defines it: it has the columns and plain indexes of every table, and only the
unique keys that all have (hazards R-15). So a column exists before the first shard uses it, and is removed after the
last shard has dropped it. With `shard-mode = "optimistic"` their joined definition defines the target; it may differ
from each table's definition. If no shape can store the rows of all (`Naming.find_common`), their next DDL stops the
window; what each table lacks until all have the DDL is shown to the operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from binlake.ddl.joined import Conflict, fill_for_others, join_tables
from binlake.ddl.shardlocks import as_table
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import DbInfo, SchemaState, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.rows.schema.job import PUBLIC
from binlake.rows.schema.state import DdlSide
from binlake.rules import Rules

Name = tuple[str, str]
EXTRACT_LENGTH = 255
"""Length in characters of an extract column at the target: VARCHAR(255) NOT NULL, utf8mb4_bin."""
_FLAGS = t.FLAG_NOT_NULL | t.FLAG_UNSIGNED


class Naming:
    """Converts the source's definitions and names to the target's."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self._known: WeakKeyDictionary[TableDef, TableDef] = WeakKeyDictionary()

    def map_table(self, db: str, table: str) -> Name:
        """(db, table) at the target. Raises ConfigError."""
        return self.rules.routes.map_table(db, table)

    def map_database(self, db: str) -> str:
        """The database at the target. Raises ConfigError."""
        return self.rules.routes.map_database(db)

    def map_definition(self, table: TableDef) -> TableDef:
        """The definition at the target: its names, and extract columns appended to the row and to unique keys."""
        if not self.rules.routes:
            return table
        if table not in self._known:
            self._known[table] = self._apply_routes(table)
        return self._known[table]

    def _apply_routes(self, table: TableDef) -> TableDef:
        db, name = self.map_table(table.db, table.name)
        columns = [column.column for column in self.rules.routes.extract_columns(table.db, table.name)]
        if (db, name) == (table.db, table.name) and not columns:
            return table
        raw = {**table.raw, "name": {"O": name, "L": fold_name(name)}}
        if columns:
            raw = _add_extract_columns(raw, table, columns)
        return TableDef.from_json(raw, DbInfo(table.db_id, db, "", "", {}))

    def select_replicated(self, tables: Iterable[TableDef]) -> list[TableDef]:
        """Those of `tables` that are replicated."""
        return [table for table in tables if self.rules.keeps(table.db, table.name)]

    def find_common(self, tables: Sequence[TableDef]) -> TableDef | None:
        """The definition that can store the rows of all `tables`, by `shard-mode`, or None."""
        if self.rules.shard_mode != "optimistic" or len(tables) < 2:
            widest = find_widest(tables)
            return fill_for_others(widest, tuple(tables)) if widest is not None and len(tables) > 1 else widest
        try:
            return join_tables(tuple(tables))
        except Conflict:
            return None

    def merge(self, tables: Sequence[TableDef]) -> TableDef:
        """The definition of the target of `tables`: the common one, else (while an operator alters them) the newest.

        Raises SchemaError if a column's name differs in letter case: rows use their table's spelling.
        """
        _require_one_spelling(tables)
        newest = max(tables, key=lambda table: (int(table.raw.get("update_timestamp") or 0), table.id))
        return self.find_common(tables) or newest


class TargetTables:
    """The tables of a schema by the target's name. Implements the base of WindowDefinitions.

    `shown`: the target's definition of source tables whose own definition waits for others, by the source's name in
    lower case (`shardlocks.Locks.list_definitions_at`).
    """

    def __init__(self, state: SchemaState, naming: Naming, shown: Mapping[Name, TableDef] | None = None) -> None:
        self._state = state
        self._naming = naming
        self._sources: dict[Name, dict[int, str]] = {}
        self._databases: dict[int, str] = {}
        self._changed: dict[int, TableDef] = {}
        self._own: dict[int, TableDef] = {}
        if naming.rules.routes:
            self._group(state)
            for name, other in (shown or {}).items():
                table = state.find(*name)
                if table is not None and naming.rules.keeps(table.db, table.name):
                    self._changed[table.id] = as_table(other, table)

    def _group(self, state: SchemaState) -> None:
        """Group the source's tables by target. This reads no definitions: one is read when it is asked for."""
        rules, databases = self._naming.rules, {db.id: db.name for db in state.list_databases()}
        for table_id, db_id, name in state.list_names():
            if rules.keeps(databases[db_id], name):
                self._look_up_sources(databases[db_id], name)[table_id] = databases[db_id]
        self._databases = {key: name for key, name in databases.items() if rules.keeps(name, "")}

    def change(self, before: DdlSide, after: DdlSide) -> None:
        """Follow a DDL that removes and adds these definitions of the source."""
        if not self._naming.rules.routes:
            return
        for table in self._naming.select_replicated(before.tables):
            self._look_up_sources(table.db, table.name).pop(table.id, None)
        for table in self._naming.select_replicated(after.tables):
            self._put(table)
            self._own[table.id] = table
        for database in before.databases:
            self._databases.pop(database.id, None)
        for database in after.databases:
            if self._naming.rules.keeps(database.name, ""):
                self._databases[database.id] = database.name

    def show(self, table: TableDef) -> None:
        """Use this definition, which the target has, for a source table."""
        if self._naming.rules.keeps(table.db, table.name):
            self._put(table)

    def _put(self, table: TableDef) -> None:
        self._look_up_sources(table.db, table.name)[table.id] = table.db
        self._changed[table.id] = table

    def find_source_definition(self, table: TableDef) -> TableDef:
        """The table's definition at the source, whatever `show` has set. Raises KeyError."""
        known = self._own.get(table.id) or self._state.get_table(table.id)
        if known is None:
            raise KeyError(table.id)
        return known

    def list_sources(self, table: TableDef) -> list[TableDef]:
        """All source tables that share the target of `table`, sorted by id."""
        return self._read(self._look_up_sources(table.db, table.name))

    def list_neighbours(self, tables: Iterable[TableDef]) -> dict[int, list[TableDef]]:
        """The `sources` of each of `tables` that is replicated, by its id; empty without routes."""
        replicated = self._naming.select_replicated(tables) if self._naming.rules.routes else []
        return {table.id: self.list_sources(table) for table in replicated}

    def find_sources(self, db: str, table: str) -> list[TableDef]:
        """The source tables that share the target's `db`.`table` (case-insensitive), sorted by id."""
        if not self._naming.rules.routes:
            known = self._state.find(db, table)
            return [known] if known is not None else []
        return self._read(self._sources.get(fold_pair((db, table)), {}))

    def find(self, db: str, table: str) -> TableDef | None:
        """The definition of the target's `db`.`table` (case-insensitive), or None."""
        if not self._naming.rules.routes:
            return self._state.find(db, table)
        sources = self._sources.get(fold_pair((db, table)))
        return self._merge(sources) if sources else None

    def list_names(self) -> list[Name]:
        """(db, table) at the target of every replicated table, sorted."""
        replicated = (
            table for table in self._naming.select_replicated(self._state.list_tables()) if table.kind == "table"
        )
        return sorted({self._naming.map_table(table.db, table.name) for table in replicated})

    def list_tables(self) -> list[TableDef]:
        """The definitions of all replicated targets."""
        if not self._naming.rules.routes:
            return self._naming.select_replicated(self._state.list_tables())
        return [self._merge(sources) for sources in self._sources.values() if sources]

    def list_shared(self) -> list[list[TableDef]]:
        """The source tables of each target that has more than one."""
        return [self._read(sources) for sources in self._sources.values() if len(sources) > 1]

    def is_database_made(self, database: str) -> bool:
        """Whether a CREATE DATABASE of the source creates the target's `database`."""
        target = fold_name(database)
        return any(fold_name(self._naming.map_database(name)) == target for name in self._databases.values())

    def find_source_databases(self, database: str) -> set[str]:
        """The source databases routed into the target's `database`, completely or by a table; in lower case."""
        target = fold_name(database)
        databases = {
            fold_name(n) for n in self._databases.values() if fold_name(self._naming.map_database(n)) == target
        }
        groups = (tables for (db, _), tables in self._sources.items() if db == target)
        return databases | {fold_name(db) for tables in groups for db in tables.values()}

    def _merge(self, sources: Iterable[int]) -> TableDef:
        return self._naming.merge([self._naming.map_definition(source) for source in self._read(sources)])

    def _read(self, sources: Iterable[int]) -> list[TableDef]:
        """The definitions of the source tables of these ids, sorted by id."""
        found = (self._changed.get(key) or self._state.get_table(key) for key in sorted(sources))
        return [table for table in found if table is not None]

    def _look_up_sources(self, db: str, table: str) -> dict[int, str]:
        """By id, the source's database of each table that shares the target of `db`.`table`."""
        return self._sources.setdefault(fold_pair(self._naming.map_table(db, table)), {})


def _require_one_spelling(tables: Sequence[TableDef]) -> None:
    spelled: dict[str, tuple[str, TableDef]] = {}
    for table in tables:
        for column in table.columns:
            name, owner = spelled.setdefault(fold_name(column.name), (column.name, table))
            if name != column.name:
                raise SchemaError(
                    "tables that share a target spell a column differently",
                    where={f"{owner.db}.{owner.name}": name, f"{table.db}.{table.name}": column.name},
                    hint="rename the column in one of the tables at the source, or route the tables to two targets",
                )


def find_widest(tables: Sequence[TableDef]) -> TableDef | None:
    """The one of `tables` that can store the rows of all of them, or None."""
    layouts = [RowLayout(table) for table in tables]
    return next(
        (table for table, mine in zip(tables, layouts, strict=True) if all(mine.holds(each) for each in layouts)), None
    )


class RowLayout:
    """The parts of a definition that matter for rows: columns, unique keys and indexes, without index names."""

    def __init__(self, table: TableDef) -> None:
        self.columns = {
            (c.name, c.tp, c.flag & _FLAGS, c.flen, c.decimal, c.charset, c.collate, c.elems, c.generated_expr)
            for c in table.columns
        }
        self.unique = {tuple((fold_name(c.name), c.length) for c in key.columns) for key in table.list_unique_keys()}
        self.plain = {
            tuple((fold_name(c.name), c.length) for c in index.columns)
            for index in table.indexes
            if not index.unique and index.state == PUBLIC
        }

    def holds(self, other: RowLayout) -> bool:
        """True when every row that fits `other` fits this layout."""
        return self.columns >= other.columns and self.plain >= other.plain and self.unique <= other.unique

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowLayout) and self.holds(other) and other.holds(self)

    __hash__ = None  # type: ignore[assignment]


def rename_database(database: DbInfo, name: str) -> DbInfo:
    """`database` under the target's name."""
    raw = {**database.raw, "db_name": {"O": name, "L": fold_name(name)}}
    return replace(database, name=name, raw=raw)


def _add_extract_columns(raw: dict[str, Any], table: TableDef, names: Sequence[str]) -> dict[str, Any]:
    clashing = [name for name in names if any(fold_name(c.name) == fold_name(name) for c in table.all_columns)]
    if clashing:
        raise ConfigError(
            "an extract column of `routes` has the name of a column of the source",
            where={"table": f"{table.db}.{table.name}", "column": clashing[0]},
            hint="give it another target-column",
        )
    first, top = len(table.all_columns), max((column.id for column in table.all_columns), default=0)
    added = [_build_raw_column(name, first + n, top + 1 + n) for n, name in enumerate(names)]
    columns = [_build_raw_index_column(name, first + n) for n, name in enumerate(names)]
    unique = [json.loads(json.dumps(index)) for index in raw.get("index_info") or ()]
    for index in unique:
        if index["is_unique"]:
            index["idx_cols"] = [*index["idx_cols"], *columns]
    if raw.get("pk_is_handle"):
        unique.append(_build_raw_primary(table, columns))
    cols = [*(raw.get("cols") or ()), *added]
    return {**raw, "cols": cols, "index_info": unique, "pk_is_handle": False, "is_common_handle": False}


def _build_raw_column(name: str, offset: int, column_id: int) -> dict[str, Any]:
    kind = {
        "Tp": t.VARCHAR, "Flag": t.FLAG_NOT_NULL, "Flen": EXTRACT_LENGTH, "Decimal": 0, "Charset": "utf8mb4",
        "Collate": "utf8mb4_bin", "Elems": None,
    }  # fmt: skip
    return {"id": column_id, "name": {"O": name, "L": fold_name(name)}, "offset": offset, "type": kind, "state": PUBLIC}


def _build_raw_index_column(name: str, offset: int) -> dict[str, Any]:
    return {"name": {"O": name, "L": fold_name(name)}, "offset": offset, "length": t.UNSPECIFIED_LENGTH}


def _build_raw_primary(table: TableDef, more: Sequence[dict[str, Any]]) -> dict[str, Any]:
    columns = [
        _build_raw_index_column(column.name, column.offset) for column in table.columns if column.flag & t.FLAG_PRIMARY
    ]
    return {
        "id": 0, "idx_name": {"O": "PRIMARY", "L": "primary"}, "idx_cols": [*columns, *more], "state": PUBLIC,
        "is_unique": True, "is_primary": True,
    }  # fmt: skip


@dataclass(frozen=True)
class ShardTable:
    """A source table, and in words what it `lacks` of its target's shape. `source`: the feeder's source, if any."""

    source: str
    db: str
    table: str
    table_id: int
    lacks: tuple[str, ...]


@dataclass(frozen=True)
class UnlikeShards:
    """The tables that share the target's `db`.`table`. `mergeable` False: no shape can store the rows of all."""

    db: str
    table: str
    mergeable: bool
    shards: tuple[ShardTable, ...]


def find_unlike_shards(tables: TargetTables, naming: Naming) -> list[UnlikeShards]:
    """The targets whose tables differ in shape, by name."""
    unlike = []
    for group in tables.list_shared():
        layouts = {table.id: RowLayout(table) for table in group}
        first = layouts[group[0].id]
        if all(layout == first for layout in layouts.values()):
            continue
        widest = naming.find_common(group)
        shape = [widest] if widest is not None else group
        shards = tuple(
            ShardTable(table.source, table.db, table.name, table.id, tuple(_describe_missing(table, shape)))
            for table in sorted(group, key=lambda table: (table.source, table.db, table.name))
        )
        unlike.append(UnlikeShards(*naming.map_table(group[0].db, group[0].name), widest is not None, shards))
    return sorted(unlike, key=lambda target: (target.db, target.table))


def describe_lacks(tables: Sequence[TableDef]) -> str:
    """What each of `tables` lacks of the others, for a message."""
    named = sorted(tables, key=lambda table: (table.db, table.name))  # the loads' order varies
    lacks = {f"{table.db}.{table.name}": _describe_missing(table, tables) for table in named}
    return "; ".join(f"{name} lacks {', '.join(missing)}" for name, missing in lacks.items() if missing)


def _describe_missing(table: TableDef, shape: Iterable[TableDef]) -> list[str]:
    """What `table` lacks of the tables in `shape`: columns, indexes, and that a unique key will be lost."""
    own, missing = RowLayout(table), dict[str, None]()
    for each in shape:
        layout = RowLayout(each)
        for column in each.columns:
            mine = table.find_column(column.name)
            if mine is None:
                missing[f"column {column.name}"] = None
            elif {c for c in own.columns if c[0] == mine.name} != {c for c in layout.columns if c[0] == column.name}:
                missing[f"definition of column {column.name}"] = None
        missing |= dict.fromkeys(f"index ({_format_names(key)})" for key in sorted(layout.plain - own.plain))
        missing |= dict.fromkeys(f"no unique key ({_format_names(key)})" for key in sorted(own.unique - layout.unique))
    return list(missing)


def _format_names(key: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(name for name, _ in key)
