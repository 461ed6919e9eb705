"""Names in DDL text become the target's (golden texts); strings, columns and indexes of the same name stay."""

from __future__ import annotations

import pytest

from binlake.common.sections import DdlInjection
from binlake.dialect import put_target_names
from binlake.dialect.replacement import find_replaced_names, parse_injections
from binlake.errors import ConfigError


class Renaming:
    """Renames database s1 to xs1, and in it table t1 to x1; all other names stay."""

    def map_table(self, db: str, table: str, *, new: bool = False) -> tuple[str, str]:  # noqa: ARG002
        return (("xs1", "x1" if table == "t1" else table)) if db == "s1" else (db, table)

    def map_database(self, db: str) -> str:
        return "xs1" if db == "s1" else db


GOLDEN = [  # S4-05
    ("CREATE DATABASE IF NOT EXISTS `s1`", "CREATE DATABASE IF NOT EXISTS `xs1`"),
    ("ALTER DATABASE `s1` CHARACTER SET = utf8mb4", "ALTER DATABASE `xs1` CHARACTER SET = utf8mb4"),
    ("DROP DATABASE `s1`", "DROP DATABASE `xs1`"),
    ("CREATE TABLE `t1` (`t1` INT,`s1` VARCHAR(9) DEFAULT 's1.t1')",
     "CREATE TABLE `xs1`.`x1` (`t1` INT,`s1` VARCHAR(9) DEFAULT 's1.t1')"),
    ("CREATE TABLE `s1`.`c` (`id` INT,CONSTRAINT `t1` FOREIGN KEY (`id`) REFERENCES `t1`(`id`))",
     "CREATE TABLE `xs1`.`c` (`id` INT,CONSTRAINT `t1` FOREIGN KEY (`id`) REFERENCES `xs1`.`x1`(`id`))"),
    ("CREATE TABLE `s1`.`t1` LIKE `s1`.`t2`", "CREATE TABLE `xs1`.`x1` LIKE `xs1`.`t2`"),
    ("CREATE TABLE `s2`.`t1` (LIKE `t1`)", "CREATE TABLE `s2`.`t1` (LIKE `xs1`.`x1`)"),
    ("ALTER TABLE `t1` ADD COLUMN `t1` INT, ADD INDEX `t1`(`t1`)",
     "ALTER TABLE `xs1`.`x1` ADD COLUMN `t1` INT, ADD INDEX `t1`(`t1`)"),
    ("ALTER TABLE `s1`.`t1` RENAME TO `s2`.`t1`", "ALTER TABLE `xs1`.`x1` RENAME TO `s2`.`t1`"),
    ("ALTER TABLE `t2` RENAME AS `t1`", "ALTER TABLE `xs1`.`t2` RENAME AS `xs1`.`x1`"),
    ("ALTER TABLE `t1` RENAME COLUMN `t1` TO `t2`, RENAME INDEX `t1` TO `t2`",
     "ALTER TABLE `xs1`.`x1` RENAME COLUMN `t1` TO `t2`, RENAME INDEX `t1` TO `t2`"),
    ("ALTER TABLE `t2` EXCHANGE PARTITION `p` WITH TABLE `t1`",
     "ALTER TABLE `xs1`.`t2` EXCHANGE PARTITION `p` WITH TABLE `xs1`.`x1`"),
    ("ALTER TABLE `t2` ADD CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES `s1`.`t1`(`id`)",
     "ALTER TABLE `xs1`.`t2` ADD CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES `xs1`.`x1`(`id`)"),
    ("DROP TABLE IF EXISTS `s1`.`t1`, `s2`.`t1`, `t2`", "DROP TABLE IF EXISTS `xs1`.`x1`, `s2`.`t1`, `xs1`.`t2`"),
    ("TRUNCATE TABLE `t1`", "TRUNCATE TABLE `xs1`.`x1`"),
    ("TRUNCATE `s1`.`t1`", "TRUNCATE `xs1`.`x1`"),
    ("RENAME TABLE `t1` TO `t2`, `s1`.`t3` TO `s2`.`t3`",
     "RENAME TABLE `xs1`.`x1` TO `xs1`.`t2`, `xs1`.`t3` TO `s2`.`t3`"),
    ("CREATE UNIQUE INDEX `t1` ON `t1` (`t1`)", "CREATE UNIQUE INDEX `t1` ON `xs1`.`x1` (`t1`)"),
    ("DROP INDEX `t1` ON `s1`.`t1`", "DROP INDEX `t1` ON `xs1`.`x1`"),
    ("DROP VIEW `v`, `s2`.`v`", "DROP VIEW `xs1`.`v`, `s2`.`v`"),
    ("CREATE SEQUENCE `t1` START WITH 1", "CREATE SEQUENCE `xs1`.`x1` START WITH 1"),
    ("CREATE ALGORITHM = UNDEFINED VIEW `v` (`a`) AS SELECT `s1`.`t1`.`a` AS `a`,`t2`.`b` FROM `s1`.`t1` JOIN `t2`"
     " WHERE `t1`.`a`=EXTRACT(YEAR FROM `d`)",
     "CREATE ALGORITHM = UNDEFINED VIEW `xs1`.`v` (`a`) AS SELECT `t1`.`a` AS `a`,`t2`.`b` FROM `xs1`.`x1` AS `t1` JOIN"
     " `xs1`.`t2` WHERE `t1`.`a`=EXTRACT(YEAR FROM `d`)"),
    ("CREATE VIEW `v` AS WITH `t2` AS (SELECT 1 FROM `t1` AS `k`) SELECT * FROM (`t2`, `s2`.`u`) WHERE `a` IN"
     " (SELECT `b` FROM `t1`)",
     "CREATE VIEW `xs1`.`v` AS WITH `t2` AS (SELECT 1 FROM `xs1`.`x1` AS `k`) SELECT * FROM (`t2`, `s2`.`u`) WHERE `a`"
     " IN (SELECT `b` FROM `xs1`.`x1` AS `t1`)"),
    ("ALTER TABLE `t1` ADD COLUMN `a` INT; ALTER TABLE `s1`.`t1` DROP COLUMN `b`;",
     "ALTER TABLE `xs1`.`x1` ADD COLUMN `a` INT; ALTER TABLE `xs1`.`x1` DROP COLUMN `b`"),
    ("CREATE TABLE `t``1` (`a` INT)", "CREATE TABLE `xs1`.`t``1` (`a` INT)"),
    ("/* a comment */ DROP TABLE `t1` /*T! RESTRICT */", "DROP TABLE `xs1`.`x1` /*T! RESTRICT */"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "routed"), GOLDEN)
def test_names_become_target_names(text: str, routed: str) -> None:
    assert put_target_names(text, "s1", Renaming()) == routed


@pytest.mark.parametrize(
    ("text", "own", "kept"),
    [
        ("DROP TABLE `t1`, `s2`.`t1`", [("s1", "t1")], "DROP TABLE `xs1`.`x1`"),
        ("DROP TABLE `t1`, `s2`.`t1`", [("S2", "T1")], "DROP TABLE `s2`.`t1`"),
        ("RENAME TABLE `t1` TO `t2`, `s2`.`a` TO `s2`.`b`", [("s1", "t1"), ("s1", "t2")],
         "RENAME TABLE `xs1`.`x1` TO `xs1`.`t2`"),
    ],
)  # fmt: skip
def test_list_keeps_only_the_jobs_objects(text: str, own: list[tuple[str, str]], kept: str) -> None:
    assert put_target_names(text, "s1", Renaming(), own) == kept


def test_operator_statement_lists_every_changed_table() -> None:
    # after a crash, these tables decide whether it ran
    assert find_replaced_names("ALTER TABLE a EXCHANGE PARTITION p WITH TABLE o.b", "d") == (("d", "a"), ("o", "b"))
    assert find_replaced_names("ALTER TABLE a ADD INDEX i (c), RENAME TO b", "d") == (("d", "a"), ("d", "b"))
    assert find_replaced_names("CREATE TABLE a LIKE b", "d") == (("d", "a"),)
    assert find_replaced_names("CREATE DATABASE a", "d") == (("a", ""),)


def _injected(sql: str) -> str:
    [made] = parse_injections([DdlInjection(**{"commit-ts": "1", "sql": sql, "db": "d"})])
    return made.sql


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO TRUNCATE TABLE t",
        "ALTER EVENT e DO DROP TABLE t",
        "CREATE TRIGGER `a` BEFORE INSERT ON `b` FOR EACH ROW CREATE TABLE z (i INT)",
        "CREATE DEFINER = u TRIGGER a BEFORE INSERT ON b FOR EACH ROW CREATE TABLE z (i INT)",
    ],
)
def test_statement_containing_another_statement_is_refused(sql: str) -> None:
    # its effect would not show in the definitions that decide after a crash
    with pytest.raises(ConfigError, match="contains another statement"):
        _injected(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE OR REPLACE TEMPORARY TABLE t (a INT)",
        "CREATE ALGORITHM = MERGE DEFINER = 'u'@'%' SQL SECURITY INVOKER VIEW v AS SELECT 1",
        "CREATE DEFINER = `u`@`h` VIEW v AS SELECT 1",
        "CREATE DEFINER=u@localhost SQL SECURITY DEFINER VIEW v AS SELECT 1",
        "ALTER ONLINE TABLE t ADD INDEX i (a)",
        "CREATE UNIQUE INDEX IF NOT EXISTS i ON t (a)",
        "TRUNCATE t",
    ],
)
def test_ddl_modifiers_are_accepted(sql: str) -> None:
    assert _injected(sql) == sql
