"""Comparison with a real MariaDB: equal states compare as equal, and each kind of difference is found and named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from support.mariadb import MariaDb, execute

from binlake.errors import TargetUnavailable
from binlake.testkit.captures import Comparison, compare_state, connect
from binlake.testkit.captures.capture import StateAt

CREATE = """CREATE TABLE `t` (
  `id` bigint(20) unsigned NOT NULL,
  `name` varchar(20) COLLATE utf8mb4_general_ci DEFAULT NULL,
  `b` bit(12) DEFAULT NULL,
  `f` float DEFAULT NULL,
  `d` double DEFAULT NULL,
  `n` decimal(10,3) DEFAULT NULL,
  `z` int(8) unsigned zerofill DEFAULT NULL,
  `y` year(4) DEFAULT NULL,
  `e` enum('a','it''s','b\\c','😀') COLLATE utf8mb4_bin DEFAULT NULL,
  `raw` varbinary(8) DEFAULT NULL,
  `at` timestamp(6) NULL DEFAULT NULL,
  `w` time(3) DEFAULT NULL,
  `j` json DEFAULT NULL,
  `u` varchar(5) CHARACTER SET utf8 COLLATE utf8_bin DEFAULT NULL,
  `c` varchar(9) COLLATE utf8mb4_0900_ai_ci DEFAULT NULL COMMENT 'KEY `x` (`id`), ) ''',
  `g` bigint(20) unsigned GENERATED ALWAYS AS (`id` + 1) STORED NOT NULL,
  PRIMARY KEY (`id`) /*T![clustered_index] CLUSTERED */,
  UNIQUE KEY `Name_B` (`name`(5),`b`),
  KEY `up` ((upper(`name`))),
  CONSTRAINT `chk` CHECK ((`id` > 0))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin COMMENT='a, (b'"""
TARGET = r"""CREATE TABLE t (id bigint unsigned NOT NULL PRIMARY KEY, name varchar(20) COLLATE utf8mb4_general_ci,
 b bit(12), f float, d double, n decimal(10,3), z int(8) unsigned zerofill, y year,
 e enum('a','it''s','b\\c','😀') COLLATE utf8mb4_bin, raw varbinary(8),
 at timestamp(6) NULL, w time(3), j json, u varchar(5) CHARACTER SET utf8 COLLATE utf8_bin,
 c varchar(9) COLLATE utf8mb4_uca1400_nopad_ai_ci, g bigint unsigned AS (id + 1) STORED, UNIQUE KEY name_b (name(5), b)
) CHARSET utf8mb4 COLLATE utf8mb4_bin"""
TYPES = [
    "bigint(20) unsigned", "varchar(20)", "bit(12)", "float", "double", "decimal(10,3)", "int(8) unsigned zerofill",
    "year(4)", "enum('a','it''s','b\\c','😀')", "varbinary(8)", "timestamp(6)", "time(3)", "json", "varchar(5)",
    "varchar(9)", "bigint(20) unsigned",
]  # fmt: skip
COLUMNS = ["id", "name", "b", "f", "d", "n", "z", "y", "e", "raw", "at", "w", "j", "u", "c", "g"]
ROWS: list[list[Any]] = [
    ["1", "á", {"hex": "0ABC"}, "0.1", "1e300", "-0.500", "7", "1999", "it's", {"hex": "00FF"},
     "2001-02-03 04:05:06.000007", "-11:12:13.000", '{"b": [1, 2.5, "x"], "a": null}', "ü", "é", "2"],
    ["2", None, None, "3.40282e38", "-0.000123", "12.000", "12345678", "0000", "b\\c", {"hex": ""},
     None, "838:59:59.000", "3", "", "E", "3"],
    ["3", "x%s", None, "16777216", "0.30000000000000004", None, None, None, "😀", None, None, None, None, None, None,
     "4"],
]  # fmt: skip
INSERT = r"""INSERT INTO t (id, name, b, f, d, n, z, y, e, raw, at, w, j, u, c) VALUES
 (1, 'á', b'101010111100', 0.1, 1e300, -0.5, 7, 1999, 'it''s', x'00FF', '2001-02-03 04:05:06.000007', '-11:12:13',
  '{"a":null,"b":[1,2.5,"x"]}', 'ü', 'é'),
 (2, NULL, NULL, 3.40282346e38, -0.000123, 12, 12345678, 0, 'b\\c', '', NULL, '838:59:59', '3', '', 'E'),
 (3, 'x%s', NULL, 16777216, 0.30000000000000004, NULL, NULL, NULL, '😀', NULL, NULL, NULL, NULL, NULL, NULL)"""
EXEMPTIONS = {
    "FLOAT shown in exponent form: 6 digits compared": 1,
    "ZEROFILL: compared without padding": 2,
    "JSON: compared as a value, not as text": 2,
    "JSON column: LONGTEXT on the target": 1,
    "collation mapped: utf8mb4_0900_ai_ci is utf8mb4_uca1400_nopad_ai_ci on the target": 1,
    "generated column: NOT NULL not compared": 1,
    "ENUM or SET element beyond the BMP: servers show it as ?": 1,
    "expression key: not on the target": 1,
}


def state(rows: list[list[Any]] | None = None) -> StateAt:
    table = {
        "table": "cmp_a.t", "schema": "cmp_a", "name": "t", "kind": "BASE TABLE", "create": CREATE,
        "columns": COLUMNS, "types": TYPES, "order_by": ["id"], "rows": ROWS if rows is None else rows,
    }  # fmt: skip
    tables = [("cmp_a", "t", "BASE TABLE"), ("cmp_a", "v", "VIEW")]
    return StateAt(7, "step", ["cmp_a", "cmp_b"], tables, (table,))


@pytest.fixture
def target(mariadb: MariaDb) -> Iterator[MariaDb]:
    mariadb.wipe()
    execute(mariadb, "CREATE DATABASE cmp_a", "CREATE DATABASE cmp_b", "CREATE DATABASE tidb_binlog", "USE cmp_a",
            "SET time_zone = '+00:00'", TARGET, INSERT, "CREATE VIEW v AS SELECT 1 AS x")  # fmt: skip
    yield mariadb
    mariadb.wipe()


def compare(server: MariaDb, expected: StateAt | None = None) -> Comparison:
    connection = connect(server.host, server.port, server.user, server.password)
    try:
        return compare_state(expected or state(), connection)
    finally:
        connection.close()


def test_equal_states_compare_equal_and_exemptions_are_counted(target: MariaDb) -> None:
    result = compare(target)
    assert result.differences == []
    assert (result.equal, result.tables, result.rows) == (True, 1, 3)
    assert dict(result.exemptions) == EXEMPTIONS


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("DELETE FROM cmp_a.t WHERE id = 3", "cmp_a.t: 1 rows missing, 0 too many; first missing: id='3'"),
        ("INSERT INTO cmp_a.t (id) VALUES (9)", "cmp_a.t: 0 rows missing, 1 too many; first too many: id='9'"),
        ("UPDATE cmp_a.t SET name = 'A' WHERE id = 1", "first at id='1': name: 'A' instead of 'á'"),
        ("UPDATE cmp_a.t SET f = 0.10000001 WHERE id = 1", "f: '0.10000000894069672' instead of '0.10000000149011612'"),
        ("UPDATE cmp_a.t SET f = 3.4028e38 WHERE id = 2", "f: '3.40280e+38' instead of '3.40282e+38'"),
        ("UPDATE cmp_a.t SET d = 0.3 WHERE id = 3", "d: '0.3' instead of '0.30000000000000004'"),
        ("UPDATE cmp_a.t SET b = b'101010111101' WHERE id = 1", "b: '2749' instead of '2748'"),
        ("UPDATE cmp_a.t SET raw = NULL WHERE id = 2", "raw: NULL instead of ''"),
        ("UPDATE cmp_a.t SET raw = x'00' WHERE id = 1", "raw: '00' instead of '00FF'"),
        ("UPDATE cmp_a.t SET at = at + INTERVAL 1 MICROSECOND WHERE id = 1", "06.000008' instead of"),
        ("UPDATE cmp_a.t SET j = '3.5' WHERE id = 2", "j: '3.5' instead of '3'"),
        ("UPDATE cmp_a.t SET e = '' WHERE id = 1", 'e: \'\' instead of "it\'s"'),
        ("UPDATE cmp_a.t SET c = 'e' WHERE id = 2", "c: 'e' instead of 'E'"),
        ("DROP TABLE cmp_a.t", "cmp_a.t: base table missing on the target"),
        ("DROP VIEW cmp_a.v", "cmp_a.v: view missing on the target"),
        ("CREATE TABLE cmp_b.more (id int)", "cmp_b.more: base table only on the target"),
        ("CREATE SEQUENCE cmp_b.s", "cmp_b.s: sequence only on the target"),
        ("DROP DATABASE cmp_b", "database cmp_b: missing on the target"),
        ("CREATE DATABASE cmp_c", "database cmp_c: only on the target"),
        ("ALTER TABLE cmp_a.t MODIFY n decimal(10,4)", "column n is decimal(10,4) instead of decimal(10,3)"),
        ("ALTER TABLE cmp_a.t MODIFY d double NOT NULL", "column d is NOT NULL instead of nullable"),
        ("ALTER TABLE cmp_a.t MODIFY z int unsigned", "column z is int unsigned instead of int unsigned zerofill"),
        ("ALTER TABLE cmp_a.t MODIFY e enum('a','it''s','b\\\\c','😀','z') COLLATE utf8mb4_bin", "column e is enum"),
        ("ALTER TABLE cmp_a.t MODIFY name varchar(20) COLLATE utf8mb4_bin",
         "column name has collation utf8mb4_bin instead of utf8mb4_general_ci"),
        ("ALTER TABLE cmp_a.t MODIFY c varchar(9) COLLATE utf8mb4_general_ci",
         "column c has collation utf8mb4_general_ci instead of utf8mb4_uca1400_nopad_ai_ci"),
        ("ALTER TABLE cmp_a.t ADD KEY k (n)", "cmp_a.t: key k (n) only on the target"),
        ("ALTER TABLE cmp_a.t DROP KEY name_b", "cmp_a.t: unique key name_b (name(5), b) missing"),
        ("ALTER TABLE cmp_a.t DROP KEY name_b, ADD UNIQUE KEY name_b (name, b)",
         "unique key name_b (name(5), b) missing"),
        ("ALTER TABLE cmp_a.t DROP KEY name_b, ADD KEY name_b (name(5), b)", "unique key name_b (name(5), b) missing"),
        ("ALTER TABLE cmp_a.t DROP PRIMARY KEY", "unique key primary (id) missing"),
        ("ALTER TABLE cmp_a.t DROP COLUMN w", "columns id, name, b, f, d, n, z, y, e, raw, at, j"),
        ("ALTER TABLE cmp_a.t MODIFY w time(3) FIRST", "columns w, id, name"),
    ],
)  # fmt: skip
def test_each_kind_of_difference_is_found_and_named(target: MariaDb, change: str, difference: str) -> None:
    execute(target, "SET sql_mode = ''", change)
    result = compare(target)
    assert not result.equal
    assert difference in "\n".join(result.differences)


def test_row_order_is_ignored_but_duplicates_count(target: MariaDb) -> None:
    assert compare(target, state(ROWS[::-1])).equal
    assert "1 rows missing" in compare(target, state([*ROWS, ROWS[0]])).first_difference


def test_dropped_table_must_not_exist(target: MariaDb) -> None:
    gone = {"table": "cmp_a.t", "schema": "cmp_a", "name": "t", "absent": True}
    result = compare(target, replace(state(), contents=(gone,)))
    assert result.differences == ["cmp_a.t: is on the target, although the capture dropped it"]


def test_without_a_table_list_only_recorded_tables_are_compared(target: MariaDb) -> None:
    partly = replace(state(), databases=None, tables=None)
    assert compare(target, partly).equal
    execute(target, "DROP TABLE cmp_a.t")
    assert compare(target, partly).differences == ["cmp_a.t: missing on the target"]


def test_sequences_are_compared_only_if_the_target_has_them(target: MariaDb) -> None:
    tables = [*(state().tables or []), ("cmp_a", "s", "SEQUENCE")]
    result = compare(target, replace(state(), tables=tables))
    assert result.equal
    assert result.exemptions["sequence: the target has none"] == 1
    execute(target, "CREATE SEQUENCE cmp_a.s")
    assert compare(target, replace(state(), tables=tables)).equal


def test_unreachable_target_raises_target_unavailable() -> None:
    with pytest.raises(TargetUnavailable, match="cannot be compared"):
        connect("127.0.0.1", 1, "root")
