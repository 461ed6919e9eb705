"""The variables of a session on which generated columns depend and that no log has: measured on servers."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from pymysql.err import OperationalError
from support.mariadb import MariaDb, empty_database
from support.tabledefs import col, table

from binlake.dialect.givenvalues import find_unlogged_variable, require_no_unlogged_values
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession

DEPENDING = {
    "d / 3": "div_precision_increment",
    "CASE WHEN (`d` / 3) > 3.3366667 THEN 1 ELSE 0 END": "div_precision_increment",
    "CONCAT('/', d / 3)": "div_precision_increment",
    "WEEK(day)": "default_week_format",
    "EXTRACT(WEEK FROM day)": "default_week_format",
    "DAYNAME(day)": "lc_time_names",
    "monthname(`at`)": "lc_time_names",
    "DATE_FORMAT(day, '%W')": "lc_time_names",
    "date_format(`at`,_utf8mb4'%d %b')": "lc_time_names",
    "DATE_FORMAT(at, '%M %Y')": "lc_time_names",
    "DATE_FORMAT(day, '%a')": "lc_time_names",
    "DATE_FORMAT(day, v)": "lc_time_names",
    "DATE_FORMAT(day, '%W ' '%d')": "lc_time_names",
    "DATE_FORMAT(day, CONCAT('%W', '%d'))": "lc_time_names",
    "HEX(AES_ENCRYPT(v, 'key'))": "block_encryption_mode",
    "AES_DECRYPT(v, 'key')": "block_encryption_mode",
}
INDEPENDENT = (
    "d * 3", "d DIV 3", "d % 3", "HEX(v)", "CONCAT(v, '/')", "WEEK(day, 3)", "WEEK((day), 3)", "YEARWEEK(day)",
    "WEEKOFYEAR(day)", "day + INTERVAL 1 WEEK",
    "DATE_FORMAT(day, '%Y-%m-%d %j %u')", "EXTRACT(YEAR_MONTH FROM day)", "TIME_FORMAT(at, '%H %p')", "FORMAT(d, 2)",
    "STR_TO_DATE('3 March 2020', '%d %M %Y')", "DAYOFWEEK(day)", "SHA2(v, 256)", "`week` + 1", "`dayname`",
    "ROUND(d, 1)", "TRUNCATE(d, 1)", "POW(d, 0.5)",
)  # fmt: skip
OTHER = {
    "div_precision_increment": ("4", "9"), "default_week_format": ("0", "3"), "lc_time_names": ("'en_US'", "'de_DE'"),
    "block_encryption_mode": ("'aes-128-ecb'", "'aes-256-ecb'"), "default_regex_flags": ("''", "'EXTENDED'"),
}  # fmt: skip


@pytest.mark.parametrize("expression", [*DEPENDING, *INDEPENDENT])
@pytest.mark.parametrize("family", ["mysql", "mariadb"])
def test_variable_of_an_expression(expression: str, family: str) -> None:
    #
    assert find_unlogged_variable(expression, family) == DEPENDING.get(expression, "")


@pytest.mark.parametrize("expression", ["v REGEXP 'a b'", "REGEXP_REPLACE(v, 'a', '')", "`v` rlike 'a'"])
def test_only_mariadb_has_flags_of_regular_expressions(expression: str) -> None:
    assert find_unlogged_variable(expression, "mariadb") == "default_regex_flags"
    assert find_unlogged_variable(expression, "mysql") == ""


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("hex(_latin1'?')", True),
        ("hex(_latin1'a?b')", True),
        ("hex(_ucs2'ä')", True),
        ("concat(_latin1'abc',`v`)", False),
        ("hex(_utf8mb4'ä?')", False),
        ("hex(_utf8mb3'ä?')", False),
        ("hex(_binary'?')", False),
        ("hex('ä?')", False),
    ],
)
def test_a_mysql_loses_letters_of_literals_in_other_character_sets(expression: str, found: bool) -> None:
    # measured, test_e2e_generated
    assert find_unlogged_variable(expression, "mysql") == ("character_set_connection" if found else "")
    assert find_unlogged_variable(expression, "mariadb") == ""


@pytest.mark.parametrize(
    ("family", "dialect", "steps"), [("mariadb", "mysql", 1), ("mysql", "mariadb", 0), ("", "mariadb", 1)]
)
def test_source_family_decides_else_the_targets(family: Any, dialect: Any, steps: int) -> None:
    made = table("c", col("v", t.VARCHAR), col("g", generated_expr_string="v regexp 'a b'", generated_stored=True))
    once, session = [made.columns[1]], SourceSession(family=family)
    assert len(require_no_unlogged_values("`d`.`c`", once, made, session, dialect)) == steps
    assert require_no_unlogged_values("`d`.`c`", once, None, session, dialect) == []


@pytest.mark.mariadb
def test_list_is_what_the_server_does(server: MariaDb) -> None:
    """R-34: each expression depends on the named variable, and on none if none is named, if the server stores it."""
    with empty_database(server, "un"), server.connect() as link, link.cursor() as cursor:
        cursor.execute("CREATE TABLE un.t (d DECIMAL(12,2), v VARCHAR(40), day DATE, at DATETIME, `week` INT,"
                       " `dayname` INT)")  # fmt: skip
        cursor.execute("INSERT INTO un.t VALUES (10.01, 'x%W', '2021-01-03', '2021-03-03 04:05:06', 1, 2)")
        flags = ("'a b' REGEXP 'ab'",) if server.name == "mariadb" else ()
        stored = [one for one in (*DEPENDING, *INDEPENDENT, *flags) if may_store(cursor, one)]
        found: dict[str, set[str]] = {one: set() for one in stored}
        for variable, values in OTHER.items():
            for one, of_first, of_other in zip(
                stored, *(compute(cursor, stored, variable, v) for v in values), strict=True
            ):
                found[one] |= {variable} if of_first != of_other else set()
    named = {one: {find_unlogged_variable(one, server.name)} - {""} for one in stored}
    assert [(one, found[one]) for one in stored if found[one] - named[one]] == []
    # A MariaDB has no encryption mode, and a table that is open keeps flags; nothing was encrypted with the key.
    sure = [one for one in stored if server.name == "mysql" and "DECRYPT" not in one] or ["d / 3"]
    assert [(one, found[one]) for one in sure if found[one] != named[one]] == []


def may_store(cursor: Any, expression: str) -> bool:
    """Whether the server has such columns: a MariaDB has none that depends on some variables (error 1901)."""
    try:
        cursor.execute(f"ALTER TABLE un.t ADD g VARBINARY(90) AS ({expression}) STORED")
    except OperationalError:
        return False
    cursor.execute("ALTER TABLE un.t DROP COLUMN g")
    return True


def compute(cursor: Any, expressions: list[str], variable: str, value: str) -> tuple[object, ...]:
    """The values of stored generated columns that a session with `variable` adds."""
    with suppress(OperationalError):  # a variable of the other family
        cursor.execute(f"SET SESSION {variable} = {value}")
    added = (f"ADD g{n} VARBINARY(90) AS ({one}) STORED" for n, one in enumerate(expressions))
    cursor.execute(f"ALTER TABLE un.t {', '.join(added)}")
    with suppress(OperationalError):
        cursor.execute(f"SET SESSION {variable} = DEFAULT")
    cursor.execute(f"SELECT {', '.join(f'g{n}' for n in range(len(expressions)))} FROM un.t")
    (found,) = cursor.fetchall()
    cursor.execute(f"ALTER TABLE un.t {', '.join(f'DROP COLUMN g{n}' for n in range(len(expressions)))}")
    return tuple(found)
