"""A source that compares by bytes regardless of its collations: definitions and text get bytewise collations."""

from __future__ import annotations

import pytest
from support.tabledefs import col, key, table

from binlake.common.sql import Dialect
from binlake.ddl.definitions import LandedDdl, WindowDefinitions, use_bytewise_collations
from binlake.dialect import choose_bytewise_collation, derive_bytewise_definitions, render_bytewise
from binlake.rows.schema import DbInfo, SchemaState
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.state import DdlSide
from binlake.target.definitions.forms import build_expected_form


@pytest.mark.parametrize(
    ("name", "dialect", "expected"),
    [
        # `a ` and `a` are two keys of such a source, so the target must not pad
        ("utf8mb4_general_ci", "mariadb", "utf8mb4_nopad_bin"),
        ("utf8mb4_bin", "mariadb", "utf8mb4_nopad_bin"),
        ("utf8_unicode_ci", "mariadb", "utf8mb3_nopad_bin"),
        ("latin1_bin", "mariadb", "latin1_nopad_bin"),
        ("gbk_chinese_ci", "mariadb", "gbk_nopad_bin"),
        ("utf8mb4_general_ci", "mysql", "utf8mb4_0900_bin"),
        ("latin1_bin", "mysql", "latin1_bin"),
        ("binary", "mariadb", "binary"),
        ("", "mariadb", ""),
        ("utf8mb4_general_ci", "tidb", "utf8mb4_general_ci"),
    ],
)
def test_bytewise_collations(name: str, dialect: Dialect, expected: str) -> None:
    assert choose_bytewise_collation(name, dialect) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("CREATE TABLE `t` (`collate` VARCHAR(9) COLLATE utf8mb4_general_ci)",
         "CREATE TABLE `t` (`collate` VARCHAR(9) COLLATE utf8mb4_nopad_bin)"),
        ("ALTER TABLE `t` CONVERT TO CHARACTER SET latin1", "ALTER TABLE `t` CONVERT TO CHARACTER SET latin1"
         " COLLATE latin1_nopad_bin"),
        ("CREATE DATABASE `d` CHARACTER SET = utf8mb4 COLLATE = utf8mb4_unicode_ci",
         "CREATE DATABASE `d` CHARACTER SET = utf8mb4 COLLATE utf8mb4_nopad_bin"),
        ("CREATE VIEW `v` AS SELECT CAST(`a` AS CHAR CHARACTER SET utf8mb4)",
         "CREATE VIEW `v` AS SELECT CAST(`a` AS CHAR CHARACTER SET utf8mb4)"),
        ("ALTER TABLE `t` ADD COLUMN `c` CHAR(3) DEFAULT _UTF8MB4'COLLATE x'",
         "ALTER TABLE `t` ADD COLUMN `c` CHAR(3) DEFAULT _UTF8MB4'COLLATE x'"),
    ],
)  # fmt: skip
def test_ddl_text_gets_bytewise_collations(query: str, expected: str) -> None:
    assert render_bytewise(query, "mariadb") == expected
    assert render_bytewise(query, "tidb") == query


def test_window_definitions_get_bytewise_collations() -> None:
    # S0-22: the keys `a` and `A` of such a source are two rows
    source = table("t", col("k", t.VARCHAR, flen=9, collate="utf8mb4_general_ci"), col("b", t.BLOB, charset="binary"),
                   keys=(key("u", "k"),))  # fmt: skip
    database = DbInfo.from_json({"id": 2, "db_name": {"O": "d"}, "charset": "utf8mb4", "collate": "utf8mb4_general_ci"})
    after = derive_bytewise_definitions(DdlSide((database,), (source,)), "mariadb")
    assert after.databases[0].collate == after.tables[0].collate == "utf8mb4_nopad_bin"
    assert [c.collation for c in build_expected_form(after.tables[0], "mariadb").columns] == ["utf8mb4_nopad_bin", ""]
    made = LandedDdl(5, 5, 4, 1, 1, 3, "d", "t", "", "CREATE TABLE `t` (`k` VARCHAR(9) COLLATE utf8mb4_general_ci)",
                     "apply", "", DdlSide((), ()), DdlSide((database,), (source,)))  # fmt: skip
    at_target = use_bytewise_collations(made, "mariadb")
    assert at_target.sql.startswith("CREATE TABLE")
    assert "general" not in at_target.sql
    found = WindowDefinitions(SchemaState(), [at_target]).find_at("d", "t", 5)
    assert found is not None
    assert found.columns[0].collate == "utf8mb4_nopad_bin"
