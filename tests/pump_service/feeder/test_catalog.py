"""The catalog follows a source's DDL: a target that runs what it publishes has the source's tables at each step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.followed import COPY, Followed
from support.mariadb import execute
from support.mariadb import rows as rows_of

from binlake.errors import ConfigError, SchemaError, TargetRefused
from binlake.mysqlbinlog.definitions.descriptions import TableDescription
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY
from binlake.mysqlbinlog.dumpfolder import read_dump_folder
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.sources import read_schema_files
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import Action
from deploy.local.mariadb import MariaDb


@pytest.fixture(params=[Flavor.MARIADB, Flavor.MYSQL], ids=lambda flavor: str(flavor.value))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    server: MariaDb = request.getfixturevalue("mariadb" if request.param is Flavor.MARIADB else "mysql")
    server.wipe()
    copy = Followed(server, request.param)
    yield copy
    copy.close()


def is_copied(followed: Followed, table: str, db: str = "shop") -> bool:
    """Whether the target's table equals the source's, and the catalog's definition matches it."""
    source, target = followed.described(db, table), followed.described(COPY + db, table)
    assert source is not None
    assert target is not None
    assert comparable(target) == comparable(replace(source, db=COPY + db))
    mine = followed.catalog.find_table(followed.source, db, table)
    assert mine is not None
    assert [c.name for c in mine.all_columns] == [c.name for c in source.columns]
    return True


def comparable(table: TableDescription) -> TableDescription:
    return replace(table, create="")


ALL_TYPES = """CREATE TABLE types (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, a TINYINT(1), b SMALLINT UNSIGNED ZEROFILL, c MEDIUMINT,
  d INT DEFAULT -5, e DECIMAL(20,5) DEFAULT 1.5, f FLOAT DEFAULT 0.5, g DOUBLE(10,3), h BIT(10) DEFAULT b'101',
  i DATE DEFAULT '2020-01-02', j TIME(3), k DATETIME(6) DEFAULT CURRENT_TIMESTAMP(6), l TIMESTAMP NULL DEFAULT
  CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, m YEAR DEFAULT 1999, n CHAR(10) CHARACTER SET latin1 DEFAULT 'x''y',
  o VARCHAR(20) COLLATE utf8mb4_bin DEFAULT 'a\\\\b', p TEXT, q MEDIUMTEXT CHARACTER SET gbk, r BINARY(4),
  s VARBINARY(9), t TINYBLOB, u LONGBLOB, v ENUM('a','b''c','d\\\\e') DEFAULT 'b''c', w SET('x','y'), x JSON,
  y VARCHAR(30) GENERATED ALWAYS AS (CONCAT(o, '-', d)) VIRTUAL, z BIGINT AS (d + 1) STORED COMMENT 'it''s',
  UNIQUE KEY u1 (o(5), d), KEY k1 (d), FULLTEXT KEY ft (p)
) DEFAULT CHARSET=latin1 COMMENT='a \\\\ b'"""


def test_every_type_of_a_table_is_in_its_definition_and_at_the_target(followed: Followed) -> None:
    followed.run("CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", db="")
    followed.run(ALL_TYPES)
    assert is_copied(followed, "types")
    table = followed.catalog.find_table("one", "shop", "types")
    assert table is not None
    assert table.pk_is_handle
    texts = {column.name: column.type_text for column in table.columns}
    assert texts["id"] == "bigint unsigned"
    assert texts["e"] == "decimal(20,5)"
    assert texts["k"] == "datetime(6)"
    assert texts["v"] == r"enum('a','b''c','d\e')"
    by_name = {column.name: column for column in table.columns}
    assert by_name["o"].default == "a\\b"
    assert by_name["n"].default == "x'y"
    assert (by_name["n"].charset, by_name["n"].collate) == ("latin1", "latin1_swedish_ci")
    assert by_name["h"].default_bit == b"\0\5"
    assert by_name["k"].default == by_name["l"].default == "CURRENT_TIMESTAMP"
    assert by_name["d"].default == "-5"
    assert by_name["y"].is_virtual
    assert by_name["z"].generated_stored
    assert table.comment == "a \\ b"


def test_the_history_of_a_table_is_followed_statement_by_statement(followed: Followed) -> None:
    followed.run("CREATE DATABASE shop", db="")
    followed.run("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(10), status INT)")
    first = followed.catalog.find_table("one", "shop", "t")
    for text in (
        "ALTER TABLE t ADD COLUMN comment VARCHAR(20) CHARACTER SET latin1 NOT NULL DEFAULT 'q' AFTER id",
        "alter table t add (x int, y datetime default now(), index by_x (x))",
        "ALTER TABLE t MODIFY name VARCHAR(30) NOT NULL, CHANGE status state BIGINT UNSIGNED DEFAULT 7 FIRST",
        "ALTER TABLE t DROP x, DROP INDEX by_x, ENGINE=InnoDB, COMMENT='so', ALGORITHM=COPY",
        "CREATE UNIQUE INDEX u ON t (name, state) ALGORITHM=INPLACE LOCK=NONE",
        "ALTER TABLE t ALTER COLUMN state SET DEFAULT 9",
        "ALTER TABLE t RENAME COLUMN name TO title",
        "ALTER TABLE t RENAME INDEX u TO v",
        "DROP INDEX v ON t",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, state)",
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci",
        "ALTER TABLE t DEFAULT CHARACTER SET latin1",
        "ALTER TABLE t ADD COLUMN after_it TIMESTAMP",
    ):
        followed.run(text)
        assert is_copied(followed, "t"), text
    last = followed.catalog.find_table("one", "shop", "t")
    assert first is not None
    assert last is not None
    assert last.id == first.id
    assert {c.name: c.id for c in last.columns}["title"] == {c.name: c.id for c in first.columns}["name"]
    assert {c.name: c.id for c in last.columns}["state"] == {c.name: c.id for c in first.columns}["status"]
    assert not last.pk_is_handle


@pytest.mark.parametrize(
    ("text", "same_ids"),
    [
        ("DROP COLUMN a, ADD COLUMN a INT", {"b": "b"}),
        ("CHANGE a c INT, ADD a INT", {"b": "b", "c": "a"}),
        ("RENAME COLUMN a TO c, ADD a INT", {"b": "b", "c": "a"}),
        ("DROP a, CHANGE b a INT", {"a": "b"}),
        ("RENAME COLUMN a TO b, RENAME COLUMN b TO a", {"a": "b", "b": "a"}),
        ("RENAME COLUMN IF EXISTS none TO a, CHANGE COLUMN IF EXISTS none b INT, ADD c INT", {"a": "a", "b": "b"}),
    ],
)
def test_a_column_has_an_id_of_its_own_whatever_its_name_was_before(
    quiet: Followed, text: str, same_ids: dict[str, str]
) -> None:
    quiet.follow("CREATE OR REPLACE TABLE ids (id INT PRIMARY KEY, a INT, b INT)")
    quiet.follow(f"ALTER TABLE ids {text}")
    table = quiet.catalog.find_table("quiet", "shop", "ids")
    assert table is not None
    former = {2: "a", 3: "b"}
    assert {c.name: former[c.id] for c in table.columns if c.id in former} == same_ids
    assert len({column.id for column in table.columns}) == len(table.columns)


@pytest.mark.parametrize(
    ("first", "then", "filled"),
    [
        ("INT DEFAULT 0", "ENUM('x','y')", None),
        ("DECIMAL(9,2) DEFAULT '1.50'", "DATE", None),
        ("VARCHAR(9) NOT NULL DEFAULT 'x'", "BIT(5) NOT NULL DEFAULT b'1'", "00"),
        ("TIME(2) DEFAULT '00:20:20'", "DATETIME", None),
        ("INT DEFAULT 7", "BIGINT", "7"),
        ("ENUM('a','b') DEFAULT 'b'", "ENUM('b','c') DEFAULT 'c'", "b"),
    ],
)
def test_values_of_older_rows_are_shown_in_the_columns_present_type(
    quiet: Followed, first: str, then: str, filled: str | None
) -> None:
    """Otherwise the table's rows could no longer be read."""
    quiet.follow("CREATE OR REPLACE TABLE held (id INT PRIMARY KEY)")
    quiet.follow(f"ALTER TABLE held ADD c {first}")
    quiet.follow(f"ALTER TABLE held MODIFY c {then}")
    table = quiet.catalog.find_table("quiet", "shop", "held")
    assert table is not None
    assert derive_filled_text(table.columns[1]) == filled


@pytest.mark.parametrize("zone", ["+05:30", "-08:00", "SYSTEM"])
def test_existing_rows_get_the_time_in_the_sessions_zone(followed: Followed, zone: str) -> None:
    followed.run("CREATE DATABASE shop", db="")
    followed.run("CREATE TABLE t (id INT PRIMARY KEY)")
    execute(followed.server, *(f"INSERT INTO {db}.t VALUES (1)" for db in ("shop", "copy_shop")))
    settings = f"SET SESSION time_zone = '{zone}'"
    followed.run("ALTER TABLE t ADD d DATETIME(3) DEFAULT CURRENT_TIMESTAMP(3)", settings=settings)
    followed.run("ALTER TABLE t ADD m TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP", settings=settings)
    shown = "SELECT id, CONCAT(d), UNIX_TIMESTAMP(m) FROM {}.t"
    source = rows_of(followed.server, shown.format("shop"))
    assert rows_of(followed.server, shown.format("copy_shop")) == source
    table = followed.catalog.find_table("one", "shop", "t")
    assert table is not None
    assert table.columns[1].origin_default == source[0][1]
    assert table.columns[2].origin_default == "2023-11-14 22:13:20"


def test_dropped_truncated_renamed_and_swapped_tables_are_followed(followed: Followed) -> None:
    followed.run("CREATE DATABASE shop", "CREATE DATABASE other", db="")
    followed.run("CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b LIKE a", "CREATE TABLE c (x INT)")
    ids = {name: followed.catalog.find_table("one", "shop", name) for name in "abc"}
    followed.run("TRUNCATE a", "RENAME TABLE a TO tmp, b TO a, tmp TO b", "ALTER TABLE c RENAME other.c, ADD y INT")
    a, b = followed.catalog.find_table("one", "shop", "a"), followed.catalog.find_table("one", "shop", "b")
    c = followed.catalog.find_table("one", "other", "c")
    assert a is not None
    assert b is not None
    assert c is not None
    assert all(ids.values())
    assert a.id == ids["b"].id
    assert b.id not in {table.id for table in ids.values()}, "truncated: a new table"
    assert c.id == ids["c"].id
    assert [column.name for column in c.columns] == ["x", "y"]
    assert is_copied(followed, "c", "other")
    assert is_copied(followed, "a")
    followed.run("DROP TABLE IF EXISTS a, b, none_such", "DROP DATABASE other")
    assert followed.catalog.find_table("one", "shop", "a") is None
    assert followed.described("copy_shop", "a") is None
    assert followed.described_database("copy_other") is None
    actions = [Action(change.body["type"]) for change in followed.changes]
    assert actions[-3:] == [Action.DROP_TABLE, Action.DROP_TABLE, Action.DROP_SCHEMA]


def test_a_catalog_rebuilt_from_its_jobs_continues_with_the_same_ids(followed: Followed) -> None:
    followed.run("CREATE DATABASE shop", db="")
    followed.run("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))", "ALTER TABLE t ADD w INT")
    before = followed.catalog
    rows = list(before.state.to_rows())
    again = followed.restarted()
    assert list(again.state.to_rows()) == rows
    followed.run("ALTER TABLE t MODIFY w BIGINT", "CREATE TABLE u LIKE t")
    assert is_copied(followed, "t")
    assert is_copied(followed, "u")
    used = [body["id"] for body in followed.jobs] + [table.id for table in again.state.list_tables()]
    assert len(used) == len(set(used))
    versions = [body["binlog"]["SchemaVersion"] for body in followed.jobs]
    assert versions == list(range(1, len(versions) + 1))


def test_first_definitions_are_adopted_and_followed_from_there(followed: Followed) -> None:
    with followed.server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("CREATE TABLE shop.parent (id INT PRIMARY KEY)")
        cursor.execute("CREATE TABLE shop.child (p INT, CONSTRAINT f FOREIGN KEY (p) REFERENCES shop.parent (id))")
    assert [Action(change.body["type"]).label for change in followed.adopt()] == [
        "create schema",
        "create table",
        "create table",
    ]
    assert followed.adopt() == []
    followed.run("ALTER TABLE child ADD q INT")
    assert is_copied(followed, "child")
    assert is_copied(followed, "parent")
    table = followed.catalog.find_table("one", "shop", "child")
    assert table is not None
    assert "binlake_tracker" not in table.raw[CREATE_KEY]
    assert table.source == followed.source


def test_the_definitions_of_a_dump_are_followed_completely_or_not_at_all(quiet: Followed, tmp_path: Path) -> None:
    files = {
        "du%2Dmp-schema-create.sql": "CREATE DATABASE /*!32312 IF NOT EXISTS*/ `du-mp` /*!40100 CHARSET gbk */;",
        "du%2Dmp.t-schema.sql": "/*!40101 SET NAMES binary*/;\n/*!40014 SET FOREIGN_KEY_CHECKS=0*/;\n\n"
        "CREATE TABLE `t` (\n  `id` int(11) NOT NULL COMMENT 'a;b',\n  `d` date DEFAULT '0000-00-00',\n"
        "  PRIMARY KEY (`id`)\n) ENGINE=InnoDB;\n",
        "du%2Dmp.v-schema.sql": "CREATE TABLE `v`(`id` int);",
        "du%2Dmp.v-schema-view.sql": "DROP TABLE `v`; CREATE VIEW `v` AS SELECT 1;",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    version, schemas = quiet.catalog.version, read_schema_files(read_dump_folder(tmp_path))
    with pytest.raises(SchemaError):
        quiet.catalog.follow_all(
            "quiet", [*schemas, LoggedStatement("du-mp", "ALTER TABLE t ADD id INT", LoggedSession())]
        )
    assert quiet.catalog.version == version
    assert len(quiet.catalog.follow_all("quiet", schemas)) == 2
    table = quiet.catalog.find_table("quiet", "du-mp", "t")
    assert table is not None
    assert [(column.name, column.default) for column in table.columns] == [("id", None), ("d", "0000-00-00")]
    assert table.charset == "gbk"
    (tmp_path / "du%2Dmp-schema-create.sql").unlink()
    with pytest.raises(ConfigError, match="du-mp-schema-create"):
        read_schema_files(read_dump_folder(tmp_path))


def test_elements_with_four_byte_characters_equal_those_of_the_source(quiet: Followed) -> None:
    """A server shows `?` for them in information_schema and in SHOW CREATE TABLE."""
    quiet.follow("CREATE TABLE el (id INT PRIMARY KEY, e ENUM('🐬', '?', 'it''s') CHARACTER SET utf8mb4,"
                 " s SET('a', '🐬') CHARACTER SET utf8mb4)")  # fmt: skip
    quiet.follow("ALTER TABLE el ADD n INT")
    table = quiet.catalog.find_table("quiet", "shop", "el")
    assert table is not None
    elements = {column.name: column.elems for column in table.columns if column.elems}
    assert elements == {"e": ("🐬", "?", "it's"), "s": ("a", "🐬")}
    assert "'🐬','?'" in table.raw[CREATE_KEY]
    quiet.follow("DROP TABLE el")


@pytest.mark.parametrize(
    "text",
    [
        "CREATE USER u", "GRANT SELECT ON *.* TO u", "ANALYZE TABLE t", "FLUSH TABLES",
        "CREATE TEMPORARY TABLE x (i INT)",
        "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS x", "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET @a = 1",
        "CREATE DEFINER=`root`@`%` PROCEDURE p() DROP TABLE t", "CREATE VIEW v AS SELECT 1", "# Dummy event",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO TRUNCATE TABLE t", "ALTER TABLE t ENGINE=InnoDB",
        "SET PASSWORD = 'x'",
        "CREATE TABLE IF NOT EXISTS t (id INT)", "DROP TABLE IF EXISTS none_such", "OPTIMIZE TABLE t",
    ],
)  # fmt: skip
def test_a_statement_that_changes_no_definition_is_skipped(quiet: Followed, text: str) -> None:
    assert quiet.follow(text) == []


@pytest.fixture
def quiet(mariadb: MariaDb) -> Iterator[Followed]:
    mariadb.wipe()
    copy = Followed(mariadb, Flavor.MARIADB, published=False, source="quiet")
    copy.follow("CREATE DATABASE shop")
    copy.follow("CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))")
    yield copy
    copy.close()


def test_a_time_of_a_zone_that_this_machine_does_not_know_is_refused(
    quiet: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.follow("CREATE OR REPLACE TABLE zoned (id INT PRIMARY KEY)")
    monkeypatch.setattr("binlake.pump_service.feeder.following.read_zone", lambda _: None)
    there = LoggedSession(time_zone="+01:00", timestamp_us=1)
    with pytest.raises(SchemaError, match="time in a zone that this machine does not know"):
        quiet.follow("ALTER TABLE zoned ADD d DATETIME DEFAULT NOW()", session=there)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO t VALUES (1)", "binlog_format"),
        ("CREATE TABLE x AS SELECT * FROM t", "binlog_format"),
        ("ALTER TABLE none_such ADD x INT", "does not have"),
        ("ALTER TABLE t ADD v INT", "tracker refuses"),
        ("ALTER TABLE t IMPORT TABLESPACE", "without logging"),
        ("ALTER IGNORE TABLE t ADD UNIQUE KEY u (v)", "ALTER IGNORE removes or changes rows"),
        ("ALTER IGNORE TABLE t ADD x INT, MODIFY v SMALLINT", "ALTER IGNORE removes or changes rows"),
        ("ALTER IGNORE TABLE t DROP COLUMN v", "ALTER IGNORE removes or changes rows"),
        ("CREATE TABLE g (p POINT)", "cannot replicate"),
        ("FROBNICATE TABLE t", "unknown statement"),
    ],
)
def test_a_statement_that_cannot_be_followed_is_refused_and_changes_nothing(
    quiet: Followed, text: str, message: str
) -> None:
    version = quiet.catalog.version
    with pytest.raises(SchemaError, match=message) as refused:
        quiet.follow(text)
    assert refused.value.hint
    assert quiet.catalog.version == version
    assert quiet.follow(f"ALTER TABLE t ADD c{version} INT") != []


def test_foreign_keys_that_cascade_are_known_after_each_statement(followed: Followed) -> None:
    followed.run("CREATE DATABASE shop", db="")
    followed.run("CREATE TABLE p (id INT PRIMARY KEY)", "CREATE TABLE c (id INT PRIMARY KEY, p INT)")
    assert followed.catalog.build_cascade_guard("one") is None
    followed.run("ALTER TABLE c ADD CONSTRAINT f FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE")
    assert followed.catalog.build_cascade_guard("one") is not None
    followed.run("ALTER TABLE c DROP FOREIGN KEY f")
    assert followed.catalog.build_cascade_guard("one") is None


VALUES = {
    "INT": ["1", "-5", "300", "NULL"],
    "DECIMAL(10,3)": ["1.555", "-2.5"],
    "DOUBLE": ["2.5", "-0.4", "1e10"],
    "VARCHAR(20)": ["'12'", "'3.7'", "'abc'", "'2020-01-01'", "''"],
    "DATETIME(3)": ["'2020-01-01 23:59:59.999'", "'2020-05-05 12:00:00.5'"],
    "TIMESTAMP(3) NULL": ["'2020-01-01 23:59:59.999'"],
    "TIME(2)": ["'10:20:30.55'", "'-01:00:00'"],
    "DATE": ["'2020-02-03'"],
    "ENUM('a','1','x')": ["'a'", "'1'"],
}
CONVERTED = (
    "TINYINT", "BIGINT UNSIGNED", "DECIMAL(6,1)", "DOUBLE", "VARCHAR(30)", "CHAR(3)", "DATETIME", "TIMESTAMP NULL",
    "DATE", "TIME", "YEAR", "ENUM('1','a')", "TEXT",
)  # fmt: skip


@pytest.mark.parametrize(
    "settings", ["sql_mode = ''", "time_zone = '+05:30', sql_mode = 'NO_ZERO_IN_DATE,ALLOW_INVALID_DATES'"]
)
def test_values_are_converted_at_the_target_as_the_source_did(followed: Followed, settings: str) -> None:
    followed.run("CREATE DATABASE shop", db="")
    for number, (kind, values) in enumerate(VALUES.items()):
        table = f"t{number}"
        columns = ", ".join(f"c{at} {kind}" for at in range(len(CONVERTED)))
        followed.run(f"CREATE TABLE {table} (id INT PRIMARY KEY AUTO_INCREMENT, {columns})")
        rows = ", ".join(f"(NULL, {', '.join([value] * len(CONVERTED))})" for value in values)
        execute(followed.server, *(f"INSERT INTO {db}.{table} VALUES {rows}" for db in ("shop", "copy_shop")))
        specs = ", ".join(f"MODIFY c{at} {to}" for at, to in enumerate(CONVERTED))
        followed.run(f"ALTER TABLE {table} {specs}", settings=f"SET SESSION {settings}")
        shown = "SELECT * FROM {}." + table + " ORDER BY id"
        assert rows_of(followed.server, shown.format("copy_shop")) == rows_of(followed.server, shown.format("shop"))


def test_values_changed_by_a_lenient_session_are_changed_at_the_target(followed: Followed) -> None:
    followed.run("CREATE DATABASE shop", db="")
    followed.run(
        "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(9), c DATE, v VARCHAR(9) CHARACTER SET utf8mb4, w TEXT)"
    )
    rows = "(1, NULL, NULL, NULL, 'a✓', 'ÿüü'), (2, 3, 'x', '2020-01-02', 'b', 'c')"
    execute(followed.server, *(f"INSERT INTO {db}.t VALUES {rows}" for db in ("shop", "copy_shop")))
    for text in (
        "ALTER TABLE t MODIFY a INT NOT NULL",
        "ALTER TABLE t CHANGE c d DATE NOT NULL, ADD e DATETIME DEFAULT CURRENT_TIMESTAMP",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, b)",
        "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
        "ALTER TABLE t MODIFY w VARCHAR(2) CHARACTER SET latin1",
        "ALTER TABLE t MODIFY w CHAR(2) CHARACTER SET gbk",
        "ALTER TABLE t MODIFY a VARCHAR(3), ADD f TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP",
    ):
        followed.run(text, settings="SET SESSION sql_mode = '', time_zone = '+05:00'")
        shown = "SELECT * FROM {}.t ORDER BY id"
        assert rows_of(followed.server, shown.format("copy_shop")) == rows_of(followed.server, shown.format("shop"))


def test_a_new_stored_column_that_only_the_source_can_compute_is_refused(followed: Followed) -> None:
    """Its older rows would have NULL at the target."""
    followed.run("CREATE DATABASE shop", db="")
    followed.run("CREATE TABLE t (id INT PRIMARY KEY, at TIMESTAMP NULL)", "ALTER TABLE t ADD a INT AS (id + 1) STORED")
    with pytest.raises(TargetRefused, match="only the source can compute"):
        followed.run("ALTER TABLE t ADD b VARCHAR(40) AS (HEX(at)) STORED")
