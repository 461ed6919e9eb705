"""Source tables that share a target but differ in shape: shows what each one lacks until all have the DDL.

Rule: the target has the shape that can store the rows of all of them (`Naming.find_common`). If no such shape exists,
their next DDL stops the window.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlake.ddl.targets import Naming, RowLayout, TargetTables
from binlake.rows.schema import TableDef


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
