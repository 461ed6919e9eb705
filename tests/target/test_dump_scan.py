"""INSERT statements are cut out of a dump's data file; no byte of a value is mistaken for the end of one."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.dumps import inserts

from binlake.errors import ConfigError
from binlake.target import dump
from binlake.target.dump import read_inserts

FILE = Path("d.t.000000000.sql")
NASTY = st.text(st.sampled_from("a;'\"`\\()-/*# \n\0ü🐬,"), max_size=12)
VALUES = st.one_of(NASTY, st.integers(-5, 5), st.none(), st.binary(max_size=4))


def split(text: str, table: str = "t") -> list[tuple[bytes, int]]:
    return [(one.rest, one.rows) for one in read_inserts(FILE, io.BytesIO(text.encode()), table)]


@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), max_size=9), st.sampled_from("'\""), st.integers(1, 40))
def test_random_rows_are_cut_correctly_at_any_block_boundary(lines: list[list[object]], mark: str, block: int) -> None:
    whole, dump._BLOCK = dump._BLOCK, block
    try:
        found = split(
            "/*!40101 SET NAMES binary*/;\n-- a note; no statement\n" + inserts("t;(", lines, mark=mark, a_statement=2),
            "t;(",
        )
    finally:
        dump._BLOCK = whole
    wanted = [lines[start : start + 2] for start in range(0, len(lines), 2)]
    assert [rows for _, rows in found] == [len(part) for part in wanted]
    texts = [inserts("x", part, mark=mark, a_statement=2) for part in wanted]
    assert [rest for rest, _ in found] == [
        text.removeprefix("INSERT INTO `x`").removesuffix(";\n").encode() for text in texts
    ]


@pytest.mark.parametrize(
    ("text", "rest", "rows"),
    [
        ("INSERT INTO `t` (`a`,`b(`) VALUES (1,2),(3,-4);", b" (`a`,`b(`) VALUES (1,2),(3,-4)", 2),
        ("insert ignore into `d`.`t` values(1);", b" values(1)", 1),
        ("/* dumped */ REPLACE INTO t VALUES('it''s');", b" VALUES('it''s')", 1),
        # mydumper writes JSON inside a function call, whose parentheses contain strings.
        (
            'INSERT INTO `t` VALUES(1,CONVERT("{\\"a)(\\": 1}" USING UTF8MB4)),(2,NULL);',
            b' VALUES(1,CONVERT("{\\"a)(\\": 1}" USING UTF8MB4)),(2,NULL)',
            2,
        ),
        (
            "INSERT INTO `t` VALUES (ST_GeomFromText(CONCAT('POINT(1 ',\"2)\"))),(NULL)/*;(*/;",
            b" VALUES (ST_GeomFromText(CONCAT('POINT(1 ',\"2)\"))),(NULL)/*;(*/",
            2,
        ),
        ("INSERT INTO `odd``n(`.`t` VALUES (1);", b" VALUES (1)", 1),
        ('INSERT INTO `t` VALUES (_binary "\\"(;")', None, 0),
    ],
)
def test_insert_forms_are_recognized(text: str, rest: bytes | None, rows: int) -> None:
    if rest is None:
        with pytest.raises(ConfigError, match="is cut off") as caught:
            split(text)
        assert caught.value.where["file"] == str(FILE)
    else:
        assert split(text) == [(rest, rows)]


@pytest.mark.parametrize("text", ["DELETE FROM t;", "INSERT INTO `t` VALUES (1); DROP TABLE t;"])
def test_other_statements_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an INSERT"):
        split(text)


@pytest.mark.parametrize("text", ["'C:\\temp'", '"50\\%"', "1, 'whole', 'a''b\\x'"])
@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_invalid_backslash_escape_reveals_a_dump_without_escapes(text: str, block: int) -> None:
    # NO_BACKSLASH_ESCAPES, dumpling --escape-backslash=false: read with escapes, 'C:\temp' would contain a tab
    whole, dump._BLOCK = dump._BLOCK, block
    try:
        with pytest.raises(ConfigError, match="a backslash that begins no known escape"):
            split(f"INSERT INTO `t` VALUES (2),({text});\nINSERT INTO `t` VALUES (3);")
    finally:
        dump._BLOCK = whole
    assert split(r"""INSERT INTO `t` VALUES ('\0\n\r\Z\\\'\"');""") != []


@pytest.mark.parametrize(
    "text",
    ["/*!40101 SET NAMES latin1*/;", "SET NAMES 'gbk';", "/*!40103 SET TIME_ZONE='+08:00' */;",
     "SET SESSION time_zone = 'Europe/Berlin';", "/*!40101 SET SQL_MODE='STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES' */;",
     "SET sql_mode='ANSI';"],
)  # fmt: skip
def test_file_that_needs_another_session_is_refused(text: str) -> None:
    # its texts, times or quotes would have another meaning
    with pytest.raises(ConfigError, match="has a session setting that is not supported"):
        split(f"{text}\nINSERT INTO `t` VALUES (1);")


def test_rows_of_another_table_are_refused() -> None:
    with pytest.raises(ConfigError, match="rows of a table other than the one in its name"):
        split("INSERT INTO `u` VALUES (1);")


def test_usual_session_settings_are_skipped() -> None:
    usual = "/*!40101 SET NAMES binary*/;\n/*!40103 SET TIME_ZONE='+00:00' */;\nSET SQL_MODE='NO_AUTO_VALUE_ON_ZERO';"
    assert split(f"{usual}SET @OLD_TIME_ZONE='SYSTEM';") == []
    assert split("SET NAMES utf8mb4;\nLOCK TABLES `t` WRITE;\nUNLOCK TABLES;\n/*!40101 SET x=1*/;") == []
