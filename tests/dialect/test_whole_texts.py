"""Keys and defaults of a MariaDB's TEXT and BLOB in the words of a MySQL (on servers: test_e2e_mariadb_to_mysql)."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.tabledefs import col, key, primary, table

from binlake.common.sql import Dialect
from binlake.dialect import DdlText, map_ddl
from binlake.dialect.tokens import tokenize
from binlake.dialect.wholetexts import names_whole_text_key, put_key_lengths
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import SourceSession
from binlake.rows.schema.state import DdlSide
from binlake.target.definitions.forms import build_expected_form

ID, TEXT, WORD = col("id", not_null=True), col("a", t.BLOB), col("b", t.VARCHAR, flen=40)
PLAIN = key("ka", ("a", 768), unique=False)
HASH, OTHER = key("ua", "id", "a"), key("ub", "b")
STRICT = SourceSession(family="mariadb", sql_mode=1 << 22)


def of(*columns: dict[str, Any], keys: tuple[Any, ...] = ()) -> TableDef:
    return table("t", *columns, keys=(primary("id"), *keys))


def say(query: str, after: TableDef, before: TableDef | None = None, dialect: Dialect = "mysql") -> str:
    """What the target runs, with single blanks; in brackets the reason why it runs nothing."""
    sides = DdlSide((), (before,) if before is not None else ()), DdlSide((), (after,), STRICT)
    mapped = map_ddl(DdlText(7, "d", "t", query, *sides), dialect)
    text = "; ".join(one for one in mapped.sql if re.match("CREATE|ALTER|DROP", one)) or f"[{mapped.reason}]"
    return re.sub(r"\s+", " ", re.sub(r" ?([(),]) ?", r"\1", text))


ADD = "ALTER TABLE `t` "
INDEXES = [
    (ADD + "ADD INDEX `ka` (`a`)", (), (PLAIN,), ADD + "ADD INDEX `ka`(`a`(768))"),
    (ADD + "ADD INDEX `ka` (`a`(9))", (), (key("ka", ("a", 9), unique=False),), ADD + "ADD INDEX `ka`(`a`(9))"),
    (ADD + "ADD KEY (`a` DESC, `b`)", (), (key("a", ("a", 700), "b", unique=False),),
     ADD + "ADD KEY(`a`(700)DESC,`b`)"),
    (ADD + "ADD UNIQUE `ua` (`id`, `a`)", (), (HASH,), "[MySQL has no unique key on a whole text]"),
    (ADD + "ADD UNIQUE `ua` (`id`, `a`), ADD `c` INT", (), (HASH,), ADD + "ADD `c` INT"),
    (ADD + "ADD UNIQUE `ub` (`b`)", (), (OTHER,), ADD + "ADD UNIQUE `ub`(`b`)"),
    (ADD + "DROP INDEX `ua`, DROP KEY `ub`", (HASH, OTHER), (), ADD + "DROP KEY `ub`"),
    ("CREATE UNIQUE INDEX `ua` ON `t` (`id`, `a`)", (), (HASH,), "[MySQL has no unique key on a whole text]"),
    ("CREATE INDEX `ka` ON `t` (`a`)", (), (PLAIN,), "CREATE INDEX `ka` ON `t`(`a`(768))"),
    ("DROP INDEX `ua` ON `t`", (HASH,), (), "[MySQL has no unique key on a whole text]"),
    ("DROP INDEX `ub` ON `t`", (OTHER,), (), "DROP INDEX `ub` ON `t`"),
    (ADD + "DROP INDEX IF EXISTS `ua`, ADD `c` INT", (HASH,), (), ADD + "ADD `c` INT"),
    (ADD + "ADD KEY `ka` (`a`)", (), (key("ka", ("a", 1), unique=False),), ADD + "ADD KEY `ka`(`a`(1))"),
    (ADD + "ADD KEY `kx` (`id`, `a`)", (HASH,), (HASH, key("kx", "id", ("a", 700), unique=False)),
     ADD + "ADD KEY `kx`(`id`,`a`(700))"),
    (ADD + "ADD FULLTEXT INDEX (`a`)", (), (), ADD + "ADD FULLTEXT INDEX(`a`)"),
    (ADD + "DROP INDEX `ka`, ADD INDEX `ka` (`a`)", (key("ka", "b", unique=False),), (PLAIN,),
     ADD + "DROP INDEX `ka`,ADD INDEX `ka`(`a`(768))"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "before", "after", "expected"), INDEXES)
def test_indexes_on_whole_texts(query: str, before: tuple[Any, ...], after: tuple[Any, ...], expected: str) -> None:
    #
    sides = of(ID, TEXT, WORD, keys=after), of(ID, TEXT, WORD, keys=before)
    assert say(query, *sides) == expected
    assert "768" not in say(query, *sides, dialect="mariadb")
    assert "has no" not in say(query, *sides, dialect="mariadb")


def test_a_table_is_created_without_its_hash_keys_and_expected_so() -> None:
    made = of(ID, TEXT, WORD, keys=(PLAIN, HASH, OTHER))
    query = "CREATE TABLE `t` (`id` INT, `a` TEXT DEFAULT 'x', KEY `ka` (`a`), UNIQUE `ua` (`id`, `a`), UNIQUE (`b`))"
    assert say(query, made).startswith(
        "CREATE TABLE `t`(`id` INT,`a` TEXT DEFAULT('x'),KEY `ka`(`a`(768)),UNIQUE(`b`))"
    )
    keys: dict[Dialect, list[int]] = {
        dialect: sorted(len(index) for index in build_expected_form(made, dialect).unique_keys)
        for dialect in ("mysql", "mariadb")
    }
    assert keys == {"mysql": [1, 1], "mariadb": [1, 1, 2]}


def test_the_only_key_of_a_table_is_not_left_out() -> None:
    """Rows are known by it, so without it a target would double them; the server refuses it."""
    text = col("a", t.BLOB, not_null=True)
    only = table("t", text, keys=(key("ua", "a"),))
    assert say(ADD + "ADD UNIQUE `ua` (`a`)", only, table("t", text)) == ADD + "ADD UNIQUE `ua`(`a`)"


LONG, SHORT = col("b", t.BLOB), col("b", t.VARCHAR, flen=9)
TYPES = [
    (WORD, LONG, (key("kb", "b", unique=False),), (key("kb", ("b", 768), unique=False),),
     "DROP INDEX `kb`,ADD INDEX `kb`(`b`(768))"),
    (WORD, LONG, (OTHER,), (OTHER,), "DROP INDEX `ub`"),
    (LONG, SHORT, (OTHER,), (OTHER,), "ADD UNIQUE INDEX `ub`(`b`)"),
    (LONG, LONG, (OTHER,), (OTHER,), ""),
    (WORD, SHORT, (OTHER,), (OTHER,), ""),
    (WORD, SHORT, (key("kb", ("b", 20), unique=False),), (key("kb", "b", unique=False),), ""),
    (WORD, LONG, (key("kb", "b", unique=False),), (key("other", ("b", 768), unique=False),), ""),
]  # fmt: skip


@pytest.mark.parametrize(("former", "now", "before", "after", "more"), TYPES)
def test_an_index_changes_with_the_type_of_its_column(
    former: dict[str, Any], now: dict[str, Any], before: tuple[Any, ...], after: tuple[Any, ...], more: str
) -> None:
    sides = of(ID, now, keys=after), of(ID, former, keys=before)
    assert say(ADD + "COMMENT 'x'", *sides) == ADD + "COMMENT 'x'" + f",{more}" * bool(more)


NAMING = ("DROP KEY `ua`", "ALTER INDEX `ua` VISIBLE", "RENAME KEY `ua` TO `x`")
NOT_NAMING = ("DROP", "FORCE", "DROP `ua`", "DROP COLUMN `ua`", "ADD KEY `ua`", "DROP KEY `x`")


def test_what_is_no_index_stays() -> None:
    made = of(ID, TEXT, keys=(key("a", ("a", 5), unique=False),))
    check = tokenize("CHECK (`a`)")
    assert put_key_lengths(check, made) == check
    assert say(ADD + "ADD KEY (`a`)", made) == ADD + "ADD KEY(`a`(5))"  # also if it is not known what was before
    hashed = of(ID, TEXT, keys=(HASH,))
    found = {one: names_whole_text_key(tokenize(one), [hashed]) for one in (*NAMING, *NOT_NAMING)}
    assert found == dict.fromkeys(NAMING, True) | dict.fromkeys(NOT_NAMING, False)
    named = of(ID, col("index", t.BLOB))
    assert say(ADD + "ALTER INDEX `index` INVISIBLE", named, named) == ADD + "ALTER INDEX `index` INVISIBLE"


DEFAULTS = [
    ("ADD `c` TEXT DEFAULT 'x' COMMENT 'y'", col("c", t.BLOB, default="x", comment="y"),
     "ADD `c` TEXT DEFAULT('x')COMMENT 'y'"),
    ("ADD `c` TEXT DEFAULT NULL", col("c", t.BLOB), "ADD `c` TEXT DEFAULT NULL"),
    ("ADD `c` INT DEFAULT 5", col("c", default="5"), "ADD `c` INT DEFAULT 5"),
    ("ALTER COLUMN `c` SET DEFAULT 'x'", col("c", t.BLOB, default="x", comment="y"),
     "MODIFY COLUMN `c` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT('x')COMMENT 'y'"),
    ("ALTER COLUMN `c` SET DEFAULT ''", col("c", t.BLOB, default="", charset="binary"),
     "MODIFY COLUMN `c` blob DEFAULT(X'')"),
    ("ALTER `c` DROP DEFAULT", col("c", t.BLOB, not_null=True),
     "MODIFY COLUMN `c` text CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"),
    ("ALTER `c` SET DEFAULT 5", col("c", default="5"), "ALTER `c` SET DEFAULT 5"),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "column", "expected"), DEFAULTS)
def test_defaults_of_texts(spec: str, column: dict[str, Any], expected: str) -> None:
    before = of(ID) if spec.startswith("ADD") else of(ID, column)
    given = re.sub(
        r"CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT", "DEFAULT", say(ADD + spec, of(ID, column), before)
    )
    assert re.sub(r"TEXT CHARACTER SET \w+ COLLATE \w+", "TEXT", given) == re.sub(
        r"CHARACTER SET utf8mb4 COLLATE utf8mb4_bin DEFAULT", "DEFAULT", ADD + expected
    )
    assert say(ADD + spec, of(ID, column), before, "mariadb").startswith(ADD + spec[:5])


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("RENAME COLUMN `d` TO `e`", "MODIFY COLUMN `v` tinyint GENERATED ALWAYS AS(`e` is null)VIRTUAL COMMENT 'c'"),
        ("RENAME COLUMN `d` TO `e`, DROP `v`", ""),
        ("RENAME COLUMN `d` TO `e`, MODIFY `v` TINYINT AS (`e` is null) VIRTUAL", ""),
    ],
)
def test_readers_of_a_renamed_column_are_defined_again(query: str, expected: str) -> None:
    def reader(name: str) -> dict[str, Any]:
        return col("v", t.TINY, comment="c", generated_expr_string=f"`{name}` is null")

    def hexed(name: str) -> dict[str, Any]:
        return col("h", t.BLOB, generated_expr_string=f"hex(`{name}`)", generated_stored=True)

    before = table("t", ID, col("d"), hexed("d"), reader("d"))
    after = table("t", ID, col("e"), hexed("e"), *([] if "DROP" in query else [reader("e")]))
    plain = re.sub(r" ?([(),]) ?", r"\1", ADD + query)
    assert say(ADD + query, after, before) == plain + f",{expected}" * bool(expected)
    assert say(ADD + query, after, before, "mariadb") == plain
