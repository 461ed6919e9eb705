"""Read and unread ranges of a key: a random load, interrupted and resumed, is checked key by key."""

from __future__ import annotations

import itertools
import json
from random import Random
from typing import Any

import pytest
from support.examples import seeds
from support.tabledefs import col, key, primary, table

from binlake.mysqlbinlog.tablerows.ranges import Chunk, Chunks, KeyRange, KeyRanges, build_key_formatter, cut_column
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t

KEYS = 12
"""Keys are 1 to 12; a bound is one of them, "" below the first and above the last."""


def keys_of(keys: KeyRange) -> range:
    return range(int(keys.low or 0) + 1, int(keys.high or KEYS) + 1)


def read_by_key(stored: list[tuple[str, str, int]]) -> dict[int, int]:
    """The snapshot of each key; the ranges cover every key once, in order."""
    by_key: dict[int, int] = {}
    assert (stored[0][0], stored[-1][1]) == ("", "")
    for (_, high, _), (low, _, _) in itertools.pairwise(stored):
        assert high == low
    for low, high, snapshot in stored:
        by_key |= {key: snapshot for key in keys_of(KeyRange(low, high)) if key not in by_key}
    return by_key


@pytest.mark.parametrize("seed", seeds(40))
def test_every_key_is_read_once_however_often_reading_restarts(seed: int) -> None:  # S4-24
    draw = Random(seed)
    ranges, read = KeyRanges(), dict.fromkeys(range(1, KEYS + 1), -1)
    for snapshot in range(30):
        claimed: list[KeyRange] = []
        for _ in range(draw.randint(0, 6)):
            if (left := ranges.find_next()) is not None and draw.random() < 0.6:
                keys = keys_of(left)
                bound = draw.choice([str(key) for key in keys if key < KEYS and str(key) != left.high] + [left.high])
                claimed.append(part := ranges.claim(left, bound))
                assert (part.low, part.high) == (left.low, bound)
            elif claimed:
                done = claimed.pop(draw.randrange(len(claimed)))
                ranges.finish(done.low, done.high, snapshot)
                read |= dict.fromkeys(keys_of(done), snapshot)
        assert read_by_key(ranges.store()) == read
        assert ranges.snapshots == sorted({snapshot for snapshot in read.values() if snapshot >= 0})
        assert ranges.is_complete == (min(read.values()) >= 0)
        # Adjacent ranges of one snapshot are merged, so that a large table has few.
        stored = ranges.store()
        assert all(first[2] != other[2] for first, other in itertools.pairwise(stored))
        # The next process continues from what is stored: a range that was being read counts as unread.
        ranges = KeyRanges.of(json.loads(json.dumps(stored)))
        first = ranges.find_next()
        assert (first is None) == ranges.is_complete
        assert first is None or keys_of(first)[0] == min(key for key, snapshot in read.items() if snapshot < 0)


def test_parts_that_are_being_read_are_not_merged() -> None:
    """Each part is finished by its own bounds."""
    ranges = KeyRanges()
    for bound in ("3", "5", ""):
        left = ranges.find_next()
        assert left is not None
        ranges.claim(left, bound)
    assert ranges.find_next() is None
    ranges.finish("3", "5", 0)
    assert ranges.store() == [("", "3", -1), ("3", "5", 0), ("5", "", -1)]
    ranges.finish("", "3", 0)
    ranges.finish("5", "", 0)
    assert ranges.store() == [("", "", 0)]


class FakeLink:
    """A session in which the n-th key of a range is the n-th of `bounds`; "" once there are no more rows."""

    def __init__(self, *bounds: str) -> None:
        self.bounds, self.queries = [*bounds], list[str]()

    def cursor(self) -> Any:
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, query: str, _arguments: object) -> None:
        self.queries.append(query)

    def fetchall(self) -> list[tuple[str]]:
        bound = self.bounds.pop(0)
        return [(bound,)] if bound else []


def take_all(chunks: Chunks, link: Any) -> list[Chunk]:
    return list(iter(lambda: chunks.take(link), None))


def test_ranges_leave_no_gap_and_do_not_overlap() -> None:  # S4-24
    chunks, link = Chunks(("d", "t"), table("t", col("k"), keys=(primary("k"),)), 3), FakeLink("3", "6", "")
    assert chunks.is_cut
    assert chunks.low == ""
    found = [chunks.take(link)]
    assert chunks.low == "3"
    found += take_all(chunks, link)
    assert found == [
        Chunk("", "3", "`k` <= 3"), Chunk("3", "6", "`k` > 3 AND `k` <= 6"), Chunk("6", "", "`k` > 6")
    ]  # fmt: skip
    assert chunks.low == ""
    select = "SELECT CAST(`k` AS CHAR) FROM `d`.`t`"
    assert link.queries == [
        f"{select} ORDER BY `k` LIMIT 2, 1",
        f"{select} WHERE `k` > 3 ORDER BY `k` LIMIT 2, 1",
        f"{select} WHERE `k` > 6 ORDER BY `k` LIMIT 2, 1",
    ]


def test_rest_of_a_range_ends_where_the_range_does() -> None:
    ranges = KeyRanges.of([("", "4", -1), ("4", "", 0)])
    chunks, link = Chunks(("d", "t"), table("t", col("k"), keys=(primary("k"),)), 3, ranges=ranges), FakeLink("2", "")
    assert take_all(chunks, link) == [Chunk("", "2", "`k` <= 2"), Chunk("2", "4", "`k` > 2 AND `k` <= 4")]
    assert link.queries[0].endswith("WHERE `k` <= 4 ORDER BY `k` LIMIT 2, 1")


def test_range_that_another_reader_takes_is_passed_over() -> None:
    chunks = Chunks(("d", "t"), table("t", col("k"), keys=(primary("k"),)), 3)
    chunks.pass_over("5")
    assert chunks.low == "5"
    assert take_all(chunks, FakeLink("")) == [Chunk("5", "", "`k` > 5")]
    chunks.pass_over("9")
    assert chunks.low == ""


def test_table_without_an_ordered_key_is_one_range_unless_its_rows_have_ids() -> None:
    keyless, link = table("t", col("k")), FakeLink("7", "")
    whole = Chunks(("d", "t"), keyless, 3)
    assert not whole.is_cut
    assert take_all(whole, link) == [Chunk("", "", "")]
    assert link.queries == []
    by_id = Chunks(("d", "t"), keyless, 3, "_tidb_rowid")
    assert take_all(by_id, link) == [Chunk("", "7", "_tidb_rowid <= 7"), Chunk("7", "", "_tidb_rowid > 7")]
    assert link.queries[0] == "SELECT _tidb_rowid FROM `d`.`t` ORDER BY _tidb_rowid LIMIT 2, 1"


HANDLE = col("k", not_null=True)
HANDLE["type"]["Flag"] |= t.FLAG_PRIMARY
CUT = {
    "a number": (table("t", col("k"), col("b"), keys=(primary("k", "b"),)), "k"),
    "the handle": (table("t", HANDLE, pk_is_handle=True), "k"),
    "the first of several": (table("t", col("k"), col("b"), keys=(primary("b", "k"),)), "b"),
    "a text": (table("t", col("k", t.VARCHAR), keys=(primary("k"),)), "k"),
    "the beginning of a text": (table("t", col("k", t.VARCHAR), col("b"), keys=(primary(("k", 3), "b"),)), None),
    "a text before a beginning": (table("t", col("k"), col("b", t.BLOB), keys=(primary("k", ("b", 3)),)), "k"),
    "no order in SQL": (table("t", col("k", t.ENUM, elems=("b", "a")), keys=(primary("k"),)), None),
    "only unique": (table("t", col("k", not_null=True), keys=(key("u", "k"),)), None),
}


@pytest.mark.parametrize("name", CUT)
def test_tables_are_cut_by_keys_whose_order_is_that_of_sql(name: str) -> None:
    made, cut_by = CUT[name]
    column = cut_column(made)
    assert (column.name if column else None) == cut_by


@pytest.mark.parametrize(
    ("column", "text", "literal", "shown"),
    [
        (col("k"), "7", "7", "CAST(`k` AS CHAR)"),
        (col("k", t.VARCHAR), "o'", "'o\\''", "CAST(`k` AS CHAR)"),
        (col("k", t.VARCHAR, charset="binary"), "00FF", "X'00FF'", "HEX(`k`)"),
    ],
)
def test_bound_is_a_literal_of_its_type(column: dict[str, Any], text: str, literal: str, shown: str) -> None:
    made: TableDef = table("t", column, keys=(primary("k"),))
    assert build_key_formatter(made.columns[0])(text) == literal
    link = FakeLink(text, "")
    assert take_all(Chunks(("d", "t"), made, 1), link)[0].high == literal
    assert link.queries[0].startswith(f"SELECT {shown} FROM")


def test_ranges_of_all_snapshots_count_as_those_of_the_first() -> None:
    ranges = KeyRanges.of([("", "3", 2), ("3", "5", 1), ("5", "7", -1), ("7", "", 4)])
    ranges.count_as_one()
    assert ranges.store() == [("", "5", 0), ("5", "7", -1), ("7", "", 0)]
