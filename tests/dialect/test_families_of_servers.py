"""Who makes a conversion, by the families of source and target (R-29); target/ddl/test_families.py measures servers."""

from __future__ import annotations

from typing import Any

import pytest
from support.tabledefs import col, table

from binlake.common.sql import Dialect
from binlake.dialect import families
from binlake.dialect.families import Way, choose_way, converts_as_tidb
from binlake.dialect.routed import Unmappable
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession

STRICT = 1 << 22
TEXT, INT, JSON = col("v", t.VARCHAR, flen=60), col("v"), col("v", t.JSON)
TIME, DATETIME, DATE = col("v", t.DURATION), col("v", t.DATETIME), col("v", t.DATE)
FINE = col("v", t.DATETIME, decimal=3)
BYTES = col("v", t.VARCHAR, flen=60, charset="binary")
ENUM = col("v", t.ENUM, elems=("a", "b"))


def of(raw: dict[str, Any]) -> ColumnInfo:
    return table("t", raw).columns[0]


def choose(source: dict[str, Any], target: dict[str, Any], session: SourceSession, dialect: Dialect) -> str:
    try:
        way = choose_way("`v`", of(source), of(target), session, dialect)
    except Unmappable as error:
        return "refused" if "convert differently" in error.clause else "unmappable"
    return "values" if way.by_values else way.expression or "itself"


def session(family: str, mode: int = STRICT, **more: Any) -> SourceSession:
    return SourceSession("+00:00", family=family, sql_mode=mode, **more)


@pytest.mark.parametrize(
    ("source", "target", "of_session", "dialect", "way"),
    [
        # Of one family: whatever it is.
        (TEXT, INT, session("mysql"), "mysql", "itself"),
        (JSON, TEXT, session("mariadb"), "mariadb", "itself"),
        # Alike, as measured.
        (INT, TEXT, session("mysql"), "mariadb", "itself"),
        (DATETIME, DATE, session("mysql"), "mariadb", "itself"),
        (FINE, DATE, session("mysql"), "mariadb", "refused"),  # MySQL rounds, MariaDB cuts
        (FINE, TEXT, session("mysql"), "mariadb", "itself"),
        (TIME, INT, session("mariadb"), "mysql", "itself"),
        (TEXT, JSON, session("mariadb"), "mysql", "itself"),
        (TEXT, JSON, session("mariadb", 0), "mysql", "refused"),  # values that do not fit are replaced differently
        (TEXT, JSON, session("mariadb"), "tidb", "refused"),
        (TEXT, ENUM, session("mysql"), "mariadb", "itself"),
        # Not alike.
        (TEXT, TIME, session("mysql"), "mariadb", "refused"),
        (JSON, TEXT, session("mysql"), "mariadb", "refused"),
    ],
)
def test_target_converts_itself_only_if_it_does_so_alike(
    source: dict[str, Any], target: dict[str, Any], of_session: SourceSession, dialect: Dialect, way: str
) -> None:
    #
    assert choose(source, target, of_session, dialect) == way


@pytest.mark.parametrize(
    ("source", "target", "family", "alike"),
    [
        (TEXT, INT, "mysql", True),  # only MySQL rounds as TiDB does
        (TEXT, INT, "mariadb", False),
        (DATETIME, INT, "mysql", True),
        (TEXT, JSON, "mysql", True),
        (TEXT, JSON, "mariadb", False),
        (JSON, TEXT, "mysql", False),
        (JSON, TEXT, "mariadb", False),
        (INT, col("v", t.LONGLONG), "mariadb", True),
    ],
)
def test_pairs_that_a_family_converts_as_tidb_does(
    source: dict[str, Any], target: dict[str, Any], family: str, alike: bool
) -> None:
    #
    assert converts_as_tidb(of(source), of(target), session(family)) is alike


@pytest.mark.parametrize(
    ("source", "target", "of_session", "way"),
    [
        # A lenient session replaced values that do not fit as its family does; ours are TiDB's, written one by one.
        (TEXT, INT, session("mysql", 0), "values"),
        # Values that depend on a zone or a day that is not known are refused.
        (col("v", t.TIMESTAMP), INT, SourceSession(), "unmappable"),
        (TIME, DATETIME, session("mysql", 0, day="2024-05-06"), "values"),
        (TIME, DATETIME, session("mysql", 0), "itself"),
    ],
)
def test_values_are_written_only_if_all_that_they_depend_on_is_known(
    source: dict[str, Any], target: dict[str, Any], of_session: SourceSession, way: str
) -> None:
    #
    assert choose(source, target, of_session, "mariadb") == way


def test_way_of_a_plain_alter_is_the_empty_one() -> None:
    assert choose_way("`v`", of(TEXT), of(INT), session("mysql"), "mysql") == Way()


@pytest.mark.parametrize(
    ("kind", "target", "alike"),
    [(t.DATETIME, DATE, [True, False, False]), (t.DURATION, INT, [True, False, False]),
     (t.DATETIME, TEXT, [True, True, True]), (t.DURATION, DATE, [False, False, False])],
)  # fmt: skip
def test_only_times_without_a_fraction_are_alike_as_whole_values(
    kind: int, target: dict[str, Any], alike: list[bool]
) -> None:
    # MySQL rounds fractions, MariaDB cuts them
    assert [families._is_alike(of(col("v", kind, decimal=n)), of(target)) for n in (0, 1, 6)] == alike
