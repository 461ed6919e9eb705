"""Expressions over unsigned numbers at the target (`binlake.dialect.expressions`): no error, whatever the sql_mode is,
and the values that the expression itself has in a session with NO_UNSIGNED_SUBTRACTION, or without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from support.mariadb import MariaDb, execute
from support.tabledefs import col, primary, table
from support.windows import target_of

from binlake.common.sql import Dialect
from binlake.dialect import DdlText, map_ddl
from binlake.errors import TargetRefused
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target import TargetSession
from binlake.target.session.session import SQL_MODE

pytestmark = pytest.mark.mariadb

COLUMNS = (
    "id INT PRIMARY KEY, a INT UNSIGNED, g BIGINT UNSIGNED, y YEAR, b BIT(8), d DATETIME, i INT, s VARCHAR(9),"
    " z INT(5) UNSIGNED ZEROFILL"
)
ROWS = [
    "(1, 3, 3, 1990, b'11', '2020-01-02 03:04:05', 2, 'abc', 3)",
    "(2, 4294967295, 18446744073709551610, 2155, b'11111111', '1999-12-31', -7, '', 99999)",
    "(3, 0, 0, 0, b'0', NULL, 0, NULL, 0)",
]
EXPRESSIONS = [
    "`a`-5", "5-`a`", "(`a`)-5", "`a`-`i`", "`i`-3-`a`", "`g`-5", "`g`-`a`", "`y`-2000", "`b`-5", "year(`d`)-3000",
    "crc32(`s`)-99999999999", "cast(`i` as unsigned)-5", "mod(`a`,2)-5", "`a` div 2-5", "`a`%2-5", "coalesce(`a`,1)-9",
    "abs(`a`)-9", "nullif(`a`,1)-9", "round(`a`)-5", "floor(`a`)-5", "case when `i`>1 then `a` else 2 end-9",
    "if(`a`-5<0,'below','above')", "concat(`s`,`a`-5)", "round((`a`-5)/3,2)", "greatest(`a`-5,`i`)", "`a`*2-9",
    "-`a`-1",
    "(`a`-5) between -3 and 3", "json_object('x',`a`-5)", "concat(`z`,':',`y`,':',`a`-5)", "hex(`g`+0)", "`i`-1",
    "(`a`&7)+1", "`a`/3-1 > 2", "`a`*`a`*`a`-`a`", "(`a`+`g`)*`a`",
]  # fmt: skip
UNREADABLE = ["`a`*-1", "`a`+-5", "`a`+`i`"]
"""What no sql_mode computes for each row: the source has the rows, because nobody read the column."""
MODES = (SQL_MODE, f"{SQL_MODE},NO_UNSIGNED_SUBTRACTION")


@pytest.fixture
def session(empty_server: MariaDb) -> Iterator[TargetSession]:
    fill = f"INSERT INTO app.u VALUES {','.join(ROWS)}"
    execute(empty_server, "CREATE DATABASE app", f"CREATE TABLE app.u ({COLUMNS})", fill)
    with closing(TargetSession(target_of(empty_server))) as found:
        yield found


def define(*more: dict[str, Any], **options: Any) -> TableDef:
    zero = col("z", unsigned=True)
    zero["type"]["Flag"] |= t.FLAG_ZEROFILL
    own = [
        col("id", not_null=True), col("a", unsigned=True), col("g", t.LONGLONG, unsigned=True),
        col("y", t.YEAR, unsigned=True), col("b", t.BIT, flen=8, unsigned=True), col("d", t.DATETIME), col("i"),
        col("s", t.VARCHAR, flen=9), zero,
    ]  # fmt: skip
    return table("u", *own, *more, keys=(primary("id"),), db="app", **options)


def apply(session: TargetSession, query: str, after: TableDef, dialect: Dialect) -> None:
    ddl = DdlText(7, "app", "u", query, DdlSide((), (define(),)), DdlSide((), (after,)))
    for statement in map_ddl(ddl, dialect).sql:
        session.execute(statement)


def read_each(session: TargetSession, expression: str) -> list[str]:
    """The expression's values by id, as text; `error` for a row where it is out of range."""
    values = []
    for at in range(1, len(ROWS) + 1):
        try:
            found = session.fetch_value(f"SELECT CONCAT({expression}) FROM app.u WHERE id = {at}")
            values.append(found.decode() if isinstance(found, bytes) else str(found))
        except TargetRefused as error:
            if "code=1690" not in str(error):
                raise
            values.append("error")
    return values


def test_virtual_columns_have_the_values_of_every_sql_mode_and_never_stop_a_write(
    session: TargetSession, server: MariaDb
) -> None:
    known = []
    for mode in MODES:
        session.execute(f"SET SESSION sql_mode = '{mode}'")
        known.append([read_each(session, one) for one in EXPRESSIONS])
    session.execute(f"SET SESSION sql_mode = '{SQL_MODE}'")
    expressions = [*EXPRESSIONS, *UNREADABLE]
    added = [col(f"v{n}", t.VARCHAR, flen=60, generated_expr_string=e) for n, e in enumerate(expressions)]
    specs = [f"ADD COLUMN `v{n}` VARCHAR(60) GENERATED ALWAYS AS ({e}) VIRTUAL" for n, e in enumerate(expressions)]
    apply(session, f"ALTER TABLE `u` {', '.join(specs)}", define(*added), server.name)
    for at, row in enumerate(ROWS):
        # Each way in which finalize writes, and an ALTER that copies the table.
        for verb, tail in (("REPLACE", ""), ("INSERT", " ON DUPLICATE KEY UPDATE a = VALUES(a), g = VALUES(g)")):
            session.execute(f"{verb} INTO app.u (id,a,g,y,b,d,i,s,z) VALUES {row}{tail}")
        session.execute(f"UPDATE app.u SET s = CONCAT(s, '') WHERE id = {at + 1}")
    session.execute("ALTER TABLE app.u MODIFY i BIGINT, ALGORITHM = COPY")
    session.execute("CREATE INDEX by_difference ON app.u (v0)")
    shown = ", ".join(f"v{n}" for n in range(len(expressions)))
    rows = session.fetch_rows(f"SELECT {shown} FROM app.u ORDER BY id")
    for n, expression in enumerate(EXPRESSIONS):
        found = [str(row[n]) for row in rows]
        default, signed = known[0][n], known[1][n]
        wanted = [b if a == "error" else a for a, b in zip(default, signed, strict=True)]
        assert found == [w if w != "error" else f for w, f in zip(wanted, found, strict=True)], expression
    assert "error" in known[0][0], "the matrix tests nothing: a difference below zero was no error"
    assert [str(row[-3]) for row in rows] == ["-3", "-4294967295", "0"]


def test_check_over_a_difference_lets_the_source_s_rows_in(session: TargetSession, server: MariaDb) -> None:
    name = {"O": "low", "L": "low"}
    check = {"constraint_name": name, "expr_string": "`a`-5>-9", "enforced": True}
    after = define(constraint_info=[check])
    apply(session, "ALTER TABLE `u` ADD CONSTRAINT `low` CHECK (`a`-5>-9)", after, server.name)
    session.execute("INSERT INTO app.u (id, a) VALUES (4, 1)")
    assert session.fetch_column("SELECT a FROM app.u WHERE id = 4") == [1]


@pytest.mark.servers("mysql")
def test_index_on_a_difference_lets_the_source_s_rows_in(session: TargetSession, server: MariaDb) -> None:
    apply(session, "ALTER TABLE `u` ADD INDEX `low`((`a`-5), `i`)", define(), server.name)
    session.execute("INSERT INTO app.u (id, a) VALUES (4, 1)")
    apply(session, "CREATE INDEX `lower` ON `u` (`a`, (`a`-6))", define(), server.name)
    session.execute("INSERT INTO app.u (id, a) VALUES (5, 1)")
    assert session.fetch_column("SELECT id FROM app.u FORCE INDEX (low) WHERE a = 1 ORDER BY id") == [4, 5]
