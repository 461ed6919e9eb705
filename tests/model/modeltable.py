"""Tables of the model: columns of a few kinds, their values, unique keys, rows, and TiDB's form of the definition."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from binlake.common.sql import Dialect
from binlake.dialect.collations import MARIADB_COLLATIONS
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import build_index_json, build_table_json
from binlake.testkit.workload.spec import Col, build_column_json

DB, SRC = "app", "src"
Row = dict[str, str | None]
State = dict[str, list[tuple[str | None, ...]]]
"""Table -> its rows in canonical text, sorted."""

COLLATIONS = ("utf8mb4_bin", "utf8mb4_general_ci", "utf8mb4_unicode_ci", "utf8mb4_0900_ai_ci")
_TEXTS = ("a", "A", "á", "a ", "b", "B", "ß", "ss", "", "c'\\")
VALUES: dict[str, tuple[str, ...]] = {
    "int": ("0", "1", "2", "3", "-1"),
    "unsigned": ("0", "1", "9223372036854775807", "18446744073709551615"),
    "text": _TEXTS,
    "bytes": ("", "00", "61", "41", "FF"),
    "decimal": ("0.00", "1.50", "-1.50", "2.00"),
    "moment": ("2024-01-01 00:00:00", "2024-01-02 00:00:00", "1999-12-31 23:59:59"),
    "float": ("0", "1.1", "-2.5"),
}
KEYS = ("int", "int", "unsigned", "text", "text", "text", "bytes", "decimal", "moment")


@dataclass(frozen=True)
class Field:
    """A column: its id, its kind (of _VALUES), its definition, and the value in older rows."""

    id: int
    kind: str
    col: Col
    origin: str | None = None


@dataclass(frozen=True)
class Key:
    """A unique key by its columns; `length`: characters of the first one, -1 = all."""

    name: str
    columns: tuple[str, ...]
    length: int = -1


@dataclass
class Line:
    """A row: its number in `src`, its values, and the definition that wrote it last."""

    rid: int
    row: Row
    definition: TableDef


@dataclass
class Table:
    """A table upstream."""

    name: str
    id: int
    fields: list[Field]
    primary: tuple[str, ...]
    uniques: list[Key]
    lines: list[Line] = field(default_factory=list)
    definition: TableDef = None  # type: ignore[assignment]

    @property
    def names(self) -> list[str]:
        return [one.col.name for one in self.fields]

    @property
    def keyed(self) -> set[str]:
        """Columns of any key."""
        return {*self.primary, *(name for key in self.uniques for name in key.columns)}

    def forbid_null(self, names: Iterable[str]) -> None:
        """Make these columns NOT NULL."""
        self.fields = [
            Field(one.id, one.kind, changed(one.col, not_null=True)) if one.col.name in names else one
            for one in self.fields
        ]

    def define(self, db: DbInfo) -> None:
        """Rebuild the definition as TiDB would report it: an integer primary key may or may not be the handle."""
        cols = [
            {
                **build_column_json(one.col, one.id, n),
                "origin_default": one.col.default if one.origin is not None else None,
            }
            for n, one in enumerate(self.fields)
        ]
        offsets = {name: n for n, name in enumerate(self.names)}
        kinds = {one.col.name: one.kind for one in self.fields}
        handle = len(self.primary) == 1 and kinds[self.primary[0]] in ("int", "unsigned")
        if handle:
            cols[offsets[self.primary[0]]]["type"]["Flag"] |= t.FLAG_PRIMARY
        indexes = []
        if self.primary and not handle:
            parts = [(name, offsets[name]) for name in self.primary]
            indexes.append(build_index_json(1, "PRIMARY", parts, unique=True, primary=True))
        for key in self.uniques:
            parts = [(name, offsets[name]) for name in key.columns]
            index = build_index_json(1 + int(key.name[1:]), key.name, parts, unique=True, primary=False)
            index["idx_cols"][0]["length"] = key.length
            indexes.append(index)
        info = build_table_json(self.id, self.name, cols, indexes, pk_is_handle=handle)
        info["is_common_handle"] = bool(self.primary) and not handle
        self.definition = TableDef.from_json(info, db)

    def create_sql(self, *, upstream: bool) -> str:
        """CREATE TABLE; `upstream`: with `_rid`, and with TiDB's names of collations."""
        parts = [f"{one.col.sql}{collated(one.col)}" for one in self.fields]
        if self.primary:
            key = Key("own_primary", self.primary)
            parts.append(f"{'UNIQUE KEY own_primary' if upstream else 'PRIMARY KEY'} ({key_parts(key)})")
        parts += [f"UNIQUE KEY `{key.name}` ({key_parts(key)})" for key in self.uniques]
        own = ["_rid BIGINT PRIMARY KEY"] if upstream else []
        return f"CREATE TABLE `{self.name}` ({', '.join([*own, *parts])})"


def random_columns(random: Random, table: Table, first: str) -> tuple[str, ...]:
    """The columns of a key that begins with `first`."""
    more = [one.col.name for one in table.fields if one.col.name != first and one.kind != "float"]
    return (first, *random.sample(more, 1)) if more and random.random() < 0.3 else (first,)


def random_key(random: Random, table: Table, first: str) -> Key:
    """A unique key that begins with `first`, or with another column if that is a float."""
    number = 1 + max((int(key.name[1:]) for key in table.uniques), default=0)
    kinds = {one.col.name: one.kind for one in table.fields}
    if not first or kinds[first] == "float":
        first = next((name for name, kind in kinds.items() if kind != "float"), "")
    columns = random_columns(random, table, first) if first else ()
    prefix = bool(columns) and kinds[first] == "text" and random.random() < 0.2
    return Key(f"u{number}", columns, 1 if prefix else -1)


COLUMNS: dict[str, Callable[[str], Col]] = {
    "int": lambda name: Col(name),
    "unsigned": lambda name: Col(name, t.LONGLONG, 20, unsigned=True),
    "text": lambda name: Col(name, t.VARCHAR, 8, charset="utf8mb4", collate="utf8mb4_bin"),
    "bytes": lambda name: Col(name, t.VARCHAR, 8),
    "decimal": lambda name: Col(name, t.NEWDECIMAL, 6, 2),
    "moment": lambda name: Col(name, t.DATETIME, 19),
    "float": lambda name: Col(name, t.FLOAT, 12, -1),
}


def changed(col: Col, **changes: Any) -> Col:
    return Col(**{**vars(col), **changes})


def collated(col: Col) -> str:
    return f" COLLATE {col.collate}" if col.charset == "utf8mb4" else ""


def canonical(kind: str, default: str | None) -> str | None:
    return "61" if kind == "bytes" and default is not None else default


def collation_names(dialect: Dialect, bytewise: bool) -> dict[str, str]:
    """The collations of a server that acts as the source, by TiDB's names; `bytewise`: it compares by bytes."""
    if bytewise:
        return dict.fromkeys(COLLATIONS, "utf8mb4_nopad_bin" if dialect == "mariadb" else "utf8mb4_0900_bin")
    return {name: MARIADB_COLLATIONS.get(name, name) for name in COLLATIONS} if dialect == "mariadb" else {}


def key_parts(key: Key) -> str:
    first = f"`{key.columns[0]}`" + (f"({key.length})" if key.length > 0 else "")
    return ", ".join([first, *(f"`{name}`" for name in key.columns[1:])])


def shown_rows(cursor: Any, db: str, table: TableDef) -> list[tuple[str | None, ...]]:
    """The rows of a table in canonical text, sorted; read by plain SQL."""
    columns = ", ".join(f"HEX(`{c.name}`)" if c.is_binary else f"CAST(`{c.name}` AS CHAR)" for c in table.columns)
    cursor.execute(f"SELECT {columns} FROM `{db}`.`{table.name}`")
    return sorted((tuple(row) for row in cursor.fetchall()), key=repr)
