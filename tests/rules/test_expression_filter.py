"""Expression filter: the test cases of the original; unsupported expressions are named."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from sqlglot import exp
from support.tidb_json import column, table_def, table_info

from binlake.common.sections import ExpressionRule
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rules.expressions import ChangeFilter, ExpressionFilter, Half, RowFilter
from binlake.rules.reader import FORMS, ExpressionReader
from binlake.rules.sql import parse
from binlake.rules.terms import Unsupported

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
            column(18, "gone", generated_expr_string="`a` + 1"),
            column(19, "u", tp=t.VARCHAR, flen=20, **TEXT),
        ],
    )
)
_CI = replace(TABLE.all_columns[14], collate="utf8mb4_general_ci")
_UCA = replace(TABLE.all_columns[18], collate="utf8mb4_0900_ai_ci")
TABLE = replace(TABLE, all_columns=(*TABLE.all_columns[:14], _CI, *TABLE.all_columns[15:18], _UCA))

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
    ("a * 1e0 / b > 1 OR a % b = 1", {"a": "5", "b": "2"}, {"a": "5", "b": "0"}),
    ("NOT (a > 1)", {"a": "1"}, {"a": None}),
    ("a <=> NULL", {"a": None}, {"a": "1"}),
    ("a XOR b", {"a": "1", "b": "0"}, {"a": "1", "b": None}),
    ("a IN (1, '2', NULL)", {"a": "2"}, {"a": "3"}),
    ("name NOT LIKE 'a%'", {"Name": "b"}, {"Name": "a"}),
    ("name NOT LIKE 'a%'", {"Name": "A"}, {"Name": None}),
    ("LTRIM(name) LIKE 'a '", {"Name": " a "}, {"Name": " a"}),
    ("TRIM(TRAILING 'x' FROM name) = 'a'", {"Name": "axx"}, {"Name": "xa"}),
    ("s = 3", {"s": "a,b"}, {"s": "c"}),
    ("j->'$.a' IS NULL", {"j": '{"b": null}'}, {"j": '{"a": null}'}),
    ("j->>'$.a' = 'null'", {"j": '{"a": null}'}, {"j": "{}"}),
    ("j->'$.id' = 1", {"j": '{"id": 1}'}, {"j": '{"id": true}'}),
    ("j->'$.id' <> 1", {"j": '{"id": "1"}'}, {"j": '{"no": 1}'}),
    ("d < '1000-01-01'", {"d": "0000-00-00"}, {"d": "2021-01-01"}),
    ("ci = 'STRASE'", {"ci": "straße"}, {"ci": "strasse"}),
    ("ci COLLATE utf8mb4_bin = 'a'", {"ci": "a "}, {"ci": "A"}),
    ("a IN (1, NULL)", {"a": "1"}, {"a": "2"}),
    ("NOT (a IN (1, NULL)) IS NULL", {"a": "1"}, {"a": "2"}),
    ("IF(a > 1, b, 0)", {"a": "2", "b": "7"}, {"a": "1", "b": "7"}),
    ("COALESCE(a, 0) = 0 AND LENGTH(name) = 2", {"a": None, "Name": "é"}, {"a": None, "Name": "e"}),
    ("LOWER(name) REGEXP '^ab+$' AND b IS TRUE", {"Name": "ABB", "b": "2"}, {"Name": "ABB", "b": "0"}),
]  # fmt: skip


Row = dict[str, str | None]


def conditions(**expressions: str) -> dict[str, tuple[tuple[Half, ...], ...]]:
    raw = {key.replace("_", "-"): value for key, value in expressions.items()}
    rules = [ExpressionRule.model_validate({"schema": "test", "table": "T", key: value}) for key, value in raw.items()]
    return ExpressionFilter(rules).build_conditions(TABLE)


def is_true(half: Half, row: Row) -> bool:
    return bool(half.program([row[name] for name in half.columns]))


@pytest.mark.parametrize(("text", "dropped", "kept"), CASES)
def test_original_cases_and_mysql_conversions(text: str, dropped: Row, kept: Row) -> None:  # S4-06
    ((half,),) = conditions(insert_value_expr=text)["insert"]
    assert (is_true(half, dropped), is_true(half, kept)) == (True, False)


IMAGE = pa.map_(pa.string(), pa.string())


def batch(rows: list[tuple[int, str, str, Row | None, Row | None]]) -> pa.RecordBatch:
    """Rows (commit_ts, table, op, before, after) of `mutation`."""
    columns = list(zip(*rows, strict=True))
    images = [
        pa.array([None if image is None else list(image.items()) for image in side], IMAGE) for side in columns[3:]
    ]
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[0], pa.int64()), pa.array(["test"] * len(rows)), *map(pa.array, columns[1:3]), *images],
        ["commit_ts", "source_db", "source_table", "op", "before", "after"],
    )


def test_batch_drops_rows_for_which_an_expression_is_true() -> None:  # S4-06 R-19
    choices = conditions(insert_value_expr="a = 1 OR NOT name LIKE '2%'")["insert"]
    found = RowFilter((ChangeFilter("test", "t", "insert", 10, 20, choices),))
    row: Row = {"Name": "1", "a": "1", "b": None}
    rows = [
        (9, "t", "insert", None, row), (10, "t", "insert", None, row), (19, "other", "insert", None, row),
        (19, "t", "delete", row, None), (19, "t", "insert", None, {**row, "a": "2", "Name": "2x"}),
        (20, "t", "insert", None, row),
    ]  # fmt: skip
    kept = pickle.loads(pickle.dumps(found)).filter_rows(batch(rows))
    assert kept["commit_ts"].to_pylist() == [9, 19, 19, 19, 20]
    assert kept["after"].to_pylist()[3][1] == ("a", "2")


def test_both_halves_of_an_update_must_be_true() -> None:
    rule = ExpressionRule.model_validate(
        {"schema": "test", "table": "t", "update-old-value-expr": "a = 1", "update-new-value-expr": "a = 2"}
    )
    choices = ExpressionFilter([rule]).build_conditions(TABLE)
    found = RowFilter((ChangeFilter("test", "t", "update", 0, 99, choices["update"]),))
    one, two = {"a": "1"}, {"a": "2"}
    rows = [(1, "t", "update", one, two), (2, "t", "update", two, two), (3, "t", "update", one, one)]
    assert found.filter_rows(batch(rows))["commit_ts"].to_pylist() == [2, 3]
    assert found.filter_rows(batch([(1, "t", "insert", None, one)])).num_rows == 1


def test_unreadable_value_error_names_table_expression_and_commit_ts() -> None:
    found = RowFilter((ChangeFilter("test", "t", "insert", 0, 99, conditions(insert_value_expr="a > 1")["insert"]),))
    with pytest.raises(SchemaError, match="cannot read a row") as error:
        found.filter_rows(batch([(7, "t", "insert", None, {"a": "1"}), (8, "t", "insert", None, {"a": "secret"})]))
    assert error.value.where == {"table": "test.t", "expression": "a > 1", "commit_ts": "8"}
    assert "secret" not in str(error.value)


def test_numbers_beyond_bigint_are_exact() -> None:
    edges: Row = {"a": "-2147483648", "big": "18446744073709551615", "dec": "999.99"}
    for text in ("big + 1 > 18446744073709551615", "a - big < 0", "-big < 0", "big * big > 1", "dec * big > 1",
                 "big * 1e300 * 1e300 > 1", "big DIV 1 > 0", "ABS(a) = 2147483648"):  # fmt: skip
        ((half,),) = conditions(insert_value_expr=text)["insert"]
        assert is_true(half, edges), text


def test_rules_are_joined_by_or_and_update_halves_by_and() -> None:
    rules = [
        {"schema": "test", "table": "t", "update-old-value-expr": "a = 1", "update-new-value-expr": "b = 2"},
        {"schema": "TEST", "table": "t", "update-new-value-expr": "b = 3"},
        {"schema": "test", "table": "other", "delete-value-expr": "b = 3"},
    ]
    found = ExpressionFilter([ExpressionRule.model_validate(rule) for rule in rules])
    choices = found.build_conditions(TABLE)
    assert set(choices) == {"update"}
    assert [[(half.image, half.columns) for half in choice] for choice in choices["update"]] == [
        [("before", ("a",)), ("after", ("b",))], [("after", ("b",))],
    ]  # fmt: skip
    assert found.list_tables() == [("test", "other"), ("test", "t")]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("missing = 1", "no column `missing`"),
        ("other.a = 1", "another table"),
        ("test.t.a = 1", "`db` of column is not supported"),
        ("(SELECT 1) = 1", "not supported"),
        ("sleep(1)", "sleep is not supported"),
        ("ts = 'yesterday'", "'yesterday' is not a datetime"),
        ("d = '0000-00-00'", "is not a date"),
        ("tm = '900:00:00'", "is not a time"),
        ("a = 'x'", "'x' is not a number"),
        ("a = '1234567890123456'", "15 digits"),
        ("bl > 1", "cannot be compared"),
        ("d = 20210101", "cannot be compared"),
        ("`dec` % 2 = 1", "negative zero"),
        ("a / b > 1", "a \\* 1e0 / b"),
        ("REGEXP_LIKE(name, 'x', 'i')", "`flag` of regexplike"),
        ("JSON_EXTRACT(j, '$.a', '$.b') = 1", "`expressions` of jsonextract"),
        ("j->'$.a' > 1", "cannot be ordered"),
        ("j->'$.a' = TRUE", "constant number or text"),
        ("j->'$.a' IN (1)", "IN does not take a JSON"),
        ("j->'$**.a' = 1", "names and indexes only"),
        ("j = 'x'", "cannot be compared"),
        ("y = 99", "four digits"),
        ("y = a", "four digits"),
        ("a BETWEEN SYMMETRIC 1 AND 2", "no meaning"),
        ("name LIKE 'a|%' ESCAPE '|'", "escape.*not supported"),
        ("name LIKE ci", "constant pattern"),
        ("name = ci", "two collations"),
        ("'a' = 'b'", "needs a column"),
        ("name REGEXP '(a+)+'", "differently"),
        ("name REGEXP '\\\\d'", "differently"),
        ("ci REGEXP 'a'", "COLLATE utf8mb4_bin"),
        ("u = 'a'", "COLLATE utf8mb4_bin"),
        ("FIND_IN_SET('A', s)", "spelled as there"),
        ("FIND_IN_SET('a', s) = 1", "cannot be compared"),
        ("a = 1 /*! OR b = 2 */", "comment"),
        ("a = 1; b = 2", "not one expression"),
        ("LENGTH(name, a) = 1", "no meaning"),
        ("a = b = 1", "parentheses"),
        ("a <=> b < 1", "parentheses"),
        ("a XOR b AND a", "parentheses"),
        ("gone = 1", "virtual"),
        ("name", "not a condition"),
        ("CAST(a AS SIGNED) = 1", "cast.*not supported"),
        ("a + INTERVAL 1 DAY > 1", "no meaning"),
    ],
)
def test_unsupported_expression_error_names_table_and_expression(text: str, why: str) -> None:  # S4-06
    with pytest.raises(ConfigError, match=why) as error:
        conditions(insert_value_expr=text)
    assert {key: value.lower() for key, value in error.value.where.items()} == {
        "table": "test.t",
        "expression": text.lower(),
    }


def test_invalid_expression_text_is_refused_immediately() -> None:
    rule: dict[str, Any] = {"schema": "test", "table": "t", "insert-value-expr": "a > (1"}
    with pytest.raises(ConfigError, match="expression"):
        ExpressionFilter([ExpressionRule.model_validate(rule)])


@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: kind.__name__)
def test_every_argument_of_a_node_is_handled_or_refused(kind: type[exp.Expr]) -> None:
    # If an argument from the parser were ignored, NOT LIKE could become LIKE.
    node, form = sample(kind), FORMS[kind]
    for name in kind.arg_types.keys() - form.takes:
        strange = node.copy()
        strange.set(name, exp.Literal.string("x"))
        with pytest.raises(Unsupported, match="is not supported"):
            ExpressionReader(TABLE).read_value(strange)
    node.args = Watched(node.args)
    ExpressionReader(TABLE).read_value(node)
    assert node.args.read >= {name for name, value in node.args.items() if name in form.takes and value is not None}


class Watched(dict[str, Any]):
    """Arguments of a node that record which of them were read by name."""

    def __init__(self, args: dict[str, Any]) -> None:
        super().__init__(args)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


SAMPLES = ("t.a = 1", "a <> 1", "a > 1", "a >= 1", "a < 1", "a <= 1", "a <=> 1", "a + 1", "a - 1", "a * 1", "a / 1e0",
           "a DIV 1", "a % 1", "a BETWEEN 1 AND 2", "a IN (1, 2)", "a AND b", "a OR b", "a XOR b", "NOT a", "a IS NULL",
           "name NOT LIKE 'x'", "name REGEXP 'x'", "-a", "(a)", "a = TRUE", "bits = b'1'", "bl = x'41'",
           "name COLLATE utf8mb4_bin = 'x'", "j->'$.a' = 1", "j->>'$.a' = 'x'", "IF(a, b, 1)", "COALESCE(a, b)",
           "ABS(a)", "LOWER(name) = 'x'", "UPPER(name) = 'x'", "TRIM(LEADING 'x' FROM name) = 'y'", "LENGTH(name) = 1",
           "FIND_IN_SET('a', s)")  # fmt: skip


def sample(kind: type[exp.Expr]) -> exp.Expr:
    """A node of this kind, as the parser creates it."""
    return next(node.copy() for text in SAMPLES for node in parse(text).walk() if type(node) is kind)


def test_bytewise_source_distinguishes_case() -> None:  # source.new-collation = false
    rule = ExpressionRule.model_validate(
        {"schema": "test", "table": "t", "insert-value-expr": "ci = 'a' OR u LIKE 'B%'"}
    )
    ((half,),) = ExpressionFilter([rule], bytewise=True).build_conditions(TABLE)["insert"]
    rows = ({"ci": "a", "u": ""}, {"ci": "A", "u": "b"}, {"ci": "a ", "u": "Bx"}, {"ci": "a ", "u": None})
    assert [is_true(half, row) for row in rows] == [True, False, True, False]
