"""Tables of the DDL model as one schema version shows them, their TableInfo, and their rows by column id."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from ddltypes import TIMESTAMP, TIMESTAMP6, Type

from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import build_index_json, build_name_json, build_table_json
from binlake.testkit.workload.spec import Col, build_column_json

Stored = dict[int, str | None]
"""Column id -> canonical text."""


@dataclass(frozen=True)
class Column:
    """`default`, `origin`: as TiDB stores them, a TIMESTAMP at +00:00; `literal`: the default in the statement."""

    id: int
    name: str
    type: Type
    not_null: bool = False
    default: str | None = None
    origin: str | None = None
    literal: str = ""

    @property
    def sql(self) -> str:
        """The column's part of a statement, in TiDB's own form (`Restore`)."""
        null = " NOT NULL" if self.not_null else " NULL" if self.type in (TIMESTAMP, TIMESTAMP6) else ""
        return f"`{self.name}` {self.type.sql}{null}{f' DEFAULT {self.literal}' if self.literal else ''}"

    def json(self, offset: int, primary: bool) -> dict[str, Any]:
        """Its element of TableInfo.cols."""
        kind = self.type
        col = Col(self.name, kind.tp, kind.flen, kind.decimal, self.not_null, False, kind.charset, kind.collate,
                  self.default, kind.elems)  # fmt: skip
        found = {**build_column_json(col, self.id, offset), "origin_default": self.origin}
        found["type"]["Flag"] |= primary * t.FLAG_PRIMARY
        return found


@dataclass(frozen=True)
class Key:
    """An index by the ids of its columns; `enforced`: writers see it as a unique one."""

    id: int
    name: str
    columns: tuple[int, ...]
    unique: bool
    primary: bool = False
    enforced: bool = True


@dataclass(frozen=True)
class Part:
    """A range partition: values of the table's column below `bound` (None: MAXVALUE), in a statement `literal`."""

    id: int
    name: str
    bound: int | None
    literal: str


@dataclass(frozen=True)
class View:
    """A table as writers of one schema version see it. `parted`: the column of its ranges; `moments`: its ranges are by
    time.

    `only`: for a plain table that is to be exchanged, the id of the partition of `parts` to which its rows must belong.
    `twice`: ids of partitions that a DDL rearranges: a write to them also goes to the other set of partitions and is
    logged for both; `leaving`: only rows that leave them do.
    """

    db: DbInfo
    name: str
    id: int
    columns: tuple[Column, ...]
    keys: tuple[Key, ...] = ()
    parts: tuple[Part, ...] = ()
    parted: int = 0
    moments: bool = False
    only: int = 0
    twice: frozenset[int] = frozenset()
    leaving: bool = False

    @property
    def full_name(self) -> tuple[str, str]:
        return self.db.name, self.name

    @property
    def primary(self) -> Key | None:
        return next((key for key in self.keys if key.primary), None)

    @property
    def keyed(self) -> set[int]:
        """Ids of the columns of any key, and of the partitions' ranges."""
        return {self.parted, *(column for key in self.keys for column in key.columns)}

    def column(self, column_id: int) -> Column:
        return next(column for column in self.columns if column.id == column_id)

    def with_column(self, new: Column) -> View:
        """The view with `new` replacing the column with the same id."""
        return replace(self, columns=tuple(new if old.id == new.id else old for old in self.columns))

    def without_column(self, column_id: int) -> View:
        return replace(self, columns=tuple(column for column in self.columns if column.id != column_id))

    def names(self, key: Key) -> str:
        """The columns of `key` for a statement."""
        return ", ".join(f"`{self.column(column).name}`" for column in key.columns)

    def create_sql(self) -> str:
        """The part of the statement after `CREATE TABLE name`."""
        parts = [column.sql for column in self.columns]
        for key in self.keys:
            kind = "PRIMARY KEY" if key.primary else f"UNIQUE `{key.name}`" if key.unique else f"INDEX `{key.name}`"
            parts.append(f"{kind}({self.names(key)})")
        return f"({', '.join(parts)}){self._partition_sql()}"

    def _partition_sql(self) -> str:
        if not self.parts or self.only:
            return ""
        name = f"`{self.column(self.parted).name}`"
        by = f"UNIX_TIMESTAMP({name})" if self.moments else name
        return f" PARTITION BY RANGE ({by}) ({', '.join(part_sql(part) for part in self.parts)})"

    @property
    def definition(self) -> TableDef:
        return _definition(self)

    def part_of(self, stored: Stored, seconds: int | None) -> int | None:
        """The id of the partition that takes a row, None without one; `seconds`: its TIMESTAMP since 1970."""
        value = seconds if self.moments else int(stored[self.parted] or -(10**9))
        value = -1 if value is None else value  # NULL goes into the lowest one
        return next((part.id for part in self.parts if part.bound is None or value < part.bound), None)


def part_sql(part: Part) -> str:
    """`PARTITION name VALUES LESS THAN ...`."""
    return f"PARTITION `{part.name}` VALUES LESS THAN {part.literal if part.bound is None else f'({part.literal})'}"


@lru_cache(maxsize=512)
def _definition(view: View) -> TableDef:
    primary = view.primary
    handle = primary is not None and len(primary.columns) == 1
    mine = primary.columns if primary else ()
    cols = [column.json(n, handle and column.id in mine) for n, column in enumerate(view.columns)]
    offsets = {column.id: n for n, column in enumerate(view.columns)}
    indexes = [
        build_index_json(key.id, key.name, [(view.column(c).name, offsets[c]) for c in key.columns], unique=key.unique,
                        primary=key.primary)
        for key in view.keys if not (key.primary and handle)
    ]  # fmt: skip
    info = build_table_json(view.id, view.name, cols, indexes, pk_is_handle=handle)
    info["is_common_handle"] = primary is not None and not handle
    if view.parts and not view.only:
        name = f"`{view.column(view.parted).name}`"
        info["partition"] = {
            "type": 1, "expr": f"unix_timestamp({name})" if view.moments else name, "columns": None, "enable": True,
            "definitions": [
                {"id": part.id, "name": build_name_json(part.name), "in_values": None,
                 "less_than": ["MAXVALUE" if part.bound is None else str(part.bound)]}
                for part in view.parts
            ], "num": len(view.parts),
        }  # fmt: skip
    return TableDef.from_json(info, view.db)


@dataclass
class Line:
    """A row as stored: its values, the view that wrote it last, and its partition."""

    rid: int
    stored: Stored
    written: View
    part: int | None = None

    def read(self, view: View) -> Stored:
        """The row as `view` shows it: a missing column has the value that ADD COLUMN noted."""
        return {column.id: self.stored.get(column.id, column.origin) for column in view.columns}


@dataclass(eq=False)
class Live:
    """A table that exists: its present view for writers, and its rows."""

    view: View
    lines: list[Line] = field(default_factory=list)
