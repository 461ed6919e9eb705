"""A table with a column of every type, random rows of it, and how a decoder's values compare with canonical texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from support.tidb_json import INT_PK, column, table_def, table_info

from binlake.feed.formats import DELETE, INSERT, UPDATE, Bodies, Changes, Format
from binlake.rows.codec.datum import format_double, format_float
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.maps import ImageMaps

UNSIGNED, NOT_NULL = t.FLAG_UNSIGNED, t.FLAG_NOT_NULL
COMMIT_TS = 417318403368288260
"""The commit_ts of the protocol page's example (2020-06-12 06:29:32.224)."""
Row = dict[str, str | None]

_SETS = ["", "a", "b", "c,d", "a,b", "a,b,c,d"]
_MEMBERS = ["a", "b", "c,d"]
EVERY: TableDef = table_def(
    table_info(
        1,
        "every",
        [
            column(1, "id", t.LONGLONG, flag=INT_PK),
            column(2, "tiny", t.TINY),
            column(3, "utiny", t.TINY, flag=UNSIGNED),
            column(4, "ushort", t.SHORT, flag=UNSIGNED),
            column(5, "int24", t.INT24, flag=NOT_NULL),
            column(6, "ulong", t.LONG, flag=UNSIGNED),
            column(7, "ubig", t.LONGLONG, flag=UNSIGNED),
            column(8, "dec", t.NEWDECIMAL, flen=20, decimal=4),
            column(9, "f", t.FLOAT),
            column(10, "d", t.DOUBLE, flag=NOT_NULL),
            column(11, "y", t.YEAR, flag=UNSIGNED),
            column(12, "day", t.DATE),
            column(13, "dt", t.DATETIME, decimal=3),
            column(14, "ts", t.TIMESTAMP),
            column(15, "tm", t.DURATION, decimal=6),
            column(16, "e", t.ENUM, elems=_MEMBERS),
            column(17, "s", t.SET, elems=["a", "b", "c", "d"]),
            column(18, "bit", t.BIT, flen=10, flag=UNSIGNED),
            column(19, "j", t.JSON),
            column(20, "c", t.STRING, flen=20, flag=NOT_NULL),
            column(21, 'v"c', t.VARCHAR, flen=20),
            column(22, "vb", t.VARCHAR, flen=20, charset="binary"),
            column(23, "bl", t.BLOB, charset="binary", flag=NOT_NULL),
            column(24, "tx", t.LONGBLOB),
        ],
        pk_is_handle=True,
    )
)
_TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(['"', "\\", "<&>", "\u2028", "\x7f"]),
)
_HEX = st.binary(max_size=12).map(lambda value: value.hex().upper())
_DAYS = st.dates().map(str)
_SECONDS = st.datetimes().map(lambda moment: moment.isoformat(" ", "seconds"))


def _integers(low: int, high: int) -> st.SearchStrategy[str]:
    return st.integers(low, high).map(str)


_VALUES: dict[str, st.SearchStrategy[str]] = {
    "id": _integers(-(1 << 63), (1 << 63) - 1),
    "tiny": _integers(-128, 127),
    "utiny": _integers(0, 255),
    "ushort": _integers(0, 65535),
    "int24": _integers(-(1 << 23), (1 << 23) - 1),
    "ulong": _integers(0, (1 << 32) - 1),
    "ubig": _integers(0, (1 << 64) - 1),
    "dec": st.decimals(-(10**15), 10**15, places=4).map(lambda number: f"{number:f}".replace("-0.0000", "0.0000")),
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda n: format_float(float(np.float32(n)))),
    "d": st.floats(allow_nan=False, allow_infinity=False).map(format_double),
    "y": st.one_of(st.just("0000"), _integers(1901, 2155)),
    "day": st.one_of(_DAYS, st.sampled_from(["0000-00-00", "2024-02-00", "2023-02-31"])),
    "dt": st.one_of(_SECONDS.map(lambda text: f"{text}.120"), st.just("0000-00-00 00:00:00.000")),
    "ts": st.one_of(_SECONDS.filter(lambda text: "1971" < text < "2037"), st.just("0000-00-00 00:00:00")),
    "tm": st.sampled_from(["00:00:00.000000", "-838:59:59.000001", "838:59:59.000000", "-00:00:00.500000"]),
    "e": st.sampled_from(["", *_MEMBERS]),
    "s": st.sampled_from([*_SETS[:3], "a,b", "a,b,c,d", "c,d"]),
    "bit": st.integers(0, 1023).map(lambda number: f"{number:04X}"),
    "j": st.sampled_from(["{}", '{"a": "\\"<"}', "[1, 2.5, null]", '"\\u0001"']),
    "c": _TEXT,
    'v"c': _TEXT,
    "vb": _HEX,
    "bl": _HEX,
    "tx": _TEXT,
}
ROW: st.SearchStrategy[Row] = st.fixed_dictionaries(
    {
        one.name: _VALUES[one.name] if one.not_null or one.name == "id" else st.none() | _VALUES[one.name]
        for one in EVERY.row_columns
    }
)
ROWS = st.lists(ROW, min_size=1, max_size=4)


def columns_of(table: TableDef) -> dict[str, ColumnInfo]:
    """Columns by name."""
    return {column.name: column for column in table.row_columns}


def changes_of(table: TableDef, op: str, old: Sequence[Row], new: Sequence[Row]) -> Changes:
    """Changes of kind `op` from each row of `old` to each row of `new`."""
    images = pa.map_(pa.string(), pa.string())
    count = len(new or old)
    before = [list(row.items()) for row in old] if op != INSERT else [None] * count
    after = [list(row.items()) for row in new] if op != DELETE else [None] * count
    rows = pa.RecordBatch.from_pydict({"commit_ts": pa.array([COMMIT_TS] * count, pa.int64())})
    maps = {"before": ImageMaps(pa.array(before, images)), "after": ImageMaps(pa.array(after, images))}
    return Changes(table, op, rows, maps, np.arange(count))


def encoded(own: Format, op: str, old: Sequence[Row], new: Sequence[Row], table: TableDef = EVERY) -> list[Any]:
    """(key, value) of each message."""
    bodies: Bodies = own.encode(changes_of(table, op, old, new))
    return list(zip(bodies.keys.to_pylist(), bodies.values.to_pylist(), strict=True))


def every_kind(rows: list[Row]) -> list[tuple[str, list[Row], list[Row]]]:
    """`rows` inserted, updated to one another, and deleted: kind, rows before, rows after."""
    turned = [*rows[1:], *rows[:1]]
    return [(INSERT, [], rows), (UPDATE, turned, rows), (DELETE, rows, [])]


def member_text(column: ColumnInfo, number: int) -> str:
    """The text of the members that an ENUM's or SET's number stands for."""
    if column.tp == t.ENUM:
        return column.elems[number - 1] if number else ""
    return ",".join(member for place, member in enumerate(column.elems) if number >> place & 1)


def number_text(column: ColumnInfo, number: float | str) -> str:
    """A FLOAT or DOUBLE in the form that `mutation` stores."""
    return format_float(float(np.float32(number))) if column.tp == t.FLOAT else format_double(float(number))


def bit_text(column: ColumnInfo, number: int) -> str:
    """A BIT in the form that `mutation` stores."""
    return f"{number:0{(column.flen + 7) // 8 * 2}X}"
