"""Literals: the plain and the column-wise functions give the same text, and the target reads it as the source's
value."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, table

from binlake.rows.codec.datum import format_float
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.statements.conditions import format_image_condition, format_image_conditions
from binlake.statements.literal import (
    LiteralKind,
    choose_literal_kind,
    format_match_literal,
    format_match_literals,
    format_value_literal,
    format_value_literals,
    join_tuples,
    join_value_tuples,
    quote,
    widen_float,
)

COLUMNS = {
    c.name: c
    for c in table(
        "all",
        col("int", t.LONGLONG),
        col("dec", t.NEWDECIMAL, flen=20, decimal=4),
        col("year", t.YEAR),
        col("float", t.FLOAT),
        col("double", t.DOUBLE),
        col("text", t.VARCHAR, flen=200),
        col("json", t.JSON),
        col("enum", t.ENUM, elems=("a", "b")),
        col("bytes", t.BLOB, charset="binary"),
        col("bit", t.BIT, flen=12),
        col("time", t.DATETIME, decimal=3),
    ).columns
}
# The fixture is the session's.
ONE_SERVER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
NUMBERS = st.one_of(
    st.none(), st.just("3.4028235e38"), st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr)
)
TEXTS = st.one_of(st.none(), st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
HEX = st.one_of(st.none(), st.binary(max_size=9).map(lambda b: b.hex().upper()))


def strategy(column: ColumnInfo) -> st.SearchStrategy[str | None]:
    kind = choose_literal_kind(column)
    if kind in (LiteralKind.FLOAT, LiteralKind.DOUBLE, LiteralKind.NUMBER):
        return NUMBERS
    return HEX if kind in (LiteralKind.BINARY, LiteralKind.BIT) else TEXTS


@pytest.mark.parametrize("name", COLUMNS)
@settings(max_examples=examples(30), deadline=None)
@given(data=st.data())
def test_column_literals_equal_plain_literals(name: str, data: st.DataObject) -> None:
    column = COLUMNS[name]
    values = data.draw(st.lists(strategy(column), max_size=8))
    array, kind = pa.array(values, pa.large_string()), choose_literal_kind(column)
    assert format_value_literals(array, column).to_pylist() == [format_value_literal(v, kind) for v in values]
    assert format_match_literals(array, column).to_pylist() == [format_match_literal(v, kind) for v in values]
    assert join_value_tuples([(array, column)] * 2).to_pylist() == [
        "({0},{0}),".format(format_value_literal(v, kind)) for v in values
    ]
    conditions = format_image_conditions(array, column, "mariadb").to_pylist()
    assert conditions == [format_image_condition(v, column, "mariadb") for v in values]


@pytest.mark.parametrize(
    ("name", "value", "literal"),
    [
        ("int", "-9223372036854775808", "-9223372036854775808"),
        ("dec", "1.1000", "1.1000"),
        ("float", "1.1", "1.1e0"),
        # the shortest text of the greatest FLOAT would be refused as out of range
        ("float", "3.4028235e38", "3.4028234663852886e38"),
        ("float", "-3.4028235e38", "-3.4028234663852886e38"),
        ("double", "3.4028235e38", "3.4028235e38"),
        ("double", "-0", "-0e0"),
        ("double", "1e300", "1e300"),
        ("text", "it's \\ \0", "'it\\'s \\\\ \\0'"),
        ("json", '{"a": "\\"x\\""}', '\'{"a": "\\\\"x\\\\""}\''),
        ("bytes", "00FF", "X'00FF'"),
        ("bytes", "", "X''"),
        ("bit", "0005", "0x0005"),
        ("time", "2020-01-01 00:00:00.123", "'2020-01-01 00:00:00.123'"),
        ("text", None, "NULL"),
    ],
)
def test_literals(name: str, value: str | None, literal: str) -> None:
    # S0-22
    assert format_value_literal(value, choose_literal_kind(COLUMNS[name])) == literal


def test_float_is_matched_by_its_widened_value() -> None:
    # hazards R-44
    assert widen_float("1.1") == "1.100000023841858e0"
    assert format_match_literal("1.1", LiteralKind.DOUBLE) == "1.1e0"


def test_tuples() -> None:
    ones, twos = pa.array(["1", "2"], pa.large_string()), pa.array(["'a'", "NULL"], pa.large_string())
    assert join_tuples([ones, twos]).to_pylist() == ["(1,'a')", "(2,NULL)"]


@pytest.mark.mariadb
@settings(max_examples=examples(25), deadline=None, suppress_health_check=ONE_SERVER)
@given(st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=30), min_size=1, max_size=20))
def test_target_reads_quoted_text_back(server: MariaDb, texts: list[str]) -> None:
    shown = rows(server, "SELECT " + ", ".join(f"HEX({quote(text)})" for text in texts))
    assert list(shown[0]) == [text.encode().hex().upper() for text in texts]


@pytest.mark.mariadb
@settings(max_examples=examples(20), deadline=None, suppress_health_check=ONE_SERVER)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=20))
@example([3.4028234663852886e38, -3.4028234663852886e38, 1.401298464324817e-45])
def test_target_stores_and_matches_every_float(server: MariaDb, numbers: list[float]) -> None:
    # hazards R-44: what was written is matched, for FLOAT and for DOUBLE
    texts = [format_float(number) for number in numbers]
    execute(server, "CREATE DATABASE IF NOT EXISTS lit", "DROP TABLE IF EXISTS lit.f")
    execute(server, "CREATE TABLE lit.f (n INT, f FLOAT, d DOUBLE)")
    values = [(format_value_literal(x, LiteralKind.FLOAT), format_value_literal(x, LiteralKind.DOUBLE)) for x in texts]
    execute(server, "INSERT INTO lit.f VALUES " + ",".join(f"({n},{f},{d})" for n, (f, d) in enumerate(values)))
    for n, text in enumerate(texts):
        f, d = format_match_literal(text, LiteralKind.FLOAT), format_match_literal(text, LiteralKind.DOUBLE)
        assert rows(server, f"SELECT COUNT(*) FROM lit.f WHERE n = {n} AND f <=> {f} AND d <=> {d}") == [(1,)]
