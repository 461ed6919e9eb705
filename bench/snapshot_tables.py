"""The tables of bench_snapshot.py: their definitions, rows that the source's server generates itself, and checks.

A narrow row has four numbers, a usual one sysbench's columns (about 190 bytes), a wide one 40 columns of nine types
(about 900 bytes). Values follow from the row's number, so two servers with the same rows have the same sums.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pymysql.cursors import SSCursor

from deploy.local.mariadb import MariaDb

DB = "loads"
_STATEMENT_ROWS, _STATEMENT_BYTES = 1000, 1 << 20
_LENGTH = struct.Struct(">I")


@dataclass(frozen=True)
class LoadColumn:
    """A column: its name, its type, and an expression over the row's number `seq`."""

    name: str
    type: str
    value: str


_TEXT = "MD5(seq * {n}), MD5(seq + {n}), MD5(seq * {n} + 1), MD5(seq + {n} * 2)"
_KEY = LoadColumn("id", "BIGINT PRIMARY KEY", "seq")
_WIDE = (
    ("INT", "seq % 1000003 + {n}"),
    ("DECIMAL(12,3)", "(seq * {n}) % 1000000 / 1000"),
    ("DATETIME(6)", "TIMESTAMP('2020-01-01') + INTERVAL (seq * 37 + {n}) % 100000000 SECOND"),
    ("VARCHAR(60)", "LEFT(CONCAT(MD5(seq * {n}), MD5(seq + {n})), 20 + seq % 40)"),
    ("DOUBLE", "(seq * {n}) / 7"),
    ("DATE", "DATE('2000-01-01') + INTERVAL (seq + {n}) % 9000 DAY"),
    ("VARBINARY(40)", "UNHEX(MD5(seq + {n}))"),
    ("BIGINT", "IF(seq % 5 = 0, NULL, seq * 1000 * {n})"),
)
_TIMES_WIDE = 5
SHAPES: dict[str, tuple[LoadColumn, ...]] = {
    "narrow": (_KEY, LoadColumn("k", "INT", "seq % 1000003"), LoadColumn("a", "BIGINT", "seq * 31"),
               LoadColumn("b", "INT", "seq % 97")),
    "usual": (_KEY, LoadColumn("k", "INT", "seq % 1000003"),
              LoadColumn("c", "VARCHAR(120)", f"LEFT(CONCAT({_TEXT.format(n=7)}), 120)"),
              LoadColumn("pad", "VARCHAR(60)", f"LEFT(CONCAT({_TEXT.format(n=11)}), 60)")),
    "wide": (_KEY, *(LoadColumn(f"c{turn}_{at}", type_, value.format(n=7 * turn + at + 2))
                     for turn in range(_TIMES_WIDE) for at, (type_, value) in enumerate(_WIDE))),
}  # fmt: skip


@dataclass(frozen=True)
class Tables:
    """`count` tables of one shape with `rows` rows together."""

    shape: str
    rows: int
    count: int

    @property
    def columns(self) -> tuple[LoadColumn, ...]:
        """The columns of each table."""
        return SHAPES[self.shape]

    @property
    def names(self) -> list[str]:
        """The names of the tables."""
        return [f"t{number}" for number in range(self.count)]

    def create(self, server: MariaDb) -> None:
        """Create the empty tables."""
        lines = ", ".join(f"{column.name} {column.type}" for column in self.columns)
        _execute(server, f"CREATE DATABASE {DB}", *(f"CREATE TABLE {DB}.{name} ({lines})" for name in self.names))

    def fill(self, server: MariaDb) -> None:
        """Let the server generate the rows, without waiting for its disk."""
        values, share = ", ".join(column.value for column in self.columns), self.rows // self.count
        counts = [share] * (self.count - 1) + [self.rows - share * (self.count - 1)]
        _execute(
            server,
            "SET GLOBAL sync_binlog = 0, innodb_flush_log_at_trx_commit = 0",
            "SET SESSION sql_log_bin = 0",
            *(
                f"INSERT INTO {DB}.{name} SELECT {values} FROM {DB}.seq_1_to_{count}"
                for name, count in zip(self.names, counts, strict=True)
            ),
            *(f"ANALYZE TABLE {DB}.{name}" for name in self.names),
        )

    def find_differences(self, source: MariaDb, target: MariaDb) -> list[str]:
        """A line for each table that does not have the same rows at the target."""
        sums = ", ".join(f"BIT_XOR(CRC32(CONCAT(id, '-', IFNULL({one.name}, 'x'))))" for one in self.columns)
        lines = []
        for name in self.names:
            wanted, found = (
                _fetch_row(server, f"SELECT COUNT(*), {sums} FROM {DB}.{name}") for server in (source, target)
            )
            if wanted != found:
                lines.append(f"{name}: {found[0]} rows instead of {wanted[0]}, or other values")
        return lines

    def write_statements(self, source: MariaDb, file: Path) -> None:
        """Write the rows as multi-row REPLACE statements into `file`, each behind its length (`read_statements`)."""
        names = ",".join(f"`{column.name}`" for column in self.columns)
        texts = ", ',', ".join(f"QUOTE({column.name})" for column in self.columns)
        with file.open("wb") as out, source.connect() as connection, connection.cursor(SSCursor) as cursor:
            for table in self.names:
                head = f"REPLACE INTO `{DB}`.`{table}` ({names}) VALUES ".encode()
                cursor.execute(f"SELECT CAST(CONCAT('(', {texts}, ')') AS BINARY) FROM {DB}.{table} ORDER BY id")
                for rows in _group(row for (row,) in iter(cursor.fetchone, None)):
                    statement = head + b",".join(rows)
                    out.write(_LENGTH.pack(len(statement)) + statement)


def read_statements(file: BinaryIO) -> Iterator[bytes]:
    """The statements of `Tables.write_statements`, one at a time."""
    while length := file.read(_LENGTH.size):
        yield file.read(_LENGTH.unpack(length)[0])


def _group(rows: Iterator[bytes]) -> Iterator[list[bytes]]:
    group, size = list[bytes](), 0
    for row in rows:
        group.append(row)
        size += len(row)
        if len(group) == _STATEMENT_ROWS or size >= _STATEMENT_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _execute(server: MariaDb, *statements: str) -> None:
    with server.connect() as connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def _fetch_row(server: MariaDb, query: str) -> tuple[object, ...]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(query)
        return tuple(cursor.fetchone() or ())
