"""TiDB's DDL text for a target: what is dropped, said otherwise, skipped or refused, and that the page tells it all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tabledefs import col, key, primary, table

from binlake.ddl import Kind, SourceDdl, classify, map_ddl, target_collation
from binlake.ddl.clauses import DROPPED_OPTIONS, DROPPED_WORDS
from binlake.ddl.collations import DEFAULT_COLLATIONS, MARIADB_COLLATIONS, Dialect
from binlake.ddl.tokens import TokenKind, render, tokenize
from binlake.errors import SchemaError, TargetRefused
from binlake.schema import DbInfo, TableDef
from binlake.schema import mysqltypes as t
from binlake.schema.delta import Definitions
from binlake.statement.literal import quote, quote_name

PAGE = Path(__file__).resolve().parents[2] / "docs" / "target-mapping.md"
NONE = Definitions((), ())


def ddl(query: str, *after: TableDef, before: tuple[TableDef, ...] = (), name: str = "", db: str = "d") -> SourceDdl:
    return SourceDdl(7, db, name, query, Definitions((), before), Definitions((), after))


def mapped(query: str, *after: TableDef, dialect: Dialect = "mariadb", **more: tuple[TableDef, ...]) -> str:
    found = map_ddl(ddl(query, *after, **more), dialect)
    assert found.decision == "apply", found.reason
    return found.sql[-1]


T = table("t", col("a", not_null=True), col("b", t.VARCHAR, flen=9), keys=(primary("a"),))
OPTIONS = " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


@pytest.mark.parametrize(
    ("query", "kind", "tables", "destructive"),
    [
        ("CREATE DATABASE IF NOT EXISTS `x`;", Kind.CREATE_DATABASE, (("", "x"),), False),
        ("CREATE TABLE `a`.`b` (`i` INT)", Kind.CREATE_TABLE, (("a", "b"),), False),
        ("CREATE TABLE `b` LIKE `c`", Kind.CREATE_TABLE_LIKE, (("", "b"),), False),
        ("CREATE UNIQUE INDEX `i` ON `b` (`c`)", Kind.CREATE_INDEX, (("", "b"),), False),
        ("ALTER TABLE `b` DROP COLUMN `c`", Kind.ALTER_TABLE, (("", "b"),), True),
        ("ALTER TABLE `b` DROP INDEX `c`", Kind.ALTER_TABLE, (("", "b"),), False),
        ("ALTER TABLE `b` ADD COLUMN `c` INT, DROP PARTITION `p`", Kind.ALTER_TABLE, (("", "b"),), True),
        ("DROP TABLE IF EXISTS `a`, `x`.`b`", Kind.DROP_TABLE, (("", "a"), ("x", "b")), True),
        ("TRUNCATE `b`", Kind.TRUNCATE_TABLE, (("", "b"),), True),
        ("RENAME TABLE `a` TO `x`.`b`, `c` TO `a`", Kind.RENAME_TABLE,
         (("", "a"), ("x", "b"), ("", "c"), ("", "a")), False),
        ("CREATE OR REPLACE ALGORITHM = MERGE DEFINER = `u`@`%` VIEW `v` AS SELECT 1", Kind.CREATE_VIEW,
         (("", "v"),), False),
        ("FLASHBACK TABLE `a` TO `b`", Kind.OTHER, (), False),
        ("/*T![placement] CREATE PLACEMENT POLICY `p` */;", Kind.OTHER, (), False),
    ],
)  # fmt: skip
def test_classify(query: str, kind: Kind, tables: tuple[tuple[str, str], ...], destructive: bool) -> None:
    found = classify(query)
    assert (found.kind, found.tables, found.destructive) == (kind, tables, destructive)


@given(
    st.text(st.characters(exclude_categories=("Cs",))), st.text(st.characters(exclude_categories=("Cs",)), min_size=1)
)
def test_tokens_keep_names_and_strings_whole(text: str, name: str) -> None:
    query = f"ALTER TABLE {quote_name(name)} COMMENT = {quote(text)}"
    tokens = tokenize(query)
    assert [token.kind for token in tokens[2:]] == [TokenKind.NAME, TokenKind.WORD, TokenKind.MARK, TokenKind.STRING]
    assert tokens[2].value == name
    assert render(tokens) == query


def test_a_quote_that_does_not_end_is_an_error() -> None:
    with pytest.raises(SchemaError, match="does not end"):
        tokenize("ALTER TABLE `t COMMENT = 'x'")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("CREATE TABLE `t` (`a` INT PRIMARY KEY /*T![clustered_index] CLUSTERED */);",
         "CREATE TABLE `t` (`a` INT PRIMARY KEY)" + OPTIONS),
        ("CREATE TABLE `t` (`a` INT,PRIMARY KEY(`a`) NONCLUSTERED) ENGINE = MyISAM COMMENT = 'x'",
         "CREATE TABLE `t` (`a` INT,PRIMARY KEY(`a`))" + OPTIONS + " COMMENT = 'x'"),
        ("CREATE TABLE `t` (`a` INT) SHARD_ROW_ID_BITS = 4 PRE_SPLIT_REGIONS=2 PARTITION BY HASH (`a`) PARTITIONS 4",
         "CREATE TABLE `t` (`a` INT)" + OPTIONS + " PARTITION BY HASH (`a`) PARTITIONS 4"),
        ("CREATE TABLE `t` (`k` VARCHAR(9) COLLATE utf8mb4_0900_ai_ci) DEFAULT CHARACTER SET = UTF8MB4",
         "CREATE TABLE `t` (`k` VARCHAR(9) COLLATE utf8mb4_uca1400_nopad_ai_ci) DEFAULT CHARACTER SET utf8mb4"
         " COLLATE utf8mb4_bin"),
        ("CREATE TABLE `t` (`a` INT CHECK(`a`>0) ENFORCED,INDEX `i`(`a`) INVISIBLE)",
         "CREATE TABLE `t` (`a` INT CHECK(`a`>0),INDEX `i`(`a`) IGNORED)" + OPTIONS),
        ("CREATE TABLE `t` (`a` INT,`g` INT GENERATED ALWAYS AS(`a`+1) STORED NOT NULL)",
         "CREATE TABLE `t` (`a` INT,`g` INT GENERATED ALWAYS AS(`a`+1) STORED)" + OPTIONS),
        ("ALTER TABLE `t` ADD COLUMN `b` VARCHAR(9) CHARACTER SET LATIN1 DEFAULT _UTF8MB4'x'",
         "ALTER TABLE `t` ADD COLUMN `b` VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT _UTF8MB4'x'"),
        ("ALTER TABLE `t` ADD INDEX `i`(`a`), ALGORITHM = INPLACE, LOCK = NONE", "ALTER TABLE `t` ADD INDEX `i`(`a`)"),
        ("ALTER TABLE `t` DROP CHECK `c`", "ALTER TABLE `t` DROP CONSTRAINT `c`"),
        ("ALTER TABLE `t` REORGANIZE PARTITION `p1`,`p2` INTO (PARTITION `q` VALUES LESS THAN (9))",
         "ALTER TABLE `t` REORGANIZE PARTITION `p1`,`p2` INTO (PARTITION `q` VALUES LESS THAN (9))"),
        ("ALTER TABLE `t` EXCHANGE PARTITION `p` WITH TABLE `x` WITHOUT VALIDATION",
         "ALTER TABLE `t` EXCHANGE PARTITION `p` WITH TABLE `x`"),
        ("CREATE INDEX `i` ON `t` (`a`) ALGORITHM = INPLACE LOCK = NONE", "CREATE INDEX `i` ON `t` (`a`)"),
        ("CREATE ALGORITHM = UNDEFINED DEFINER = `u`@`%` SQL SECURITY DEFINER VIEW `v` AS SELECT 1",
         "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v` AS SELECT 1"),
        ("CREATE TABLE `t` (`engine` INT,`x` VARCHAR(30) DEFAULT _UTF8MB4'CLUSTERED /*T! */ ENGINE')",
         "CREATE TABLE `t` (`engine` INT,`x` VARCHAR(30) DEFAULT _UTF8MB4'CLUSTERED /*T! */ ENGINE')" + OPTIONS),
    ],
)  # fmt: skip
def test_mariadb(query: str, expected: str) -> None:
    assert mapped(query, T) == expected


def test_each_create_gets_the_charset_of_its_own_definition() -> None:
    # DESIGN 4
    latin = table("t", col("a"), charset="latin1", collate="latin1_bin")
    created = mapped("CREATE TABLE `t` (`a` INT)", latin)
    assert created.endswith("DEFAULT CHARACTER SET latin1 COLLATE latin1_bin")
    general = DbInfo(3, "x", "utf8mb4", "utf8mb4_general_ci", {})
    made = SourceDdl(7, "x", "", "CREATE DATABASE `x`;", NONE, Definitions((general,), ()))
    assert map_ddl(made, "mariadb").sql == (
        "CREATE DATABASE `x` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    )


def test_a_column_of_another_collation_gets_it_said() -> None:
    own = table(
        "t", col("a"), col("n", t.VARCHAR, flen=9, collate="utf8mb4_general_ci"), col("e", t.ENUM, elems=("x",))
    )
    text = mapped("ALTER TABLE `t` MODIFY COLUMN `n` VARCHAR(9) NOT NULL FIRST", own)
    assert text == (
        "ALTER TABLE `t` MODIFY COLUMN `n` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL FIRST"
    )
    assert mapped("ALTER TABLE `t` MODIFY COLUMN `e` ENUM('x')", own) == "ALTER TABLE `t` MODIFY COLUMN `e` ENUM('x')"


def test_a_backslash_in_an_element_stays_one() -> None:
    odd = table("t", col("e", t.ENUM, elems=("x\\y", "it's")))
    assert "ENUM('x\\\\y','it\\'s')" in mapped(r"CREATE TABLE `t` (`e` ENUM('x\y','it''s'))", odd).replace("( ", "(")


def test_statements_run_in_the_database_of_their_names() -> None:
    assert map_ddl(ddl("TRUNCATE TABLE `t`"), "mariadb").sql == ("USE `d`", "TRUNCATE TABLE `t`")
    # the job of a rename has the new database
    old, new = table("t", col("a"), db="one"), table("t", col("a"), db="two")
    moved = ddl("RENAME TABLE `t` TO `two`.`t`", new, before=(old,), db="two")
    assert map_ddl(moved, "mariadb").sql[0] == "USE `one`"


def test_drop_of_several_tables_drops_the_jobs_own() -> None:
    # hazards R-28
    mine = table("b", col("a"), db="y")
    assert mapped("DROP TABLE IF EXISTS `a`, `y`.`b`, `c`", before=(mine,)) == "DROP TABLE IF EXISTS `y`.`b`"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("/*T![placement] ALTER DATABASE `d` PLACEMENT POLICY = `p` */;", "placement"),
        ("ALTER TABLE `t` /*T! SHARD_ROW_ID_BITS = 4 */;", "nothing is left"),
        ("ALTER TABLE `t` SHARD_ROW_ID_BITS = 4", "nothing is left"),
        ("ALTER TABLE `t` SET TIFLASH REPLICA 1", "TiFlash"),
        ("ALTER TABLE `t` ATTRIBUTES='merge_option=deny'", "attributes"),
        ("CREATE GLOBAL TEMPORARY TABLE `t` (`a` INT) ON COMMIT DELETE ROWS", "temporary"),
    ],
)
def test_what_the_target_does_not_run(query: str, reason: str) -> None:
    found = map_ddl(ddl(query, T), "mariadb")
    assert (found.decision, found.sql) == ("skip", ())
    assert reason in found.reason


@pytest.mark.parametrize(
    ("query", "clause", "dialect"),
    [
        ("ALTER TABLE `t` ADD INDEX `i`((`a`*2))", "an index on an expression", "mariadb"),
        ("CREATE TABLE `t` (`a` INT,UNIQUE `u`(`b`, (LOWER(`b`))))", "an index on an expression", "mariadb"),
        ("ALTER TABLE `t` ALTER CHECK `c` NOT ENFORCED", "ALTER CHECK", "mariadb"),
        ("CREATE TABLE `t` (`a` INT,CHECK(`a`>0) NOT ENFORCED)", "not enforced", "mariadb"),
        ("RECOVER TABLE `t`", "RECOVER TABLE `t`", "mysql"),
        ("CREATE SEQUENCE `s`", "SEQUENCE", "mysql"),
    ],
)
def test_what_cannot_be_said_stops_with_the_ways_on(query: str, clause: str, dialect: Dialect) -> None:
    with pytest.raises(TargetRefused, match="cannot be said") as stopped:
        map_ddl(ddl(query, T), dialect)
    assert clause in stopped.value.message
    assert stopped.value.where["commit_ts"] == "7"
    assert "ignore-txn-commit-ts" in stopped.value.hint


def test_a_primary_key_on_a_generated_column_stops_mariadb_only() -> None:
    g = table("t", col("a"), col("g", generated_expr_string="`a`", generated_stored=True), keys=(primary("g"),))
    query = "CREATE TABLE `t` (`a` INT,`g` INT GENERATED ALWAYS AS(`a`) STORED,PRIMARY KEY(`g`))"
    with pytest.raises(TargetRefused, match="generated column"):
        mapped(query, g)
    assert "STORED,PRIMARY KEY" in mapped(query, g, dialect="mysql")


def test_a_tidb_target_gets_tidbs_text() -> None:
    query = "CREATE TABLE `t` (`a` INT PRIMARY KEY /*T![clustered_index] CLUSTERED */) /*T! SHARD_ROW_ID_BITS = 4 */"
    assert mapped(query + ";", T, dialect="tidb") == query


def test_a_key_word_behind_a_parenthesis_is_no_expression_index() -> None:
    unique = table("t", col("a", t.NEWDECIMAL, flen=3, decimal=1), keys=(key("a", "a"),))
    assert "DECIMAL(3,1) UNIQUE KEY" in mapped("CREATE TABLE `t` (`a` DECIMAL(3,1) UNIQUE KEY)", unique)


def test_the_page_names_every_rule() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = {*DROPPED_OPTIONS, *DROPPED_WORDS, *MARIADB_COLLATIONS, *MARIADB_COLLATIONS.values()}
    named |= set(DEFAULT_COLLATIONS.values())
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []
    assert target_collation("UTF8_GENERAL_CI", "mysql") == "utf8mb3_general_ci"
