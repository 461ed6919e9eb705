"""Transactions for the decoding benchmark: tables of three shapes, with many rows or one row per transaction."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np

from binlake.rows.codec import MutationBuilder, encode_commit_binlog, encode_prewrite_value
from binlake.rows.codec.lanes import Ints
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.tso import compose

Row = Mapping[str, str | None]
Transactions = list[tuple[int, int, bytes]]
_DISTINCT = 1500
_EPOCH_MS = 1_700_000_000_000


@dataclass
class OneTable:
    """A schema with one table."""

    definition: TableDef

    def find_table(self, table_id: int) -> TableDef | None:
        """Return the definition if `table_id` is its id."""
        return self.definition if table_id == self.definition.id else None

    def find_schemas_at(self, commit_ts: Ints) -> tuple[list[OneTable], Ints]:
        """Return the schema for many commit_ts: always this one."""
        return [self], np.zeros(len(commit_ts), np.int64)

    def is_gone(self, _table_id: int) -> bool:
        """No table is ever dropped here."""
        return False


@dataclass(frozen=True)
class DrawnColumn:
    """A column, and a generator of random values for it."""

    name: str
    tp: int
    flen: int = -1
    decimal: int = -1
    elems: tuple[str, ...] = ()
    charset: str = "utf8mb4"

    def draw_text(self, draw: random.Random) -> str | None:
        """Return a random value as canonical text; 5 % are NULL, except in `id`."""
        return None if self.name != "id" and draw.random() < 0.05 else _TEXTS[self.tp](self, draw)


_TEXTS: dict[int, Any] = {
    t.LONGLONG: lambda _, draw: str(draw.randrange(1 << 40)),
    t.LONG: lambda _, draw: str(draw.randrange(-100_000, 1 << 24)),
    t.VARCHAR: lambda column, draw: "".join(draw.choices("abcdefghij KLMNO", k=column.flen)),
    t.BLOB: lambda column, draw: "".join(draw.choices("abcdefghij KLMNOé中", k=column.flen)),
    t.NEWDECIMAL: lambda _, draw: f"{draw.randrange(-(10**9), 10**9)}.{draw.randrange(100):02d}",
    t.DATETIME: lambda _, draw: (
        f"2024-{draw.randrange(1, 13):02d}-{draw.randrange(1, 29):02d} "
        f"{draw.randrange(24):02d}:{draw.randrange(60):02d}:{draw.randrange(60):02d}"
    ),
    t.DOUBLE: lambda _, draw: repr(draw.randrange(10**6) / 64),
    t.ENUM: lambda column, draw: draw.choice(column.elems),
    t.STRING: lambda column, draw: draw.randbytes(column.flen).hex().upper(),
}

_ID = DrawnColumn("id", t.LONGLONG)
NARROW = [
    _ID,
    DrawnColumn("k", t.LONG),
    DrawnColumn("at", t.DATETIME, decimal=0),
    DrawnColumn("name", t.VARCHAR, flen=20),
]
_KINDS = [
    DrawnColumn("i", t.LONG), DrawnColumn("b", t.LONGLONG), DrawnColumn("d", t.NEWDECIMAL, flen=12, decimal=2),
    DrawnColumn("at", t.DATETIME, decimal=0), DrawnColumn("s", t.VARCHAR, flen=12), DrawnColumn("f", t.DOUBLE),
    DrawnColumn("e", t.ENUM, elems=("new", "paid", "sent")), DrawnColumn("h", t.STRING, flen=8, charset="binary"),
]  # fmt: skip
WIDE = [_ID, *(DrawnColumn(f"{c.name}{n}", c.tp, c.flen, c.decimal, c.elems, c.charset) for n, c in
               zip(range(49), cycle(_KINDS), strict=False))]  # fmt: skip
TEXTS = [_ID, *(DrawnColumn(f"t{n}", t.BLOB, flen=length) for n, length in enumerate((40, 200, 800)))]
SHAPES = {"narrow (4 columns)": NARROW, "wide (50 columns)": WIDE, "text-heavy (1 kB)": TEXTS}


def build_table(columns: list[DrawnColumn]) -> TableDef:
    """Return a table with the clustered integer key `id`, as TiDB describes it."""
    info = {
        "id": 45, "name": {"O": "t"}, "pk_is_handle": True, "charset": "utf8mb4",
        "cols": [_describe_column(n, column) for n, column in enumerate(columns)],
    }  # fmt: skip
    return TableDef.from_json(info, DbInfo(2, "bench", "", "", {}))


def _describe_column(offset: int, column: DrawnColumn) -> dict[str, Any]:
    flag = t.FLAG_PRIMARY | t.FLAG_NOT_NULL if column.name == "id" else 0
    kind = {"Tp": column.tp, "Flag": flag, "Flen": column.flen, "Decimal": column.decimal,
            "Charset": column.charset, "Collate": "", "Elems": column.elems}  # fmt: skip
    return {"id": offset + 1, "name": {"O": column.name}, "offset": offset, "state": 5, "type": kind}


def build_transactions(table: TableDef, columns: list[DrawnColumn], rows: int, in_each: int) -> Transactions:
    """Return `rows` changes, `in_each` per transaction: inserts, updates and deletes at a ratio of 6 : 3 : 1."""
    draw = random.Random(1)
    distinct: list[Row] = [{c.name: c.draw_text(draw) for c in columns} for _ in range(min(_DISTINCT, rows))]
    encoded = [_build_mutation(table, distinct, n, in_each) for n in range(max(1, min(rows, _DISTINCT) // in_each))]
    values = islice(cycle(encoded), max(1, rows // in_each))
    out = []
    for n, value in enumerate(values):
        start = compose(_EPOCH_MS + n, 0)
        out.append((start + 1, start, encode_commit_binlog(start, start + 1, b"k", value)))
    return out


def _build_mutation(table: TableDef, distinct: list[Row], number: int, count: int) -> bytes:
    build = MutationBuilder(table)
    for n, row in islice(_iterate_changes(distinct), number * count, (number + 1) * count):
        if n % 10 < 6:
            build.insert(row)
        elif n % 10 < 9:
            build.update(row, {**distinct[(n + 1) % len(distinct)], "id": row["id"]})
        else:
            build.delete(row)
    return encode_prewrite_value(1, [build.message])


def _iterate_changes(distinct: list[Row]) -> Iterator[tuple[int, Row]]:
    return ((n, distinct[n % len(distinct)]) for n in range(1 << 62))
