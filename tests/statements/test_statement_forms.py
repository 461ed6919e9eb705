"""INSERT … ON DUPLICATE KEY UPDATE gives the same table as REPLACE if the identity is the only unique key.

Both forms run twice over the same random rows, with columns whose defaults the statement overrides, columns that would
change by themselves, stored and virtual generated columns, and keys that a collation treats as equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mariadb import MariaDb, execute
from support.tabledefs import col, primary, table

from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements import BatchLimits, TableStatements, build_images_from_rows
from binlake.target.session.session import SQL_MODE

pytestmark = pytest.mark.mariadb

COLUMNS = (
    "k VARCHAR(3) COLLATE utf8mb4_general_ci NOT NULL, n INT NOT NULL DEFAULT 7, s VARCHAR(9) DEFAULT 'd',"
    " f FLOAT, b BIT(6), at TIMESTAMP(3) NULL DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),"
    " twice BIGINT AS (n * 2) STORED, shown VARCHAR(20) AS (CONCAT(k, n)) VIRTUAL, KEY by_n (n)"
)


def definition(name: str, keyed: bool) -> TableDef:
    return table(
        name,
        col("k", t.VARCHAR, not_null=True, flen=3, collate="utf8mb4_general_ci"),
        col("n", not_null=True),
        col("s", t.VARCHAR, flen=9),
        col("f", t.FLOAT),
        col("b", t.BIT, flen=6),
        col("at", t.TIMESTAMP, decimal=3),
        col("twice", t.LONGLONG, generated_expr_string="`n` * 2", generated_stored=True),
        col("shown", t.VARCHAR, flen=20, generated_expr_string="concat(`k`, `n`)"),
        keys=(primary("k"),) if keyed else (primary("k", "n"),),
    )


ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "A", "b", "bb", "c"]),
        "n": st.integers(-3, 3).map(str),
        "s": st.none() | st.sampled_from(["", "d", "it's", "D"]),
        "f": st.none() | st.sampled_from(["0", "1.1", "-2"]),
        "b": st.none() | st.sampled_from(["00", "3F"]),
        "at": st.none() | st.sampled_from(["2020-01-01 00:00:00.000", "2021-06-01 12:00:00.123"]),
        "twice": st.just("0"),
        "shown": st.just(""),
    }
)


@pytest.fixture
def link(server: MariaDb) -> Iterator[pymysql.Connection[Any]]:
    """A connection like finalize's, and four tables: for each form one with a key of one column and one of two."""
    execute(server, "DROP DATABASE IF EXISTS d", "CREATE DATABASE d CHARACTER SET utf8mb4 COLLATE utf8mb4_bin")
    for name, key in (("one", "k"), ("two", "k, n")):
        for form in ("safe", "plain"):
            execute(server, f"CREATE TABLE d.{name}_{form} ({COLUMNS}, PRIMARY KEY ({key}))")
    connection = server.connect()
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION sql_mode = '{SQL_MODE}', time_zone = '+00:00', innodb_strict_mode = 1")
        yield connection


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(before=st.lists(ROW, max_size=4), after=st.lists(ROW, max_size=6), two=st.booleans(), size=st.integers(1, 4))
def test_both_forms_give_the_same_rows(
    link: pymysql.Connection[Any], before: list[Any], after: list[Any], two: bool, size: int
) -> None:
    # S4-37, S4-43, R-12: byte for byte, first and second time
    name = "two" if two else "one"
    shown = []
    with link.cursor() as cursor:
        for form in ("safe", "plain"):
            writer = TableStatements(
                definition(f"{name}_{form}", not two), 0, limits=BatchLimits(size), plain=form == "plain"
            )
            cursor.execute(f"DELETE FROM d.{name}_{form}")
            for images in (before, after, after):
                columns = build_images_from_rows(images, list(images[0])) if images else {}
                for batch in writer.render_writes(columns) if images else ():
                    assert batch.kind == ("upsert" if form == "plain" else "replace")
                    cursor.execute(batch.sql[0])
            cursor.execute(f"SELECT *, HEX(k), HEX(b) FROM d.{name}_{form} ORDER BY k, n")
            shown.append(cursor.fetchall())
    assert shown[0] == shown[1]
