"""Values that an ALTER gives to old rows by the server's own choice (R-29)."""

from __future__ import annotations

from typing import Any

import pytest
from support.tabledefs import col, primary, table

from binlake.dialect.givenvalues import is_made_up, list_requirements, reads_clock
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.statements.ddlsteps import RequireNoRows

UTC = SourceSession("+00:00", family="mysql", moment="1700000000.5")
ELSEWHERE = SourceSession("+05:00", family="mysql", moment="1700000000.5")
TIMELESS = SourceSession("+00:00", family="mysql")
OF_MARIADB = SourceSession("+00:00", family="mariadb", moment="1700000000.5")
DRAWN = "filled the new column c by an expression with values of its own"


def numbered(name: str = "id", **more: Any) -> dict[str, Any]:
    made = col(name, t.LONGLONG, not_null=True, **more)
    made["type"]["Flag"] |= t.FLAG_AUTO_INCREMENT
    return made


def filled(expression: str, **more: Any) -> dict[str, Any]:
    return col("c", t.VARCHAR, flen=90, default=expression, default_is_expr=True, **more)


def require(before: tuple[Any, ...], after: tuple[Any, ...], session: SourceSession) -> list[tuple[str, str]]:
    """(the rows that there must not be, why) of each requirement."""
    steps = list_requirements("`q`", table("q", *before), table("q", *after), session)
    found = [RequireNoRows.find_in(step) for step in steps]
    assert all(one is not None and one.table == "`q`" and "binlake table aside" in one.why for one in found)
    return [(one.where, one.why) for one in found if one is not None]


@pytest.mark.parametrize(
    ("expression", "session", "made_up"),
    [
        ("uuid()", UTC, True),
        ("rand()", UTC, True),
        ("concat('a', lower('B'))", UTC, False),
        ("1 + 2", TIMELESS, False),
        ("now()", UTC, False),
        ("current_timestamp", UTC, False),
        ("now()", ELSEWHERE, True),
        ("now()", TIMELESS, True),
        ("concat('a')", ELSEWHERE, False),
        ("curdate(", UTC, False),
        ("uuid() / 3", UTC, True),
        ("date_format('2020-03-01', '%Y')", UTC, False),
        ("utc_date() + interval 1 day", UTC, False),
        ("replace('a b', 'a', 'b')", OF_MARIADB, False),
    ],
)
def test_only_defaults_that_the_target_computes_alike_fill_old_rows(
    expression: str, session: SourceSession, made_up: bool
) -> None:
    #
    found = require((col("a"),), (col("a"), filled(expression)), session)
    assert [where for where, _ in found] == (["TRUE"] if made_up else [])
    assert all(DRAWN in why for _, why in found)


@pytest.mark.parametrize(
    ("expression", "variable"),
    [("1 / 3", "div_precision_increment"), ("date_format('2020-03-01', '%W')", "lc_time_names")],
)
def test_a_default_that_depends_on_a_variable_names_it(expression: str, variable: str) -> None:
    # no log has the variable
    (step,) = list_requirements("`q`", table("q", col("a")), table("q", col("a"), filled(expression)), UTC)
    found = RequireNoRows.find_in(step)
    assert found is not None
    assert (found.where, found.variable) == ("TRUE", variable)
    assert f"filled the new column c with its session's {variable}" in found.why
    assert 'source.session-variables = "default"' in found.why
    assert "binlake table aside" in found.why
    assert require((col("a"), filled(expression)), (col("a"), filled(expression)), UTC) == []


def test_a_character_set_that_the_server_shows_with_question_marks_has_no_declared_default() -> None:
    made = filled("hex(_latin1'?')")
    (step,) = list_requirements("`q`", table("q", col("a")), table("q", col("a"), made), SourceSession(family="mysql"))
    found = RequireNoRows.find_in(step)
    assert found is not None
    assert (found.variable, "its session's character_set_connection" in found.why) == ("", True)
    assert "session-variables" not in found.why


def test_a_tidb_refuses_such_statements_itself() -> None:
    assert require((col("a"),), (col("a"), filled("uuid()")), SourceSession()) == []


def test_columns_that_exist_or_are_generated_are_not_filled() -> None:
    made = filled("uuid()"), filled("uuid()", generated_expr_string="`a`", generated_stored=True)
    assert require((col("a"), made[0]), (col("a"), made[0]), UTC) == []
    assert require((col("a"),), (col("a"), made[1]), UTC) == []
    assert require((col("a"),), (col("a"), col("c", default="uuid()")), UTC) == []


@pytest.mark.parametrize(("mode", "where"), [(0, "`old` IS NULL OR `old` = 0"), (1 << 19, "`old` IS NULL")])
def test_rows_that_the_source_numbered_are_named(mode: int, where: str) -> None:
    # NO_AUTO_VALUE_ON_ZERO
    session = SourceSession("+00:00", family="mysql", sql_mode=mode)
    (found,) = require((col("old"),), (numbered("id"),), session)
    assert found[0] == where
    assert "numbered rows with NULL or 0 in column id" in found[1]
    (new,) = require((), (numbered("id"),), session)
    assert new[0] == "TRUE"
    assert "numbered old rows in the new column id" in new[1]
    assert require((numbered("old"),), (numbered("id"),), session) == []
    assert require((col("old"),), (col("id"),), session) == []


def test_which_columns_have_values_beyond_their_definition() -> None:
    made = table("q", col("a"), numbered("n"), filled("uuid()"), col("g", generated_expr_string="`a`"),
                 keys=(primary("n"),)).columns  # fmt: skip
    assert [is_made_up(column) for column in made] == [False, True, True, False]
    auto = numbered("g", generated_expr_string="`a`")
    assert [is_made_up(column) for column in table("q", col("a"), auto).columns] == [False, False]


@pytest.mark.parametrize(
    ("default", "is_expression", "reads"),
    [("now()", True, True), ("current_date", True, True), ("uuid()", True, False), ("now()", False, False),
     (None, True, False), ("concat('now()')", True, False)],
)  # fmt: skip
def test_defaults_that_read_the_clock(default: str | None, is_expression: bool, reads: bool) -> None:
    (column,) = table("q", col("c", t.VARCHAR, default=default, default_is_expr=is_expression)).columns
    assert reads_clock(column) is reads
