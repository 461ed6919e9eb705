"""A table that is created from its definition has this definition: every type, default and key, on both servers."""

from __future__ import annotations

import contextlib

import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, key, primary, table
from support.windows import target_of

from binlake.dialect.mapping import build_create_statements
from binlake.rows.schema import mysqltypes as t
from binlake.target.definitions.definitions import compare_definitions, expect_tables, read_definitions
from binlake.target.session.session import TargetSession

EVERYTHING = table(
    "or`der",
    col("id", t.LONGLONG, not_null=True, unsigned=True),
    col("part", t.VARCHAR, not_null=True, flen=20, charset="latin1", collate="latin1_swedish_ci"),
    col("u8", t.VARCHAR, flen=20, charset="utf8", collate="utf8_general_ci", default="it's \\ so"),
    col("ai", t.VARCHAR, flen=20, collate="utf8mb4_0900_ai_ci"),
    col("e", t.ENUM, elems=("", "it's", "b\\c"), default="it's"),
    col("s", t.SET, elems=("a", "b"), charset="latin1"),
    col("d", t.NEWDECIMAL, flen=12, decimal=2, default="1.50", not_null=True),
    col("f", t.FLOAT),
    col("b", t.BIT, flen=10),
    col("raw", t.VARSTRING, flen=8, charset="binary"),
    col("blobs", t.BLOB, charset="binary"),
    col("note", t.BLOB, comment="a 'note'"),
    col("j", t.JSON),
    col("y", t.YEAR),
    col("at", t.TIMESTAMP, decimal=3, default="CURRENT_TIMESTAMP"),
    col("moment", t.DATETIME, decimal=6),
    col("clock", t.DURATION, decimal=1),
    col("twice", t.LONGLONG, generated_expr_string="`y` * 2", generated_stored=True),
    col("shown", t.LONGLONG, generated_expr_string="`y` + 1"),
    keys=(
        primary("id", "part"),
        key("u", ("u8", 5), "e"),
        key("plain", "d", "f", unique=False),
        key("words", "note", unique=False),
        key("beginning", ("note", 9), unique=False),
    ),
    comment="all 'types'",
)
KEYLESS = table("log", col("line", t.VARCHAR, flen=9))
HANDLE = table("h", col("id", t.LONG, not_null=True), keys=(primary("id"),))


@pytest.mark.mariadb
def test_created_table_has_the_definition(empty_server: MariaDb) -> None:
    execute(empty_server, "CREATE DATABASE d CHARACTER SET latin1")
    tables = (EVERYTHING, KEYLESS, HANDLE)
    with contextlib.closing(TargetSession(target_of(empty_server))) as session:
        for made in tables:
            for statement in build_create_statements(made, empty_server.name, 7):
                session.execute(statement)
        expected = expect_tables(tables, empty_server.name)
        actual = read_definitions(session, expected.names, empty_server.name)
    assert compare_definitions(expected, actual) == []
    text = rows(empty_server, "SHOW CREATE TABLE d.`or``der`")[0][1]
    assert "COMMENT='all ''types'''" in text
    assert "COMMENT 'a ''note'''" in text
    assert "`plain`" in text
    assert "`beginning`" in text
    # An index on a whole TEXT is none that every server can have.
    assert "`words`" not in text
    shown = {name: default for name, default in rows(
        empty_server,
        "SELECT COLUMN_NAME, COLUMN_DEFAULT FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'd'",
    )}  # fmt: skip
    assert "current_timestamp" in str(shown["at"]).lower()
    assert str(shown["d"]).strip("'") == "1.50"
