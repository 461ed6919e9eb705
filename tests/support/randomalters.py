"""Random tables, ALTER statements of many clauses, and row changes, as a source's session may send them.

The server accepts most of the statements; refused ones are not logged. Each statement is based on the table's current
structure, which is read from the server first.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pymysql
from support.mariadb import MariaDb

from binlake.statements.literal import quote_name

NAMES = ("a", "b", "c", "d", "Key", "select", "ä ö", "x`y")
KINDS = (
    "TINYINT", "SMALLINT UNSIGNED", "INT", "BIGINT UNSIGNED", "DECIMAL(9,2)", "DOUBLE", "BIT(5)", "YEAR", "DATE",
    "DATETIME", "DATETIME(3)", "TIME(2)", "TIMESTAMP NULL", "CHAR(5)", "VARCHAR(12)", "VARCHAR(300)", "TEXT", "BLOB",
    "BINARY(3)", "VARBINARY(9)", "ENUM('x','y','0')", "SET('x','y','z')", "TINYTEXT",
)  # fmt: skip
TEXTS = ("CHAR(5)", "VARCHAR(12)", "VARCHAR(300)", "TEXT", "TINYTEXT", "ENUM('x','y','0')", "SET('x','y','z')")
CHARSETS = ("latin1", "utf8mb3", "utf8mb4", "gbk", "latin1 COLLATE latin1_bin", "utf8mb4 COLLATE utf8mb4_unicode_ci")
VALUES = (
    "NULL", "DEFAULT", "0", "1", "-1", "7", "127", "3.5", "65536", "''", "'x'", "'y'", "'abc'", "'Ä'", "'12'",
    "'2020-02-29 13:14:15.678'", "'2021-12-31'", "'10:11:12.34'", "X'00FF'", "2001",
)  # fmt: skip
DEFAULTS = ("NULL", "'0'", "'7'", "'2020'", "'x'", "'2020-03-04'", "''")
TABLES = ("t0", "T_one")

Clauses = list[str]


@dataclass(frozen=True)
class Columns:
    """Names of a table's columns: `plain` ones, `generated` ones, and plain ones that may be `replaced`."""

    plain: tuple[str, ...]
    generated: tuple[str, ...]
    replaced: tuple[str, ...]


class RandomAlters:
    """Random statements on `TABLES` in `db`, the current database of `link`; `ran`: those that the server accepted."""

    def __init__(self, seed: int, link: pymysql.connections.Connection[Any], family: str, db: str = "shop") -> None:
        self._draw, self._link, self._family, self._db = random.Random(seed), link, family, db
        self.ran: list[str] = []
        self._run("SET SESSION sql_mode = '', time_zone = '+00:00'")

    def step(self) -> None:
        """Run the next statements."""
        draw, table = self._draw, self._draw.choice(TABLES)
        columns = self._columns(table)
        if not columns.plain:
            self._run(self._create(table))
        elif draw.random() < 0.45:
            self._alter(table, columns)
        elif draw.random() < 0.03:
            self._run(draw.choice([f"TRUNCATE {table}", f"DROP TABLE {table}"]))
        else:
            for _ in range(draw.randint(1, 3)):
                self._run(self._change(table, columns))

    def _run(self, text: str) -> None:
        try:
            with self._link.cursor() as cursor:
                cursor.execute(text)
            self.ran.append(text)
        except pymysql.err.Error:
            pass

    def _columns(self, table: str) -> Columns:
        with self._link.cursor() as cursor:
            cursor.execute(
                "SELECT column_name, extra, coalesce(generation_expression, '') FROM information_schema.columns"
                " WHERE table_schema = DATABASE() AND table_name = %s ORDER BY ordinal_position",
                (table,),
            )
            columns = [(str(name), str(extra).upper(), str(text).lower()) for name, extra, text in cursor]
        plain, generated = (
            tuple(name for name, extra, _ in columns if ("GENERATED" in extra.replace("DEFAULT_", "")) is wanted)
            for wanted in (False, True)
        )
        # If another column takes over a name, MariaDB keeps a stored generated column's values from the former column,
        # but then logs values that it does not store (test_logged_forms.py). MySQL refuses such an ALTER.
        stored = "".join(text for _, extra, text in columns if "STORED" in extra)
        return Columns(
            plain, generated, tuple(name for name in plain if name != "id" and quote_name(name).lower() not in stored)
        )

    # Tables.

    def _create(self, table: str) -> str:
        draw = self._draw
        names = draw.sample(NAMES, draw.randint(2, 5))
        parts = ["id INT NOT NULL", *(f"{quote_name(name)} {self._definition()}" for name in names)]
        key = draw.choice(["id", "id", "", f"{quote_name(names[0])}, id"])
        parts += [f"PRIMARY KEY ({key})"] if key else []
        if draw.random() < 0.3:
            parts.append(f"g {self._generated(('id', *names))}")
        return f"CREATE TABLE {table} ({', '.join(parts)}) CHARACTER SET {draw.choice(CHARSETS)}"

    def _definition(self) -> str:
        draw, kind = self._draw, self._draw.choice(KINDS)
        charset = f" CHARACTER SET {draw.choice(CHARSETS)}" if kind in TEXTS and draw.random() < 0.4 else ""
        null = "" if kind.endswith("NULL") else draw.choice(["", "", " NOT NULL", " NULL"])
        has_default = draw.random() < 0.4 and kind not in ("TEXT", "BLOB", "TINYTEXT")
        default = f" DEFAULT {draw.choice(DEFAULTS)}" if has_default else ""
        if kind in ("DATETIME", "TIMESTAMP NULL") and draw.random() < 0.3:
            default = " DEFAULT CURRENT_TIMESTAMP" + draw.choice(["", " ON UPDATE CURRENT_TIMESTAMP"])
        return f"{kind}{charset}{null}{default}{draw.choice(['', '', ' COMMENT ' + chr(39) + 'AFTER x, y' + chr(39)])}"

    def _generated(self, names: Sequence[str]) -> str:
        name = quote_name(self._draw.choice(names))
        what = self._draw.choice([
            f"VARCHAR(700) AS (HEX({name}))", f"TINYINT GENERATED ALWAYS AS ({name} IS NULL)",
            "CHAR(4) AS (LEFT(HEX(id), 4))",
        ])  # fmt: skip
        return f"{what} {self._draw.choice(['VIRTUAL', 'STORED'])}"

    # Clauses of an ALTER.

    def _alter(self, table: str, columns: Columns) -> None:
        draws: Sequence[Callable[[Columns], Clauses]] = (
            self._add, self._add, self._add_list, self._drop, self._drop, self._replace_column, self._change_column,
            self._change_column, self._swap, self._modify, self._modify, self._rename, self._set_default, self._charset,
            self._key, self._add_generated, self._index,
        )  # fmt: skip
        clauses = [
            clause for _ in range(self._draw.choice([1, 1, 1, 2, 2, 3])) for clause in self._draw.choice(draws)(columns)
        ]
        head = self._draw.choice(["ALTER TABLE", "alter /* , */ table", "ALTER TABLE"])
        self._run(f"{head} {self._draw.choice(['', self._db + '.'])}{table} {', '.join(clauses)}")

    def _any_case(self, names: Sequence[str]) -> str:
        """A column's name in the letter cases that a person may use."""
        name = self._draw.choice(names)
        return quote_name(self._draw.choice([name, name, name.upper(), name.lower()]))

    def _new(self, columns: Columns) -> str:
        free = [name for name in NAMES if name not in columns.plain]
        return quote_name(self._draw.choice(free or NAMES))

    def _place(self, columns: Columns) -> str:
        return self._draw.choice(["", "", " FIRST", f" AFTER {self._any_case((*columns.plain, *columns.generated))}"])

    def _exists(self, words: str) -> str:
        return words if self._family == "mariadb" and self._draw.random() < 0.2 else ""

    def _add(self, columns: Columns) -> Clauses:
        name = self._new(columns) if self._draw.random() < 0.8 else self._any_case(columns.plain)
        word = self._draw.choice(["ADD ", "ADD COLUMN "])
        return [f"{word}{self._exists('IF NOT EXISTS ')}{name} {self._definition()}{self._place(columns)}"]

    def _add_list(self, columns: Columns) -> Clauses:
        first, second = (f"{self._new(columns)} {self._definition()}" for _ in range(2))
        key = self._draw.choice(["", ", KEY (id)"])
        return [f"ADD {self._draw.choice(['', 'COLUMN '])}{self._exists('IF NOT EXISTS ')}({first}, {second}{key})"]

    def _drop(self, columns: Columns) -> Clauses:
        gone = (*columns.replaced, *columns.generated)
        word = self._draw.choice(["DROP ", "DROP COLUMN "]) + self._exists("IF EXISTS ")
        return [f"{word}{self._any_case(gone or NAMES)}"]

    def _replace_column(self, columns: Columns) -> Clauses:
        """Drop a column, and add another one with its name."""
        name = self._any_case(columns.replaced or NAMES)
        added = f"{name} {self._definition()}"
        return [f"DROP {name}", self._draw.choice([f"ADD {added}{self._place(columns)}", f"ADD ({added})"])]

    def _change_column(self, columns: Columns) -> Clauses:
        former, new = self._any_case(columns.plain), self._new(columns)
        new = self._draw.choice([new, new, former])
        kind = self._draw.choice([self._definition(), self._definition(), "INT NOT NULL"])
        return [f"CHANGE {self._draw.choice(['', 'COLUMN '])}{former} {new} {kind}{self._place(columns)}"]

    def _swap(self, columns: Columns) -> Clauses:
        if len(columns.plain) < 3:
            return self._modify(columns)
        first, second = map(quote_name, self._draw.sample(columns.plain, 2))
        if self._draw.random() < 0.5:
            return [f"RENAME COLUMN {first} TO {second}", f"RENAME COLUMN {second} TO {first}"]
        return [f"CHANGE {first} {second} {self._definition()}", f"CHANGE {second} {first} {self._definition()}"]

    def _modify(self, columns: Columns) -> Clauses:
        name = self._any_case([name for name in columns.plain if name != "id"] or columns.plain)
        word = "MODIFY " + self._draw.choice(["", "COLUMN "]) + self._exists("IF EXISTS ")
        return [f"{word}{name} {self._definition()}{self._place(columns)}"]

    def _rename(self, columns: Columns) -> Clauses:
        former = self._any_case([name for name in columns.plain if name != "id"] or columns.plain)
        clauses = [f"RENAME COLUMN {former} TO {self._new(columns)}"]
        return [*clauses, f"ADD {former} {self._definition()}"] if self._draw.random() < 0.3 else clauses

    def _set_default(self, columns: Columns) -> Clauses:
        what = self._draw.choice([f"SET DEFAULT {self._draw.choice(DEFAULTS)}", "DROP DEFAULT"])
        return [f"ALTER {self._draw.choice(['', 'COLUMN '])}{self._any_case(columns.plain)} {what}"]

    def _charset(self, _columns: Columns) -> Clauses:
        charset = self._draw.choice(CHARSETS)
        return [self._draw.choice([f"CONVERT TO CHARACTER SET {charset}", f"DEFAULT CHARACTER SET {charset}"])]

    def _key(self, columns: Columns) -> Clauses:
        parts = self._draw.choice(["id", f"id, {self._any_case(columns.plain)}", self._any_case(columns.plain)])
        return self._draw.choice([
            ["DROP PRIMARY KEY"], [f"ADD PRIMARY KEY ({parts})"], ["DROP PRIMARY KEY", f"ADD PRIMARY KEY ({parts})"],
        ])  # fmt: skip

    def _add_generated(self, columns: Columns) -> Clauses:
        name = quote_name(self._draw.choice(["g", "h"]))
        word = "MODIFY" if self._draw.random() < 0.2 else "ADD"
        return [f"{word} {name} {self._generated(columns.plain)}{self._place(columns)}"]

    def _index(self, columns: Columns) -> Clauses:
        name = self._any_case(columns.plain)
        return [
            self._draw.choice(
                [f"ADD INDEX ({name})", f"ADD UNIQUE u1 (id, {name})", "DROP INDEX u1", "ENGINE = InnoDB"]
            )
        ]

    # Rows.

    def _change(self, table: str, columns: Columns) -> str:
        draw, key = self._draw, self._draw.randrange(20)
        names = [name for name in columns.plain if name != "id"]
        if draw.random() < 0.5:
            some = draw.sample(names, draw.randint(0, len(names)))
            listed = ", ".join(["id", *map(quote_name, some)])
            rows = ", ".join(
                f"({', '.join([str(key + n), *(draw.choice(VALUES) for _ in some)])})"
                for n in range(draw.randint(1, 4))
            )
            return f"{draw.choice(['INSERT IGNORE', 'REPLACE'])} INTO {table} ({listed}) VALUES {rows}"
        where = draw.choice([f"id = {key}", f"id < {key}", f"id > {key} LIMIT 2"])
        if draw.random() < 0.3 or not names:
            return f"DELETE FROM {table} WHERE {where}"
        puts = ", ".join(
            f"{quote_name(name)} = {draw.choice(VALUES)}" for name in draw.sample(names, min(2, len(names)))
        )
        return f"UPDATE IGNORE {table} SET {puts} WHERE {where}"


def run_random_alters(server: MariaDb, seed: int, steps: int) -> list[str]:
    """Run random statements in the database `shop` of `server`; returns those that it accepted."""
    with server.connect() as link:
        link.select_db("shop")
        drawn = RandomAlters(seed, link, server.name)
        for _ in range(steps):
            drawn.step()
    return drawn.ran
