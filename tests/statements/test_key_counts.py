"""Queries that count the keys of a batch, by a list or by ranges: the count is full only if every key exists."""

from __future__ import annotations

import re
from random import Random

import pyarrow as pa
import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, primary, table

from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.conditions import KeyCounts

NUMBERED = table("numbered", col("id", t.LONGLONG, not_null=True), keys=(primary("id"),))
UNSIGNED = table("numbered", col("id", t.LONGLONG, not_null=True, unsigned=True), keys=(primary("id"),))
PAIRED = table("p", col("a", t.LONG, not_null=True), col("b", t.LONG, not_null=True), keys=(primary("a", "b"),))
NAMED = table("n", col("k", t.VARCHAR, not_null=True, flen=9), keys=(primary("k"),))
LOW, HIGH = -(1 << 63), (1 << 63) - 1


def condition(table_def: TableDef, *columns: list[str], alike: bool = True) -> str:
    counts = KeyCounts(
        table_def, [pa.array(column, pa.large_string()) for column in columns], dialect="mariadb", alike=alike
    )
    return counts.format_query(0, len(columns[0])).partition(" WHERE ")[2]


def texts(*numbers: int) -> list[str]:
    return [str(number) for number in numbers]


def test_consecutive_numbers_are_counted_by_ranges() -> None:
    numbers = texts(*range(100, 110), 7, *range(-3, 3))
    found = "`id` BETWEEN -3 AND 2 OR `id` BETWEEN 7 AND 7 OR `id` BETWEEN 100 AND 109"
    # The ranges have at most as many bytes as the list, because batches were cut by the size of the list.
    assert condition(NUMBERED, numbers) == f"`id` IN ({','.join(numbers)})"
    many = texts(*range(100, 200), 7, *range(-3, 3))
    assert condition(NUMBERED, many) == found.replace("109", "199")
    assert condition(NUMBERED, list(reversed(many))) == found.replace("109", "199")
    ends = texts(LOW, LOW + 1, *range(50), HIGH - 1, HIGH)
    ranges = [(LOW, LOW + 1), (0, 49), (HIGH - 1, HIGH)]
    assert condition(NUMBERED, ends) == " OR ".join(f"`id` BETWEEN {low} AND {high}" for low, high in ranges)


@pytest.mark.parametrize(
    ("table_def", "columns", "alike"),
    [
        (NUMBERED, [texts(*range(1000))], False),
        (NUMBERED, [texts(*range(0, 2000, 2))], True),
        (NUMBERED, [["1"]], True),
        (UNSIGNED, [texts(*range(HIGH - 50, HIGH + 50))], True),
        (PAIRED, [texts(*range(1000)), texts(*range(1000))], True),
        (NAMED, [texts(*range(1000))], True),
    ],
    ids=["another type is accepted", "gaps", "one", "beyond 63 bits", "two columns", "texts"],
)
def test_other_keys_are_counted_by_a_list(table_def: TableDef, columns: list[list[str]], alike: bool) -> None:
    found = condition(table_def, *columns, alike=alike)
    assert " IN (" in found
    assert "BETWEEN" not in found
    assert len(re.findall(r"\d+", found.split(" AND BINARY ")[0])) >= len(columns[0])


@pytest.mark.mariadb
def test_count_is_full_only_if_every_key_exists(empty_server: MariaDb) -> None:
    execute(empty_server, "CREATE DATABASE d", "CREATE TABLE d.numbered (id BIGINT PRIMARY KEY)")
    ranged = 0
    for seed in range(30):
        draw = Random(seed)
        start, there = draw.choice([LOW, -20, 0, 10**12, HIGH - 400]), set[int]()
        while len(there) < 300:
            begin = draw.randrange(start, start + 400)
            there |= set(range(begin, min(begin + draw.choice([1, 5, 60]), start + 401)))
        keys = draw.sample(sorted(there), draw.choice([40, 250, len(there)]))
        missing = set(draw.sample(keys, draw.choice([0, 1, 3])))
        execute(
            empty_server,
            "TRUNCATE d.numbered",
            f"INSERT INTO d.numbered VALUES {','.join(f'({number})' for number in sorted(there - missing))}",
        )
        counts = KeyCounts(NUMBERED, [pa.array(texts(*keys), pa.large_string())], dialect="mariadb", alike=True)
        sql = counts.format_query(0, len(keys))
        ranged += "BETWEEN" in sql
        assert len(sql) <= len("SELECT COUNT(*) FROM `d`.`numbered` WHERE `id` IN ()") + int(counts.sizes.sum())
        assert rows(empty_server, sql) == [(len(keys) - len(missing),)], seed
    assert 5 < ranged < 30
