"""Random rows of `change` for the tests of convert: keyed and keyless tables, NULL values, rows in any order."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pyarrow as pa
from support.tabledefs import col, primary, table

from binlake.ddl.definitions import SegmentTable
from binlake.lake.tables import CHANGE
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

KEYED = table("a", col("id", t.LONGLONG, not_null=True), col("text", t.VARCHAR, flen=90), keys=(primary("id"),))
NAMED = table("ü", col("id", t.VARCHAR, not_null=True, flen=20), col("text", t.VARCHAR, flen=90), keys=(primary("id"),))
KEYLESS = table("b", col("id", t.LONGLONG), col("text", t.VARCHAR, flen=90))
TABLES = {one.name: one for one in (KEYED, NAMED, KEYLESS)}
WINDOW = "1-9"


def changes(draw: Random, count: int, segments: int = 2) -> pa.Table:
    """`count` net changes of the tables above; no two have the same segment, table and key."""
    rows = [_change(draw, number, segments) for number in range(count)]
    draw.shuffle(rows)
    return pa.Table.from_pylist(rows, schema=pa.schema([(f.name, f.type) for f in CHANGE.build_arrow_schema()]))


def _change(draw: Random, number: int, segments: int) -> dict[str, Any]:
    name = draw.choice(list(TABLES))
    keyless = TABLES[name] is KEYLESS
    op = draw.choice(["delete", "insert"] if keyless else ["delete", "replace", "replace"])
    image = [("id", str(number)), ("text", draw.choice([None, "", "it's", "ä😀\\", "x" * draw.randrange(90)]))]
    image = draw.sample(image, 2)
    texts = [value for _, value in sorted(image)] if keyless else [str(number)]
    return {
        "window": WINDOW, "segment": draw.randrange(segments), "db": "d", "table": name,
        "key": json.dumps(texts, ensure_ascii=False), "identity": "row" if keyless else "primary", "op": op,
        "before": image if op == "delete" else draw.choice([None, image]),
        "after": None if op == "delete" else image,
        "copies": draw.randrange(1, 4) if keyless else 1, "first_commit_ts": 2,
        "last_commit_ts": 470583292723200001 + number, "mutations": draw.randrange(1, 9),
    }  # fmt: skip


def definitions(segments: int = 2) -> dict[SegmentTable, TableDef]:
    """The tables' definitions in each of `segments` segments."""
    return {SegmentTable(segment, "d", name): one for segment in range(segments) for name, one in TABLES.items()}
