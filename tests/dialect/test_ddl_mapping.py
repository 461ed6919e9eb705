"""TiDB's DDL text for a target: clauses that are dropped, rewritten, skipped or refused; the page lists all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tabledefs import col, key, primary, table

from binlake.common.sql import Dialect
from binlake.dialect import DdlKind, DdlText, classify, find_target_collation, map_ddl
from binlake.dialect.clauses import DROPPED_OPTIONS, DROPPED_WORDS
from binlake.dialect.collations import DEFAULT_COLLATIONS, MARIADB_COLLATIONS
from binlake.dialect.tokens import TokenKind, render, tokenize
from binlake.errors import SchemaError, TargetRefused
from binlake.rows.schema import DbInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.info import SOURCE_KEY
from binlake.rows.schema.state import DdlSide
from binlake.statements.generation import list_written_columns
from binlake.statements.literal import quote, quote_name

PAGE = Path(__file__).resolve().parents[2] / "docs" / "understand" / "target-mapping.md"
NONE = DdlSide((), ())


def ddl(query: str, *after: TableDef, before: tuple[TableDef, ...] = (), name: str = "", db: str = "d") -> DdlText:
    return DdlText(7, db, name, query, DdlSide((), before), DdlSide((), after))


def mapped(query: str, *after: TableDef, dialect: Dialect = "mariadb", **more: tuple[TableDef, ...]) -> str:
    found = map_ddl(ddl(query, *after, **more), dialect)
    assert found.sql, found.reason
    return found.sql[-1]


T = table("t", col("a", not_null=True), col("b", t.VARCHAR, flen=9), keys=(primary("a"),))
OPTIONS = " DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"


@pytest.mark.parametrize(
    ("query", "kind", "tables", "destructive"),
    [
        ("CREATE DATABASE IF NOT EXISTS `x`;", DdlKind.CREATE_DATABASE, (("", "x"),), False),
        ("CREATE TABLE `a`.`b` (`i` INT)", DdlKind.CREATE_TABLE, (("a", "b"),), False),
        ("CREATE TABLE `b` LIKE `c`", DdlKind.CREATE_TABLE_LIKE, (("", "b"),), False),
        ("CREATE UNIQUE INDEX `i` ON `b` (`c`)", DdlKind.CREATE_INDEX, (("", "b"),), False),
        ("ALTER TABLE `b` DROP COLUMN `c`", DdlKind.ALTER_TABLE, (("", "b"),), True),
        ("ALTER TABLE `b` DROP INDEX `c`", DdlKind.ALTER_TABLE, (("", "b"),), False),
        ("ALTER TABLE `b` ADD COLUMN `c` INT, DROP PARTITION `p`", DdlKind.ALTER_TABLE, (("", "b"),), True),
        ("DROP TABLE IF EXISTS `a`, `x`.`b`", DdlKind.DROP_TABLE, (("", "a"), ("x", "b")), True),
        ("TRUNCATE `b`", DdlKind.TRUNCATE_TABLE, (("", "b"),), True),
        ("RENAME TABLE `a` TO `x`.`b`, `c` TO `a`", DdlKind.RENAME_TABLE,
         (("", "a"), ("x", "b"), ("", "c"), ("", "a")), False),
        ("CREATE OR REPLACE ALGORITHM = MERGE DEFINER = `u`@`%` VIEW `v` AS SELECT 1", DdlKind.CREATE_VIEW,
         (("", "v"),), False),
        ("FLASHBACK TABLE `a` TO `b`", DdlKind.OTHER, (), False),
        ("/*T![placement] CREATE PLACEMENT POLICY `p` */;", DdlKind.OTHER, (), False),
    ],
)  # fmt: skip
def test_classify(query: str, kind: DdlKind, tables: tuple[tuple[str, str], ...], destructive: bool) -> None:
    found = classify(query)
    assert (found.kind, found.tables, found.destructive) == (kind, tables, destructive)


@given(
    st.text(st.characters(exclude_categories=("Cs",))), st.text(st.characters(exclude_categories=("Cs",)), min_size=1)
)
def test_tokenizer_keeps_names_and_strings_intact(text: str, name: str) -> None:
    query = f"ALTER TABLE {quote_name(name)} COMMENT = {quote(text)}"
    tokens = tokenize(query)
    assert [token.kind for token in tokens[2:]] == [TokenKind.NAME, TokenKind.WORD, TokenKind.MARK, TokenKind.STRING]
    assert tokens[2].value == name
    assert render(tokens) == query


def test_unclosed_quote_is_an_error() -> None:
    with pytest.raises(SchemaError, match="is not closed"):
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
        ("CREATE TABLE `t` (`a` INT,INDEX `i`(`a`) INVISIBLE)",
         "CREATE TABLE `t` (`a` INT,INDEX `i`(`a`) IGNORED)" + OPTIONS),
        ("CREATE TABLE `t` (`a` INT,UNIQUE `u`(`b`, (LOWER(`b`))),INDEX `i`((`a`*2)))",
         "CREATE TABLE `t` (`a` INT)" + OPTIONS),
        ("CREATE TABLE `t` (`a` INT,`g` INT GENERATED ALWAYS AS(`a`+1) STORED NOT NULL)",
         "CREATE TABLE `t` (`a` INT,`g` INT GENERATED ALWAYS AS(`a`+1) STORED)" + OPTIONS),
        ("ALTER TABLE `t` ADD COLUMN `b` VARCHAR(9) CHARACTER SET LATIN1 DEFAULT _UTF8MB4'x'",
         "ALTER TABLE `t` ADD COLUMN `b` VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin DEFAULT 'x'"),
        ("ALTER TABLE `t` ADD INDEX `i`(`a`), ALGORITHM = INPLACE, LOCK = NONE", "ALTER TABLE `t` ADD INDEX `i`(`a`)"),
        ("ALTER TABLE `t` REORGANIZE PARTITION `p1`,`p2` INTO (PARTITION `q` VALUES LESS THAN (9))",
         "ALTER TABLE `t` REORGANIZE PARTITION `p1`,`p2` INTO (PARTITION `q` VALUES LESS THAN (9))"),
        ("ALTER TABLE `t` EXCHANGE PARTITION `p` WITH TABLE `x` WITHOUT VALIDATION",
         "ALTER TABLE `t` EXCHANGE PARTITION `p` WITH TABLE `x`"),
        ("CREATE INDEX `i` ON `t` (`a`) ALGORITHM = INPLACE LOCK = NONE", "CREATE INDEX `i` ON `t` (`a`)"),
        ("CREATE ALGORITHM = UNDEFINED DEFINER = `u`@`%` SQL SECURITY DEFINER VIEW `v` AS SELECT 1",
         "CREATE ALGORITHM = UNDEFINED DEFINER = CURRENT_USER SQL SECURITY DEFINER VIEW `v` AS SELECT 1"),
        ("CREATE TABLE `t` (`a` INT,`tablespace` INT) TABLESPACE = `ts` DATA DIRECTORY = '/x' COMMENT = 'TABLESPACE'",
         "CREATE TABLE `t` (`a` INT,`tablespace` INT)" + OPTIONS + " COMMENT = 'TABLESPACE'"),
        ("ALTER TABLE `t` ADD COLUMN `b` INT PARTITION BY HASH (`a`) PARTITIONS 2",
         "ALTER TABLE `t` ADD COLUMN `b` INT PARTITION BY HASH (`a`) PARTITIONS 2"),
        ("CREATE TABLE `t` (`engine` INT,`x` VARCHAR(30) DEFAULT _UTF8MB4'CLUSTERED /*T! */ ENGINE')",
         "CREATE TABLE `t` (`engine` INT,`x` VARCHAR(30) DEFAULT 'CLUSTERED /*T! */ ENGINE')" + OPTIONS),
    ],
)  # fmt: skip
def test_mariadb(query: str, expected: str) -> None:
    assert mapped(query, T) == expected


def test_each_create_gets_the_charset_of_its_definition() -> None:
    # DESIGN 4
    latin = table("t", col("a"), charset="latin1", collate="latin1_bin")
    created = mapped("CREATE TABLE `t` (`a` INT)", latin)
    assert created.endswith("DEFAULT CHARACTER SET latin1 COLLATE latin1_bin")
    general = DbInfo(3, "x", "utf8mb4", "utf8mb4_general_ci", {})
    made = DdlText(7, "x", "", "CREATE DATABASE `x`;", NONE, DdlSide((general,), ()))
    assert map_ddl(made, "mariadb").sql == (
        "CREATE DATABASE `x` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    )


def test_column_with_another_collation_names_it() -> None:
    own = table(
        "t", col("a"), col("n", t.VARCHAR, flen=9, collate="utf8mb4_general_ci"), col("e", t.ENUM, elems=("x",))
    )
    text = mapped("ALTER TABLE `t` MODIFY COLUMN `n` VARCHAR(9) NOT NULL FIRST", own)
    assert text == (
        "ALTER TABLE `t` MODIFY COLUMN `n` VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL FIRST"
    )
    assert mapped("ALTER TABLE `t` MODIFY COLUMN `e` ENUM('x')", own) == "ALTER TABLE `t` MODIFY COLUMN `e` ENUM('x')"


def test_index_keyword_is_not_a_column_of_that_name() -> None:
    # Otherwise the collation of the column `Key` would be put into the clause `KEY (...)`.
    named = table("t", col("Key", t.VARCHAR, flen=9, charset="latin1", collate="latin1_bin"))
    elements = "(`Key` VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_bin, KEY `a b` (`Key`))"
    assert mapped(f"CREATE TABLE `t` {elements}", named) == f"CREATE TABLE `t` {elements}{OPTIONS}"


def test_backslash_in_an_element_is_preserved() -> None:
    odd = table("t", col("e", t.ENUM, elems=("x\\y", "it's")))
    assert "ENUM('x\\\\y','it\\'s')" in mapped(r"CREATE TABLE `t` (`e` ENUM('x\y','it''s'))", odd).replace("( ", "(")


def test_statements_run_in_the_database_of_their_names() -> None:
    assert map_ddl(ddl("TRUNCATE TABLE `t`"), "mariadb").sql == ("USE `d`", "TRUNCATE TABLE `t`")
    # the job of a rename names the new database
    old, new = table("t", col("a"), db="one"), table("t", col("a"), db="two")
    moved = ddl("RENAME TABLE `t` TO `two`.`t`", new, before=(old,), db="two")
    assert map_ddl(moved, "mariadb").sql[0] == "USE `one`"


def test_drop_of_several_tables_drops_only_the_jobs_tables() -> None:
    # hazards R-28
    mine = table("b", col("a"), db="y")
    assert mapped("DROP TABLE IF EXISTS `a`, `y`.`b`, `c`", before=(mine,)) == "DROP TABLE IF EXISTS `y`.`b`"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("/*T![placement] ALTER DATABASE `d` PLACEMENT POLICY = `p` */;", "placement"),
        ("ALTER TABLE `t` /*T! SHARD_ROW_ID_BITS = 4 */;", "only options of TiDB remain"),
        ("ALTER TABLE `t` SHARD_ROW_ID_BITS = 4", "only options of TiDB remain"),
        ("ALTER TABLE `t` SET TIFLASH REPLICA 1", "TiFlash"),
        ("ALTER TABLE `t` ATTRIBUTES='merge_option=deny'", "attributes"),
        ("CREATE GLOBAL TEMPORARY TABLE `t` (`a` INT) ON COMMIT DELETE ROWS", "temporary"),
        ("ALTER TABLE `t` ADD INDEX `i`((`a`*2))", "index on an expression"),
        ("CREATE INDEX `i` ON `t` ((`a`*2))", "index on an expression"),
    ],
)
def test_skipped_ddl_has_a_reason(query: str, reason: str) -> None:
    found = map_ddl(ddl(query, T), "mariadb")
    assert (bool(found.reason), found.sql) == (True, ())
    assert reason in found.reason


@pytest.mark.parametrize(
    ("query", "clause", "dialect"),
    [
        ("RECOVER TABLE `t`", "RECOVER TABLE `t`", "mysql"),
        ("CREATE SEQUENCE `s`", "SEQUENCE", "mysql"),
        (
            "CREATE TABLE `t` (`a` VARCHAR(9) COLLATE utf8mb4_de_pb_0900_ai_ci)",
            "COLLATE utf8mb4_de_pb_0900_ai_ci, as none",
            "mariadb",
        ),
        (
            "CREATE TABLE `t` (`a` VARCHAR(9) COLLATE utf8mb4_uca1400_danish_as_ci)",
            "COLLATE utf8mb4_uca1400_danish_as_ci, as none",
            "mysql",
        ),
    ],
)
def test_inexpressible_ddl_is_refused_with_a_hint(query: str, clause: str, dialect: Dialect) -> None:
    with pytest.raises(TargetRefused, match="cannot be expressed") as stopped:
        map_ddl(ddl(query, T), dialect)
    assert clause in stopped.value.message
    assert stopped.value.where["commit_ts"] == "7"
    assert "ignore-txn-commit-ts" in stopped.value.hint


G = col("g", t.LONGLONG, generated_expr_string="`a`+1", generated_stored=True, not_null=True)


def test_generated_primary_key_column_is_plain_in_mariadb() -> None:
    # MariaDB has no such key; the source's images have the column's values
    g = table("t", col("a"), G, keys=(primary("g"),))
    query = "CREATE TABLE `t` (`a` INT,`g` INT GENERATED ALWAYS AS(`a`+1) STORED NOT NULL,PRIMARY KEY(`g`))"
    assert mapped(query, g) == "CREATE TABLE `t` (`a` INT,`g` INT NOT NULL,PRIMARY KEY(`g`))" + OPTIONS
    assert "STORED NOT NULL,PRIMARY KEY" in mapped(query, g, dialect="mysql")
    assert [c.name for c in list_written_columns(g, "mariadb")] == ["a", "g"]
    assert [c.name for c in list_written_columns(g, "mysql")] == ["a"]


def test_generated_column_is_plain_in_mariadb_while_it_is_in_the_primary_key() -> None:
    keyed, free = table("t", col("a"), G, keys=(primary("g"),)), table("t", col("a"), G)
    for before, after, query, also in (
        (free, keyed, "ALTER TABLE `t` ADD PRIMARY KEY(`g`)", "bigint NOT NULL"),
        (keyed, free, "ALTER TABLE `t` DROP PRIMARY KEY", "bigint GENERATED ALWAYS AS (`a`+1) STORED"),
    ):
        assert mapped(query, after, before=(before,)) == f"{query}, MODIFY COLUMN `g` {also}"
        assert mapped(query, after, before=(before,), dialect="mysql") == query


def test_unique_key_that_loses_a_column_is_made_again_in_mariadb() -> None:  # drawn sources, world 72000075
    before = table("t", col("a"), col("c"), col("b"), keys=(primary("b", "a"), key("u", "c", "b"), key("v", "a", "c")))
    after = table("t", col("a"), col("c"), keys=(primary("a"), key("u", "c"), key("v", "a", "c")))
    dropped = "ALTER TABLE `t` DROP COLUMN `B`"
    assert mapped(dropped, after, before=(before,)) == (
        f"{dropped}, DROP PRIMARY KEY, ADD PRIMARY KEY (`a`), DROP INDEX `u`, ADD UNIQUE INDEX `u` (`c`)"
    )
    assert mapped(dropped, after, before=(before,), dialect="mysql") == dropped
    number = col("a")
    number["type"]["Flag"] |= t.FLAG_PRIMARY
    handle = table("t", number, col("c"), keys=(key("u", "c"), key("v", "a", "c")), pk_is_handle=True)
    assert mapped(dropped, handle, before=(before,)) == mapped(dropped, after, before=(before,))
    own = f"{dropped}, DROP PRIMARY KEY, ADD PRIMARY KEY(`a`), DROP KEY `U`, ADD UNIQUE KEY `u`(`c`)"
    assert mapped(own, after, before=(before,)) == own


def test_expression_index_ddl_is_skipped_in_mariadb() -> None:
    # the source enforces the index; the rows are the same without it
    hidden = table("t", col("a"), keys=(key("e", "_v$_e_0", unique=False), key("i", "a", unique=False)))
    for query in ("ALTER TABLE `t` DROP INDEX `E`", "DROP INDEX `e` ON `t`", "ALTER TABLE `t` RENAME INDEX `e` TO `f`"):
        found = map_ddl(ddl(query, hidden, before=(hidden,)), "mariadb")
        assert (found.sql, found.reason) == ((), "MariaDB has no index on an expression"), query
        assert map_ddl(ddl(query, hidden, before=(hidden,)), "mysql").sql
    assert mapped("ALTER TABLE `t` DROP INDEX `i`", hidden, before=(hidden,)) == "ALTER TABLE `t` DROP INDEX `i`"


def check(name: str, expression: str, *, enforced: bool = True) -> dict[str, object]:
    return {"constraint_name": {"O": name, "L": name}, "expr_string": expression, "enforced": enforced}


def checked(*checks: dict[str, object]) -> TableDef:
    return table("t", col("a"), col("b"), constraint_info=list(checks))


def test_checks_come_from_the_definition() -> None:
    # TiDB ignores CHECK if tidb_enable_check_constraint is off, so the text is not reliable
    query = "CREATE TABLE `t` (`a` INT CONSTRAINT `x` CHECK(`a`>0) NOT NULL,CHECK(`b`<9) NOT ENFORCED,`b` INT)"
    plain = "CREATE TABLE `t` (`a` INT NOT NULL,`b` INT"
    assert mapped(query, checked()) == f"{plain}){OPTIONS}"
    two = checked(check("x", "`a` > 0"), check("t_chk_1", "`b` < 9", enforced=False))
    x, last = "CONSTRAINT `x` CHECK (`a` > 0)", "CONSTRAINT `t_chk_1` CHECK (`b` < 9) NOT ENFORCED"
    assert mapped(query, two) == f"{plain}, {x}){OPTIONS}"
    assert mapped(query, two, dialect="mysql") == f"{plain}, {x}, {last}){OPTIONS}"


@pytest.mark.parametrize(
    ("query", "before", "after", "mariadb", "mysql"),
    [
        ("ADD CONSTRAINT `c` CHECK(`a`>0)", None, True, "ADD CONSTRAINT `c` CHECK (`a` > 0)",
         "ADD CONSTRAINT `c` CHECK (`a` > 0)"),
        ("ADD COLUMN `b` INT CHECK(`a`>0)", None, True, "ADD COLUMN `b` INT, ADD CONSTRAINT `c` CHECK (`a` > 0)",
         "ADD COLUMN `b` INT, ADD CONSTRAINT `c` CHECK (`a` > 0)"),
        ("ALTER CONSTRAINT `c` NOT ENFORCED", True, False, "DROP CONSTRAINT `c`", "ALTER CHECK `c` NOT ENFORCED"),
        ("ALTER CHECK `c` ENFORCED", False, True, "ADD CONSTRAINT `c` CHECK (`a` > 0)", "ALTER CHECK `c` ENFORCED"),
        ("DROP CONSTRAINT `c`", True, None, "DROP CONSTRAINT `c`", "DROP CHECK `c`"),
        ("DROP CHECK `c`", False, None, "", "DROP CHECK `c`"),
        ("ADD CHECK(`a`>0)", None, None, "", ""),
    ],
)  # fmt: skip
def test_checks_of_an_alter(query: str, before: bool | None, after: bool | None, mariadb: str, mysql: str) -> None:
    sides = [checked() if on is None else checked(check("c", "`a` > 0", enforced=on)) for on in (before, after)]
    for dialect, expected in (("mariadb", mariadb), ("mysql", mysql)):
        found = map_ddl(ddl(f"ALTER TABLE `t` {query}", sides[1], before=(sides[0],)), dialect)  # type: ignore[arg-type]
        assert found.sql[1:] == ((f"ALTER TABLE `t` {expected}",) if expected else ()), dialect


def test_index_of_a_foreign_key_is_written_explicitly() -> None:
    # a server drops an index that it created itself when another index can serve
    text = "CONSTRAINT `f` FOREIGN KEY (`a`) REFERENCES `p`(`id`)"
    with_key = table("t", col("a"), keys=(key("f", "a", unique=False),), fk_info=[{"fk_name": {"O": "f", "L": "f"}}])
    assert (
        mapped(f"CREATE TABLE `t` (`a` INT,{text})", with_key)
        == f"CREATE TABLE `t` (`a` INT,{text}, INDEX `f` (`a`)){OPTIONS}"
    )
    assert mapped(f"CREATE TABLE `t` (`a` INT,{text},INDEX `f`(`a`))", with_key).count("INDEX `f`") == 1
    added = f"ALTER TABLE `t` ADD {text}"
    assert mapped(added, with_key, before=(table("t", col("a")),)) == f"{added}, ADD INDEX `f` (`a`)"
    assert mapped(added, with_key, before=(with_key,)) == added


def test_new_column_is_filled_with_the_sources_time() -> None:
    # 5.5: TiDB stores the time of the ALTER as origin default; the target would use its own time
    now = col("at", t.DATETIME, default="CURRENT_TIMESTAMP", origin_default="2026-11-21 09:03:16.123")
    query = "ALTER TABLE `t` ADD COLUMN `at` DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3)"
    found = map_ddl(ddl(query, table("t", col("a"), now), before=(table("t", col("a")),)), "mariadb")
    clock = "SET SESSION timestamp = UNIX_TIMESTAMP('2026-11-21 09:03:16.123')"
    assert found.sql == ("USE `d`", clock, query, "SET SESSION timestamp = DEFAULT")


def test_new_columns_with_different_times_get_separate_defaults() -> None:
    # a TIMESTAMP's time is in UTC, a DATETIME's in the zone of the source's session
    stamp = col("b", t.TIMESTAMP, default="CURRENT_TIMESTAMP", origin_default="2026-11-21 09:03:16.123", decimal=3)
    local = col("c", t.DATETIME, default="CURRENT_TIMESTAMP", origin_default="2026-11-21 17:03:16")
    query = (
        "ALTER TABLE `t` ADD COLUMN `b` TIMESTAMP(3) DEFAULT CURRENT_TIMESTAMP(3) ON UPDATE CURRENT_TIMESTAMP(3),"
        " ADD COLUMN `c` DATETIME DEFAULT CURRENT_TIMESTAMP()"
    )
    asked = ddl(query, table("t", col("a"), stamp, local), before=(table("t", col("a")),))
    assert map_ddl(asked, "mariadb").sql[1:] == (
        "ALTER TABLE `t` ADD COLUMN `b` TIMESTAMP(3) DEFAULT '2026-11-21 09:03:16.123' ON UPDATE CURRENT_TIMESTAMP(3),"
        " ADD COLUMN `c` DATETIME DEFAULT '2026-11-21 17:03:16'",
        "ALTER TABLE `t` ALTER COLUMN `b` SET DEFAULT (CURRENT_TIMESTAMP(3))",
        "ALTER TABLE `t` ALTER COLUMN `c` SET DEFAULT (CURRENT_TIMESTAMP())",
    )
    with pytest.raises(TargetRefused, match="different times"):
        map_ddl(asked, "tidb")


def test_tidb_target_gets_tidb_text() -> None:
    query = "CREATE TABLE `t` (`a` INT PRIMARY KEY /*T![clustered_index] CLUSTERED */) /*T! SHARD_ROW_ID_BITS = 4 */"
    assert mapped(query + ";", T, dialect="tidb") == query


def test_key_word_after_a_parenthesis_is_not_an_expression_index() -> None:
    unique = table("t", col("a", t.NEWDECIMAL, flen=3, decimal=1), keys=(key("a", "a"),))
    assert "DECIMAL(3,1) UNIQUE KEY" in mapped("CREATE TABLE `t` (`a` DECIMAL(3,1) UNIQUE KEY)", unique)


def test_the_page_names_every_rule() -> None:
    page = PAGE.read_text(encoding="utf-8")
    named = {*DROPPED_OPTIONS, *DROPPED_WORDS, *MARIADB_COLLATIONS, *MARIADB_COLLATIONS.values()}
    named |= set(DEFAULT_COLLATIONS.values())
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []
    assert find_target_collation("UTF8_GENERAL_CI", "mysql") == "utf8mb3_general_ci"


def test_batch_create_becomes_one_statement_per_table() -> None:  # tidb-binlog 5.3 row 7: a drainer skips it
    a, b = table("a", col("x")), table("b", col("x", comment=";"), collate="utf8mb4_general_ci")
    text = "CREATE TABLE `d`.`a` (`x` INT) /*T![ttl] TTL = 1 */;CREATE TABLE `d`.`b` (`x` INT COMMENT ';');"
    found = map_ddl(DdlText(1, "d", "", text, DdlSide((), ()), DdlSide((), (a, b))), "mariadb")
    assert found.sql == (
        "USE `d`",
        "CREATE TABLE `d`.`a` (`x` INT) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        "CREATE TABLE `d`.`b` (`x` INT COMMENT ';') DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    )


@pytest.mark.parametrize("dialect", ["mariadb", "mysql"])
@pytest.mark.parametrize("source", ["", "mysql"])
@pytest.mark.parametrize("word", ["FLOAT", "DOUBLE", "DOUBLE PRECISION", "REAL"])
def test_bounds_of_a_float_hold_no_tidb_values(dialect: Dialect, source: str, word: str) -> None:
    """TiDB stores -1e8 in FLOAT(10,2); the other servers refuse it there (MySQL's own tables keep their bounds)."""
    tp = t.FLOAT if word == "FLOAT" else t.DOUBLE
    one = table("t", col("a"), col("g", tp, flen=10, decimal=2))
    one = replace(one, raw={**one.raw, SOURCE_KEY: source})
    bounds = "(10,2)" if source else ""
    query = f"CREATE TABLE `t` (`a` INT,`g` {word}(10,2) UNSIGNED DEFAULT 1.5)"
    assert f"`g` {word}{bounds} UNSIGNED DEFAULT 1.5" in mapped(query, one, dialect=dialect)
    altered = map_ddl(ddl(f"ALTER TABLE `t` ADD COLUMN (`g` {word}(10,2))", one), dialect).sql[-1]
    assert altered == f"ALTER TABLE `t` ADD COLUMN `g` {word}{bounds}"


@pytest.mark.parametrize(
    ("former", "bounds"),
    [((t.FLOAT, 10, 2), ""), ((t.FLOAT, 10, 3), "(12,2)"), ((t.FLOAT, 12, -1), "(12,2)"), ((t.LONG, 11, 0), "(12,2)")],
    ids=["same scale", "rounded", "rounded from a plain one", "another type"],
)
def test_a_changed_float_keeps_the_bounds_that_round_it(former: tuple[int, int, int], bounds: str) -> None:
    tp, flen, decimal = former
    before = table("t", col("a"), col("g", tp, flen=flen, decimal=decimal))
    after = table("t", col("a"), col("g", t.FLOAT, flen=12, decimal=2))
    sides = (DdlSide((), (before,)), DdlSide((), (after,)))
    mapped_sql = map_ddl(DdlText(1, "d", "t", "ALTER TABLE `t` MODIFY `g` FLOAT(12,2)", *sides), "mariadb").sql
    assert [sql for sql in mapped_sql if sql.endswith(f"`g` FLOAT{bounds}")]


@pytest.mark.parametrize("dialect", ["mariadb", "mysql", "tidb"])
@pytest.mark.parametrize("word", ["DOUBLE", "REAL", "DOUBLE PRECISION"])
def test_a_real_that_the_session_made_a_float_is_a_float(dialect: Dialect, word: str) -> None:
    """With REAL_AS_FLOAT TiDB's text says DOUBLE, and its definition FLOAT."""
    real = table("t", col("a"), col("r", t.FLOAT), col("d", t.DOUBLE))
    query = f"CREATE TABLE `t` (`a` INT,`r` {word} DEFAULT 1.5,`d` DOUBLE)"
    assert "`r` FLOAT DEFAULT 1.5,`d` DOUBLE" in mapped(query, real, dialect=dialect)
    altered = map_ddl(ddl(f"ALTER TABLE `t` ADD COLUMN `r` {word}, MODIFY `d` DOUBLE", real), dialect).sql[-1]
    assert altered == "ALTER TABLE `t` ADD COLUMN `r` FLOAT, MODIFY `d` DOUBLE"
