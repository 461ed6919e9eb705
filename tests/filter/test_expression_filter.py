"""Expression filter: the rows of the original's own tests, evaluated by Spark; what cannot be said is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from tidb_json import column, table_def, table_info

from binlake.config.rules import ExpressionRule
from binlake.errors import ConfigError
from binlake.filter.expressions import ExpressionFilter
from binlake.schema import TableDef
from binlake.schema import mysqltypes as t

TEXT = {"charset": "utf8mb4"}
BINARY = {"charset": "binary"}
TABLE: TableDef = table_def(
    table_info(
        45,
        "t",
        [
            column(1, "state", tp=t.TINY, flag=t.FLAG_UNSIGNED),
            column(2, "f", tp=t.FLOAT),
            column(3, "a"),
            column(4, "b"),
            column(5, "dec", tp=t.NEWDECIMAL, flen=5, decimal=2),
            column(6, "bits", tp=t.BIT, flen=4),
            column(7, "ts", tp=t.TIMESTAMP),
            column(8, "tm", tp=t.DURATION, decimal=6),
            column(9, "y", tp=t.YEAR),
            column(10, "e", tp=t.ENUM, elems=["x-small", "small"], **TEXT),
            column(11, "s", tp=t.SET, elems=["a", "b", "c", "d"], **TEXT),
            column(12, "bl", tp=t.BLOB, **BINARY),
            column(13, "j", tp=t.JSON),
            column(14, "Name", tp=t.VARCHAR, flen=20, **TEXT),
            column(15, "ci", tp=t.VARCHAR, flen=20, **TEXT),
            column(16, "d", tp=t.DATE),
            column(17, "big", tp=t.LONGLONG, flag=t.FLAG_UNSIGNED),
        ],
    )
)
_CI = replace(TABLE.all_columns[14], collate="utf8mb4_general_ci")
TABLE = replace(TABLE, all_columns=(*TABLE.all_columns[:14], _CI, *TABLE.all_columns[15:]))

# (expression, image dropped, image kept): reference 6.9, then conversions and three-valued logic
CASES: list[tuple[str, dict[str, str | None], dict[str, str | None]]] = [
    ("state != 1", {"state": "3"}, {"state": "1"}),
    ("f > 1.23", {"f": "2"}, {"f": "1"}),
    ("f > a + b", {"f": "123.45", "a": "1", "b": "2"}, {"f": "0.01", "a": "23", "b": "45"}),
    ("a IS NULL", {"a": None}, {"a": "100"}),
    ("a < 0", {"a": "-8"}, {"a": "1"}),
    ("`dec` = 10.1", {"dec": "10.10"}, {"dec": "10.11"}),
    ("bits = b'1'", {"bits": "01"}, {"bits": "02"}),
    ("ts = '2021-06-21 12:34:56'", {"ts": "2021-06-21 12:34:56"}, {"ts": "1970-01-01 00:00:01"}),
    ("tm = '00:00:12'", {"tm": "00:00:12.000000"}, {"tm": "00:00:01.000000"}),
    ("y = '2021'", {"y": "2021"}, {"y": "2020"}),
    ("e = 'x-small'", {"e": "x-small"}, {"e": "small"}),
    ("e = 1", {"e": "x-small"}, {"e": "small"}),
    ("find_in_set('c', s) > 0", {"s": "c,d"}, {"s": "d"}),
    ("bl = x'1234'", {"bl": "1234"}, {"bl": "5678"}),
    ("j->\"$.id\" = 1", {"j": '{"id": 1}'}, {"j": '{"id": 2}'}),
    ("j->>'$.k' = 'x'", {"j": '{"k": "x"}'}, {"j": '{"k": "y"}'}),
    ("tm > '-100:00:00'", {"tm": "-99:59:59.500000"}, {"tm": "-838:59:59.000000"}),
    ("d BETWEEN '2021-01-01' AND '2021-12-31'", {"d": "2021-05-05"}, {"d": "0000-00-00"}),
    ("name = 'A'", {"Name": "A"}, {"Name": "a"}),
    ("t.NAME LIKE 'it''s %'", {"Name": "it's x"}, {"Name": "its x"}),
    ("ci = 'ABC'", {"ci": "aBc"}, {"ci": "abd"}),
    ("big = 18446744073709551615", {"big": "18446744073709551615"}, {"big": "1"}),
    ("name > 5", {"Name": "10 apples"}, {"Name": "pears"}),
    ("a / b > 1 OR a % b = 1", {"a": "5", "b": "2"}, {"a": "5", "b": "0"}),
    ("NOT (a > 1)", {"a": "1"}, {"a": None}),
    ("a <=> NULL", {"a": None}, {"a": "1"}),
    ("a XOR b", {"a": "1", "b": "0"}, {"a": "1", "b": None}),
    ("a IN (1, '2', NULL)", {"a": "2"}, {"a": "3"}),
    ("IF(a > 1, b, 0)", {"a": "2", "b": "7"}, {"a": "1", "b": "7"}),
    ("COALESCE(a, 0) = 0 AND LENGTH(name) = 2", {"a": None, "Name": "é"}, {"a": None, "Name": "e"}),
    ("LOWER(name) REGEXP '^ab+$' AND b IS TRUE", {"Name": "ABB", "b": "2"}, {"Name": "ABB", "b": "0"}),
]  # fmt: skip


def conditions(**expressions: str) -> dict[str, str]:
    raw = {key.replace("_", "-"): value for key, value in expressions.items()}
    rules = [ExpressionRule.model_validate({"schema": "test", "table": "T", key: value}) for key, value in raw.items()]
    return ExpressionFilter(rules).conditions(TABLE)


@pytest.mark.spark
def test_the_rows_of_the_original_and_mysqls_conversions(spark: SparkSession) -> None:  # S4-06
    rows = [(after,) for _, dropped, kept in CASES for after in (dropped, kept)]
    frame = spark.createDataFrame(rows, "after MAP<STRING,STRING>").coalesce(1)
    columns = [F.expr(conditions(insert_value_expr=text)["insert"]) for text, _, _ in CASES]
    found = frame.select(*columns).collect()
    wrong = [
        (text, found[2 * n][n], found[2 * n + 1][n])
        for n, (text, _, _) in enumerate(CASES)
        if (found[2 * n][n], found[2 * n + 1][n]) != (True, False)
    ]
    assert wrong == []


def test_rules_on_a_table_are_joined_by_or_and_the_halves_of_an_update_by_and() -> None:
    rules = [
        {"schema": "test", "table": "t", "update-old-value-expr": "a = 1", "update-new-value-expr": "b = 2"},
        {"schema": "TEST", "table": "t", "update-new-value-expr": "b = 3"},
        {"schema": "test", "table": "other", "delete-value-expr": "b = 3"},
    ]
    found = ExpressionFilter([ExpressionRule.model_validate(rule) for rule in rules])
    sql = found.conditions(TABLE)
    assert set(sql) == {"update"}
    assert sql["update"].count("COALESCE(") == 2
    assert " AND " in sql["update"].split(" OR COALESCE")[0]
    assert "before['a']" in sql["update"]
    assert found.tables() == [("test", "other"), ("test", "t")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("missing = 1", "no column `missing`"),
        ("other.a = 1", "another table"),
        ("(SELECT 1) = 1", "not supported"),
        ("sleep(1)", "sleep is not supported"),
        ("ts = 'yesterday'", "'yesterday' is no moment"),
        ("a = 'x'", "'x' is no number"),
        ("bl > 1", "cannot be compared"),
    ],
)
def test_what_cannot_be_evaluated_names_table_and_expression(text: str, why: str) -> None:  # S4-06
    with pytest.raises(ConfigError, match=why) as error:
        conditions(insert_value_expr=text)
    assert error.value.where == {"table": "test.t", "expression": text}


def test_text_that_is_no_expression_is_refused_at_once() -> None:
    rule: dict[str, Any] = {"schema": "test", "table": "t", "insert-value-expr": "a > (1"}
    with pytest.raises(ConfigError, match="expression"):
        ExpressionFilter([ExpressionRule.model_validate(rule)])
