"""DDL text of any sql_mode in standard form: text that TiDB restored, and text that TiDB could not parse."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mariadb import MariaDb, execute, rows
from support.tabledefs import col, key, primary, table
from support.windows import target_of
from support.workload import Workload, integer, text

from binlake.common.sql import Dialect
from binlake.dialect import DdlText, KnownNames, map_ddl, standardize_text, tokenize_restored
from binlake.dialect.tokens import TokenKind
from binlake.errors import SchemaError, TargetRefused
from binlake.mirror.plan import derive_effects
from binlake.rows.schema import Action, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target.session.session import TargetSession
from binlake.testkit.captures.capture import Capture
from binlake.window.cuts import build_ddl_batch
from deploy.local.commitlog import plan_ddl as plan_all
from deploy.local.commitlog import read_log

NOTHING = KnownNames(frozenset(), frozenset())
ANSI = table(
    "Ansi T",
    col("Id", t.LONG, not_null=True),
    col('se"lect', t.VARCHAR, flen=20, default='d"q'),
    col("w`x", t.LONG, comment='it\'s "q"'),
    col("w", t.LONG, comment='it\'s "q" s'),
    keys=(primary("Id"), key('ix"1', "w`x", unique=False)),
)
PLAIN = table("Mehr_2", col("id", t.LONG), col("nb", t.VARCHAR, flen=10, default="a\\", comment="c\\n"))


def pairs(text: str) -> list[tuple[str, str]]:
    """(text in the binlog, text in standard form); a text that continues on the next line ends with `~`."""
    lines = text.strip().replace("~\n", "").splitlines()
    return list(zip(lines[::2], lines[1::2], strict=True))


RESTORED = pairs(r"""
ALTER TABLE `m` ADD COLUMN `h` INT COMMENT 'ends \\';
ALTER TABLE `m` ADD COLUMN `h` INT COMMENT 'ends \\';
ALTER TABLE `m` COMMENT = 'table \';
ALTER TABLE `m` COMMENT = 'table \\';
ALTER TABLE `m` ADD INDEX `k`(`f`) COMMENT 'index \';
ALTER TABLE `m` ADD INDEX `k`(`f`) COMMENT 'index \\';
CREATE UNIQUE INDEX `k` ON `m` (`f`) COMMENT '\';
CREATE UNIQUE INDEX `k` ON `m` (`f`) COMMENT '\\';
ALTER TABLE `m` ADD COLUMN `i` ENUM('a\','b''\','\') DEFAULT _UTF8MB4'a\\' COMMENT '\\', ADD COLUMN `j` SET('s\','t');
ALTER TABLE `m` ADD COLUMN `i` ENUM('a\\','b\'\\','\\') DEFAULT _UTF8MB4'a\\' COMMENT '\\', ~
ADD COLUMN `j` SET('s\\','t');
CREATE TABLE `m` (`id` INT UNIQUE KEY COMMENT 'c\\',`v` ENUM('x\','y') COMMENT 'q'' e\\',INDEX `i`(`id`) COMMENT 'i\') ~
COMMENT = 'x\' PARTITION BY HASH (`id`) PARTITIONS 2;
CREATE TABLE `m` (`id` INT UNIQUE KEY COMMENT 'c\\',`v` ENUM('x\\','y') COMMENT 'q'' e\\',INDEX `i`(`id`) ~
COMMENT 'i\\') COMMENT = 'x\\' PARTITION BY HASH (`id`) PARTITIONS 2;
""")


@pytest.mark.parametrize(("restored", "standard"), RESTORED)
def test_backslashes_of_restored_text_depend_on_their_position(restored: str, standard: str) -> None:
    # issue 13.13: a server would interpret TiDB's text differently
    assert standardize_text(restored, "the session's own", NOTHING) == standard


def test_text_without_backslashes_and_quotes_is_unchanged() -> None:
    text = "ALTER TABLE `t` ADD COLUMN `a` VARCHAR(9) DEFAULT _UTF8MB4'it''s \"q\"';"
    assert standardize_text(text, "ALTER TABLE t …", NOTHING) is text


RAW = pairs(r"""
CREATE TABLE "Ansi T" ("Id" INT, "se""lect" VARCHAR(20) DEFAULT 'd"q', "w`x" INT COMMENT 'it''s "q"')
CREATE TABLE `Ansi T` (`Id` INT, `se"lect` VARCHAR(20) DEFAULT 'd"q', `w``x` INT COMMENT 'it''s "q"')
TRUNCATE TABLE "Ansi T"
TRUNCATE TABLE `Ansi T`
ALTER TABLE "ansi t" ADD INDEX "ix""1" ("w`x")
ALTER TABLE `ansi t` ADD INDEX `ix"1` (`w``x`)
CREATE VIEW "Ansi T" AS SELECT "id", "a""b" AS "y" FROM "Ansi T"
CREATE VIEW `Ansi T` AS SELECT `id`, `a"b` AS `y` FROM `Ansi T`
ALTER TABLE `Mehr_2` ADD COLUMN nb VARCHAR(10) NOT NULL DEFAULT 'a\' COMMENT 'c\n'
ALTER TABLE `Mehr_2` ADD COLUMN nb VARCHAR(10) NOT NULL DEFAULT 'a\\' COMMENT 'c\\n'
ALTER TABLE "Mehr_2" ADD COLUMN "nb" VARCHAR(10) NOT NULL DEFAULT 'a\' COMMENT 'c\n'
ALTER TABLE `Mehr_2` ADD COLUMN `nb` VARCHAR(10) NOT NULL DEFAULT 'a\\' COMMENT 'c\\n'
ALTER TABLE `Ansi T` ADD COLUMN w INT COMMENT "it's ""q"" s"
ALTER TABLE `Ansi T` ADD COLUMN w INT COMMENT 'it\'s "q" s'
""")


@pytest.mark.parametrize(("raw", "standard"), RAW)
def test_original_session_text_is_read_by_the_definitions(raw: str, standard: str) -> None:  # issue 13.13
    assert standardize_text(raw, raw, KnownNames.of(["d"], [ANSI, PLAIN])) == standard


@pytest.mark.parametrize(
    "raw",
    [
        'ALTER TABLE "Nobody" ADD COLUMN "a" INT',
        "ALTER TABLE `Mehr_2` ADD COLUMN nb VARCHAR(10) DEFAULT 'another\\'",
        "ALTER TABLE `Mehr_2` ADD COLUMN nb VARCHAR(10) DEFAULT 'does not end\\",
    ],
)
def test_text_that_fits_no_sql_mode_is_refused(raw: str) -> None:
    with pytest.raises(SchemaError, match="fits no sql_mode"):
        standardize_text(raw, raw, KnownNames.of(["d"], [ANSI, PLAIN]))


def test_unreadable_ddl_does_not_stop_planning_and_is_reported(tmp_path: Path) -> None:  # U-20
    # issue 13.13: a bare IndexError stopped the window, for any table
    w = Workload()
    w.create_database("shop")
    w.create_table("shop", "t", [integer("id"), text("v")], ["id"])
    raw = 'ALTER TABLE "unheard of" ADD COLUMN n INT'
    at = w.add_column("shop", "t", integer("n"))
    w.jobs[-1]["query"] = raw
    for binlog in w.logged[-2:]:
        binlog.ddl_query = raw.encode()
    w.add_column("shop", "t", integer("m"))
    found = plan_all(read_log(Capture(w.write(tmp_path))))
    assert [ddl.decision for ddl in found] == ["apply", "apply", "refused", "apply"]
    assert found[2].alert == "a DDL's text fits no sql_mode"
    with pytest.raises(TargetRefused, match=rf"commit_ts={at}.*unheard of") as stop:
        build_ddl_batch(3, found[2], "mariadb")
    assert all(way in stop.value.hint for way in ("ddl-replacement", "ignore-txn-commit-ts", "filter.ignore-table"))
    [inexact] = [effect for effect in derive_effects(found[2]) if effect.kind == "inexact"]
    assert inexact.reason.startswith("the text of an ALTER cannot be parsed")


def test_statement_without_a_table_is_refused_with_its_position() -> None:
    ddl = DdlText(7, "d", "t", "ALTER TABLE 'x' ADD COLUMN n INT", DdlSide((), ()), DdlSide((), ()))
    with pytest.raises(TargetRefused, match="commit_ts=7"):
        map_ddl(ddl, "mariadb")
    with pytest.raises(TargetRefused, match=r"is not closed.*commit_ts=7"):
        map_ddl(DdlText(7, "d", "t", "ALTER TABLE `t` COMMENT = 'x\\'", *[DdlSide((), ())] * 2), "mariadb")


def mapped(
    query: str, after: TableDef, before: TableDef | None = None, dialect: Dialect = "mariadb"
) -> tuple[str, ...]:
    sides = DdlSide((), (before,) if before else ()), DdlSide((), (after,))
    return map_ddl(DdlText(7, "d", after.name, query, *sides), dialect).sql


def test_columns_in_parentheses_become_separate_specs() -> None:  # issue 13.13
    text = col("a", t.VARCHAR, flen=9, collate="utf8mb4_general_ci", comment="x, y (z")
    after = table("m", col("id", t.LONG), text, col("b", t.LONG))
    sql = mapped("ALTER TABLE `m` ADD COLUMN (`a` VARCHAR(9) COMMENT 'x, y (z', `b` INT)", after)
    assert sql[-1] == (
        "ALTER TABLE `m` ADD COLUMN `a` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci COMMENT 'x, y (z',"
        " ADD COLUMN `b` INT"
    )


def test_defaults_and_comments_come_from_the_definition() -> None:
    # NO_BACKSLASH_ESCAPES: TiDB restored 'a\\b' from a text that meant two backslashes
    after = table("m", col("id", t.LONG), col("a", t.VARCHAR, flen=9, default="a\\\\b", comment="c\\\\d"))
    sql = mapped("ALTER TABLE `m` ADD COLUMN `a` VARCHAR(9) DEFAULT _UTF8MB4'a\\\\b' COMMENT 'c\\\\d'", after)
    assert sql[-1] == "ALTER TABLE `m` ADD COLUMN `a` VARCHAR(9) DEFAULT 'a\\\\\\\\b' COMMENT 'c\\\\\\\\d'"


def test_generated_column_has_the_stored_expression() -> None:
    # PIPES_AS_CONCAT: the restored text has OR
    column = col("pc", t.VARCHAR, flen=20, generated_expr_string="concat(concat(`v`, _utf8mb4'-'), `id`)")
    after = table("m", col("id", t.LONG), col("v", t.VARCHAR, flen=9), column)
    sql = mapped("ALTER TABLE `m` ADD COLUMN `pc` VARCHAR(20) GENERATED ALWAYS AS(`v` OR _UTF8MB4'-' OR `id`)", after)
    assert sql[-1].endswith("GENERATED ALWAYS AS(concat(concat(`v`, '-'), `id`))")


def test_functions_named_like_clauses_are_unchanged() -> None:  # issue 13.13
    column = col("g", t.VARCHAR, flen=20, generated_expr_string="charset(`v`)")
    after = table("m", col("id", t.LONG), col("v", t.VARCHAR, flen=9), column)
    sql = mapped("ALTER TABLE `m` ADD COLUMN `g` VARCHAR(20) GENERATED ALWAYS AS(CHARSET(`v`)) VIRTUAL", after)
    assert sql[-1].endswith("GENERATED ALWAYS AS(CHARSET(`v`)) VIRTUAL")


@pytest.mark.mariadb
def test_server_shows_the_same_as_the_source(empty_server: MariaDb) -> None:
    """A generated column with a non-ASCII character, and a foreign key named in another letter case."""
    column = col("g", t.VARCHAR, flen=20, generated_expr_string="concat(_utf8mb4'ö', `id`)")
    after = table("m", col("id", t.LONG), column)
    keys = [{"id": 1, "fk_name": {"O": "Fk_1", "L": "fk_1"}}]
    child = table("Kind", col("id", t.LONG), col("m", t.LONG), fk_info=keys)
    execute(empty_server, "CREATE DATABASE d", "CREATE TABLE d.m (id INT PRIMARY KEY)", "INSERT INTO d.m VALUES (1)",
            "CREATE TABLE d.Kind (id INT, m INT, CONSTRAINT Fk_1 FOREIGN KEY (m) REFERENCES d.m (id))")  # fmt: skip
    session = TargetSession(target_of(empty_server))
    try:
        added = "ALTER TABLE `m` ADD COLUMN `g` VARCHAR(20) GENERATED ALWAYS AS(CONCAT(_UTF8MB4'ö', `id`)) VIRTUAL;"
        dropped = mapped(
            "ALTER TABLE `Kind` DROP FOREIGN KEY `FK_1`",
            table("Kind", col("id", t.LONG)),
            child,
            dialect=empty_server.name,
        )
        for statement in (*mapped(added, after, dialect=empty_server.name), *dropped):
            session.execute(statement)
        session.execute("FLUSH TABLES")
        assert session.fetch_rows("SELECT g FROM d.m") == [("ö1",)]
    finally:
        session.close()
    assert "FOREIGN KEY" not in rows(empty_server, "SHOW CREATE TABLE d.Kind")[0][1]


def test_plain_strings_are_distinguished_from_those_that_escape() -> None:
    found = tokenize_restored("CREATE TABLE `t` (`e` ENUM('a\\') DEFAULT 'a\\\\') COMMENT = '\\n'")
    strings = [token for token in found if token.kind is TokenKind.STRING]
    assert [(token.value, token.plain) for token in strings] == [("a\\", True), ("a\\", False), ("\\n", True)]


def test_renames_in_a_session_with_ansi_quotes(tmp_path: Path) -> None:
    w = Workload()
    w.create_database("Shop")
    w.create_table("Shop", "a b", [integer("id")], ["id"])
    info = {**w.table("Shop", "a b").raw, "name": {"O": 'c"d', "L": 'c"d'}}
    query = 'RENAME TABLE "a b" TO "c""d"'
    w._ddl(Action.RENAME_TABLES, "Shop", "a b", query, None)
    w.jobs[-1]["binlog"]["MultipleTableInfos"] = [info]
    for binlog in w.logged[-2:]:
        binlog.ddl_query = query.encode()
    found = plan_all(read_log(Capture(w.write(tmp_path))))[-1]
    assert found.sql == 'RENAME TABLE `a b` TO `c"d`'
    assert found.touched == ["Shop.a b", 'Shop.c"d']
