"""Which stored generated columns a target computes: integers, NULL tests and parts of dates whose results fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.tabledefs import col, primary, table

from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import Json
from binlake.rows.schema.info import SOURCE_KEY
from binlake.statements import generation
from binlake.statements.generation import (
    depends_on_zone,
    find_filled_operands,
    is_computed,
    is_exact,
    is_proven,
    list_expressions,
    list_recomputed,
    may_store,
)

COLUMNS = (
    col("id"), col("s", t.SHORT), col("u", t.LONG, unsigned=True), col("big", t.LONGLONG), col("v", t.VARCHAR, flen=20),
    col("d", t.NEWDECIMAL, flen=10, decimal=2), col("day", t.DATE), col("at", t.DATETIME), col("ts", t.TIMESTAMP),
    col("f", t.DOUBLE), col("j", t.JSON),
)  # fmt: skip


def make(expression: str, tp: int = t.LONG, **more: Any) -> tuple[ColumnInfo, TableDef]:
    made = col("g", tp, generated_expr_string=expression, generated_stored=True, **more)
    whole = table("t", *COLUMNS, made, keys=(primary("id"),))
    found = whole.find_column("g")
    assert found is not None
    return found, whole


@pytest.fixture(autouse=True)
def unread() -> None:
    """Nothing is known of an expression from another test."""
    generation._read_expression.cache_clear()


@pytest.mark.parametrize(
    ("expression", "tp", "proven", "exact"),
    [
        ("`id` + 1", t.LONGLONG, True, True),
        ("(`id` + 1)", t.LONG, True, False),  # 2147483647 + 1: a lenient source cuts it, a strict target refuses it
        ("`s` * 2 - 1", t.LONG, True, True),
        ("((`s` * `s`) + `s`)", t.LONG, True, True),
        ("-`s`", t.SHORT, True, False),
        ("`u`", t.LONG, True, False),
        ("`u` - 1", t.LONGLONG, False, False),  # BIGINT UNSIGNED cannot be negative, but for one sql_mode
        ("`u` + 1", t.LONGLONG, True, True),
        ("`big` + 1", t.LONGLONG, False, False),
        ("`v` is null", t.TINY, True, True),
        ("isnull(`j`)", t.TINY, True, True),
        ("((`d` is not null) and (`id` > 5)) or not `s` = 3", t.TINY, True, True),
        ("ifnull(`s`, 0)", t.SHORT, True, True),
        ("if(`v` is null, 0, `s` + 1)", t.LONG, True, True),
        ("coalesce(`s`, `id`, -1)", t.LONG, True, True),
        ("year(`at`) * 100 + month(`at`)", t.LONG, True, True),
        ("dayofmonth(`day`)", t.TINY, True, True),
        ("month(`day`) - year(`day`)", t.LONG, False, False),  # YEAR is unsigned in MySQL
        ("hour(`at`)", t.TINY, True, True),
        ("hour(`day`)", t.TINY, False, False),
        ("year(`v`)", t.LONG, False, False),
        ("`v` + 0", t.LONG, False, False),
        ("`d` + 0", t.LONGLONG, False, False),
        ("`f` > 1", t.TINY, False, False),
        ("`v` = 'a'", t.TINY, False, False),
        ("`id` / 2", t.LONG, False, False),
        ("`id` % 2", t.LONG, False, False),
        ("length(`v`)", t.LONG, False, False),
        ("concat(`v`)", t.VARCHAR, False, False),
        ("`id` + 1", t.VARCHAR, False, False),
        ("`id` +", t.LONG, False, False),
        ("`id` 1", t.LONG, False, False),
        ("`none`", t.LONG, False, False),
        ("(`id` + 1", t.LONGLONG, False, False),
        ("(`s` is null) + 1", t.TINY, True, True),
        ("not `s`", t.TINY, True, True),
        ("127", t.TINY, True, True),
        ("128", t.TINY, True, False),
        ("-128", t.TINY, True, True),
        ("rand()", t.LONG, False, False),
        ("month(`day`) - 1", t.LONG, False, False),  # 0 in a date of zeros
        ("`s` + 1 is not null", t.TINY, True, True),
        ("`s` + 1 is not 5", t.TINY, False, False),
        ("`s` + 1 is null 5", t.TINY, False, False),
        ("`v` is null 5", t.TINY, False, False),
        ("`v` is not null 5", t.TINY, False, False),
        ("`v` is 5", t.TINY, False, False),
        ("`s` * 2 * 3", t.LONG, True, True),
        ("`u` * `u`", t.LONGLONG, True, False),  # below 2 ** 64, as one of them is unsigned
        ("`u` * 3", t.LONGLONG, True, True),
        ("`big` * 2", t.LONGLONG, False, False),
        ("ifnull(`u`, 1) * 4294967296", t.LONGLONG, True, False),
        ("ifnull(1, `u`) * 4294967296", t.LONGLONG, True, False),
    ],
)  # fmt: skip
def test_only_proven_expressions_whose_values_fit_are_left_to_the_target(
    expression: str, tp: int, proven: bool, exact: bool
) -> None:
    # S4-26 R-29
    found = make(expression, tp)
    assert (is_proven(*found), is_exact(*found)) == (proven, exact)
    assert [is_computed(*found, dialect) for dialect in ("mariadb", "mysql")] == [exact, exact]


@pytest.mark.parametrize(
    ("expression", "tp", "exact", "zoned"),
    [
        ("`s` + 1", t.LONG, True, False),
        ("hour(`at`)", t.LONG, True, False),
        ("`s` + 1", t.TINY, False, False),  # what does not fit is cut in the source's session
        ("length(`v`)", t.LONG, False, False),
        ("hour(`ts`)", t.LONG, False, True),
    ],
)
@pytest.mark.parametrize("outer", ["`via` + 1", "`via` is null", "`VIA` is null"])
@pytest.mark.parametrize("stored", [True, False])
def test_a_column_computed_from_a_virtual_one_is_only_as_good_as_that(
    expression: str, tp: int, exact: bool, zoned: bool, outer: str, stored: bool
) -> None:
    # the target computes the virtual column itself; a stored one has the source's values
    made = [col("via", tp, generated_expr_string=expression, generated_stored=stored)]
    made.append(col("g", t.LONGLONG, generated_expr_string=outer, generated_stored=True))
    whole = table("t", *COLUMNS, *made, keys=(primary("id"),))
    found = whole.find_column("g")
    assert found is not None
    assert (is_exact(found, whole), depends_on_zone(found, whole)) == (exact or stored, zoned and not stored)
    assert list(list_expressions(found, whole)) == ([outer] if stored else [outer, expression])


@pytest.mark.parametrize(
    ("tp", "unsigned", "added", "exact"),
    [
        (t.TINY, False, 0, True), (t.TINY, False, 1, False), (t.TINY, False, -1, False),
        (t.TINY, True, 0, True), (t.TINY, True, 1, False), (t.LONGLONG, True, 0, True), (t.LONGLONG, True, 1, False),
    ],
)  # fmt: skip
def test_results_must_be_within_the_bounds_of_the_column(tp: int, unsigned: bool, added: int, exact: bool) -> None:
    made = col("g", tp, unsigned=unsigned, generated_expr_string=f"`a` {'-' if added < 0 else '+'} {abs(added)}",
               generated_stored=True)  # fmt: skip
    whole = table("t", col("a", tp, unsigned=unsigned), made)
    found = whole.find_column("g")
    assert found is not None
    assert is_exact(found, whole) is exact


def test_greatest_number_of_an_unsigned_column_fits() -> None:
    assert [is_exact(*make(text, t.TINY, unsigned=True)) for text in ("255", "256")] == [True, False]


@pytest.mark.parametrize(
    ("operand", "stores"),
    [
        (col("c", t.STRING, flen=9), False),
        (col("c", t.STRING, flen=9, charset="binary"), True),
        (col("c", t.VARCHAR, flen=9), True),
        (col("c"), True),
    ],
)
def test_mariadb_stores_nothing_that_reads_a_char(operand: Json, stores: bool) -> None:  # error 1901
    whole = table("t", operand, col("g", t.TINY, generated_expr_string="`c` is null", generated_stored=True))
    found = whole.find_column("g")
    assert found is not None
    assert [may_store(found, whole, dialect) for dialect in ("mariadb", "mysql", "tidb")] == [stores, True, True]


@pytest.mark.parametrize(("source", "computed"), [("", True), ("one", False)])
def test_a_tidb_computes_what_a_tidb_computed(source: str, computed: bool) -> None:
    column, found = make("concat(`v`, `f`)", t.VARCHAR)
    found = replace(found, raw={**found.raw, SOURCE_KEY: source})
    assert is_computed(column, found, "tidb") is computed
    zoned = make("hour(`ts`)")
    assert not is_computed(*zoned, "tidb")


def one(*columns: Json) -> TableDef:
    return table("t", *columns)


A, WIDE = col("a", t.SHORT), col("a", t.LONG)
TEXT, LONGER, LATIN = (
    col("a", t.VARCHAR, flen=9), col("a", t.VARCHAR, flen=20), col("a", t.VARCHAR, flen=9, charset="latin1"),
)  # fmt: skip
BYTES, MORE = (col("a", t.STRING, flen=n, charset="binary") for n in (4, 8))
FEW, MANY = (col("a", t.VARCHAR, flen=n, charset="binary") for n in (4, 8))
SAME = col("a", t.STRING, flen=4, charset="binary")
LETTERS, LONG_LETTERS = (col("a", t.STRING, flen=n) for n in (4, 8))


def g(expression: str = "hex(`a`)", *, stored: bool = True) -> Json:
    return col("g", t.VARCHAR, flen=40, generated_expr_string=expression, generated_stored=stored)


def via(expression: str = "`a` - 1") -> Json:
    return col("v", t.LONGLONG, generated_expr_string=expression)


NO_NULL = col("a", t.SHORT, not_null=True)
PLAIN = col("g", t.VARCHAR, flen=40)


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((A,), (A, g()), ["g"]),
        ((A,), (A, g(stored=False)), []),
        ((A, g()), (A, g()), []),
        ((A, g()), (A, g("hex( `A` )")), []),
        ((A, g()), (A, g("lower(`a`)")), ["g"]),
        ((A, PLAIN), (A, g()), ["g"]),
        ((A, g()), (A, PLAIN), []),
        ((A, g()), (WIDE, g()), []),
        ((WIDE, g()), (A, g()), ["g"]),
        ((A, g()), (TEXT, g()), ["g"]),
        ((TEXT, g()), (LONGER, g()), []),
        ((LONGER, g()), (TEXT, g()), ["g"]),
        ((WIDE, g()), (TEXT, g()), ["g"]),
        ((TEXT, g()), (A, g()), ["g"]),
        ((TEXT, g()), (TEXT, g()), []),
        ((BYTES, g()), (BYTES, g()), []),
        ((BYTES, g()), (MORE, g()), ["g"]),  # a longer BINARY is padded
        ((FEW, g()), (MANY, g()), []),
        ((FEW, g()), (SAME, g()), ["g"]),
        ((LETTERS, g()), (LONG_LETTERS, g()), []),
        ((TEXT, g()), (LATIN, g()), ["g"]),
        ((A, g()), (col("b", t.SHORT), g("hex(`b`)")), []),
        # By way of another generated column.
        ((A, via(), g("hex(`v`)")), (A, via("`a` + 1"), g("hex(`v`)")), ["g"]),
        ((WIDE, via(), g("hex(`v`)")), (A, via(), g("hex(`v`)")), ["g"]),
        ((A, via(), g("hex(`v`)")), (A, via(), g("hex(`v`)")), []),
    ],
)  # fmt: skip
def test_columns_that_a_ddl_computes_anew(before: tuple[Json, ...], after: tuple[Json, ...], found: list[str]) -> None:
    #
    assert [column.name for column in list_recomputed(one(*before), one(*after))] == found


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ((A, g()), (NO_NULL, g()), [("g", "a")]),
        ((A, g()), (NO_NULL, g(stored=False)), []),
        ((A, via(), g("hex(`v`)")), (NO_NULL, via(), g("hex(`v`)")), [("g", "a")]),
        ((A, g()), (col("a", t.LONG, not_null=True), g()), [("g", "a")]),
        ((A, g("1")), (NO_NULL, g("1")), []),
        ((NO_NULL, g()), (A, g()), []),
        ((NO_NULL, g()), (NO_NULL, g()), []),
        ((A, g()), (NO_NULL, g("lower(`a`)")), []),  # it is computed anew in all rows: `list_recomputed`
        ((A,), (NO_NULL, g()), []),
    ],
)  # fmt: skip
def test_stored_columns_that_read_a_column_whose_nulls_become_zeros(
    before: tuple[Json, ...], after: tuple[Json, ...], found: list[tuple[str, str]]
) -> None:
    #
    pairs = find_filled_operands(one(*before), one(*after))
    assert [(column.name, former.name) for column, former in pairs] == found
