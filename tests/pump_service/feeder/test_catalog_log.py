"""The catalog with the logs of real servers: statements of many sessions, and the table maps of rows between them.

The target gets what the catalog publishes; at the end its tables equal those of the source.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import pytest
from support.followed import COPY, Followed
from support.mariadb import MariaDb, execute
from support.sourcelog import end_of, transactions_until_now

from binlake.mysqlbinlog.definitions.descriptions import TableDescription
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY, build_table_info
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.schema.forms import Json
from binlake.rows.schema.info import SOURCE_KEY

Script = Sequence[tuple[str, str]]
"""(settings of the session, statement)."""

BOTH: Script = (
    ("", "CREATE DATABASE shop CHARACTER SET latin1"),
    ("sql_mode = 'ANSI_QUOTES'", '''CREATE TABLE "q" ("a b" INT, "c""d" VARCHAR(9) DEFAULT 'x\\\\y', e VARCHAR(20))'''),
    ("sql_mode = 'NO_BACKSLASH_ESCAPES'", r"""ALTER TABLE q ADD f VARCHAR(9) DEFAULT 'a\b' COMMENT 'c\d "e"'"""),
    ("sql_mode = 'NO_BACKSLASH_ESCAPES'", r"ALTER TABLE q ADD g ENUM('p\q','r''s') DEFAULT 'p\q', COMMENT 'x\'"),
    ("", "INSERT INTO q VALUES (1, 'x', 'y', 'z', 'r''s')"),
    ("sql_mode = 'PIPES_AS_CONCAT'", "ALTER TABLE q ADD h VARCHAR(40) AS (e || '-' || `c\"d`) VIRTUAL AFTER e"),
    ("sql_mode = ''", "ALTER TABLE q ADD z DATE NOT NULL DEFAULT '0000-00-00'"),
    ("sql_mode = ''", "ALTER TABLE q DROP COLUMN z, ALGORITHM = COPY"),
    ("explicit_defaults_for_timestamp = 0", "ALTER TABLE q ADD ts TIMESTAMP, ADD ts2 TIMESTAMP NULL"),
    ("time_zone = '+05:00'", "ALTER TABLE q ADD tz TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00'"),
    ("", "INSERT INTO q (e) VALUES ('x')"),
    ("collation_connection = 'utf8mb4_unicode_ci'", "ALTER TABLE q ADD y VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT 'ä'"),
    ("", "ALTER TABLE q ADD n INT UNIQUE COMMENT 'key', ADD first_one INT AUTO_INCREMENT PRIMARY KEY FIRST"),
    ("", "ALTER TABLE q ADD (k1 INT, k2 INT, KEY (k1, k2)), DROP COLUMN g"),
    ("", "CREATE TABLE made AS SELECT e, f, tz FROM q"),
    ("", "CREATE TABLE p (id INT, d INT NOT NULL) /*!50100 PARTITION BY RANGE (d)"
         " (PARTITION p0 VALUES LESS THAN (5)) */"),
    ("", "ALTER TABLE p ADD PARTITION (PARTITION p1 VALUES LESS THAN (9), PARTITION p2 VALUES LESS THAN MAXVALUE)"),
    ("", "INSERT INTO p VALUES (1, 1), (2, 7)"),
    ("", "ALTER TABLE p TRUNCATE PARTITION p0"),
    ("", "ALTER TABLE p DROP PARTITION p1"),
    ("", "ALTER TABLE p REMOVE PARTITIONING"),
    ("", "CREATE TABLE names (id BIGINT PRIMARY KEY, status INT, name VARCHAR(5), comment TEXT, date DATE)"),
    ("", "ALTER TABLE names ADD INDEX (status, name(3)), ADD FULLTEXT INDEX words (comment), ADD UNIQUE date (date)"),
    ("", "ALTER TABLE names RENAME COLUMN comment TO charset, CHANGE COLUMN status action SMALLINT AFTER name"),
    ("", "ALTER TABLE names MODIFY charset MEDIUMTEXT CHARACTER SET gbk NOT NULL, ENGINE = InnoDB, FORCE"),
    ("", "INSERT INTO names VALUES (1, 'a', 2, 'c', NULL)"),
    ("", "CREATE TEMPORARY TABLE gone (id INT)"),
    ("", "ALTER TABLE names ADD CONSTRAINT positive CHECK (action > 0)"),
    ("", "ALTER DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_bin"),
    ("", "CREATE TABLE late (v VARCHAR(9), w VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci)"),
    ("", "ALTER TABLE late CONVERT TO CHARACTER SET utf8mb3"),
    ("", "INSERT INTO late VALUES ('ä', 'ß')"),
    ("", "CREATE TABLE opts (id INT, a BIGINT, v VARCHAR(9), PRIMARY KEY (id))"),
    ("", "ALTER TABLE opts ENGINE InnoDB CHARSET gbk COMMENT 'x', ADD w VARCHAR(9)"),
    ("", "ALTER TABLE opts ROW_FORMAT DYNAMIC DEFAULT CHARACTER SET latin1 COLLATE latin1_bin"),
    ("", "ALTER TABLE opts COMMENT = 'a' DEFAULT CHARSET = latin1, ADD s SERIAL, ADD INDEX (a)"),
)  # fmt: skip
MYSQL: Script = (
    ("", "CREATE TABLE own (id INT PRIMARY KEY, a INT, v VARCHAR(40) DEFAULT (UUID()), s INT DEFAULT (1 + 1))"),
    ("", "ALTER TABLE own ADD hidden INT INVISIBLE, ADD INDEX down (a DESC, id), ADD INDEX unseen (v) INVISIBLE"),
    ("", "INSERT INTO own (id, a) VALUES (1, 2)"),
    ("", "ALTER TABLE own ALTER INDEX unseen VISIBLE, ALTER COLUMN hidden SET VISIBLE"),
    ("sql_generate_invisible_primary_key = 1", "CREATE TABLE keyless (v INT)"),
    ("", "INSERT INTO keyless (v) VALUES (1)"),
    ("", "CREATE TABLE computed (id INT PRIMARY KEY, a INT, KEY half ((a / 2)))"),
    ("", "INSERT INTO computed VALUES (1, 2)"),
    ("", "CREATE TABLE js (id INT PRIMARY KEY, j JSON, b VARBINARY(9) DEFAULT X'616200', bin BINARY(3) DEFAULT 'a')"),
    ("", "INSERT INTO js (id, j) VALUES (1, '{}')"),
    ("default_collation_for_utf8mb4 = 'utf8mb4_general_ci'", "CREATE TABLE c1 (v VARCHAR(9)) CHARACTER SET utf8mb4"),
    ("", "CREATE TABLE c2 (v VARCHAR(9), CONSTRAINT positive2 CHECK (v > 0)) CHARACTER SET utf8mb4"),
    ("", "ALTER TABLE names DROP CONSTRAINT positive"),
    ("", "CREATE TABLE moments (id INT PRIMARY KEY, at TIMESTAMP NOT NULL)"),
    ("", "ALTER TABLE moments ADD a INT"),
    ("explicit_defaults_for_timestamp = 0", "CREATE TABLE moments2 (id INT PRIMARY KEY, at TIMESTAMP)"),
    ("", "ALTER TABLE moments ADD c INT"),
)  # fmt: skip
MARIADB: Script = (
    ("", "CREATE OR REPLACE TABLE own (id INT PRIMARY KEY, a INT DEFAULT (1 + 1), j JSON)"),
    ("", "CREATE OR REPLACE TABLE own (id INT PRIMARY KEY, b VARCHAR(9) DEFAULT CONCAT('a', 'b'), j JSON)"),
    ("", "ALTER TABLE own ADD COLUMN IF NOT EXISTS b INT, ADD COLUMN IF NOT EXISTS c INT, DROP COLUMN IF EXISTS none"),
    ("", "ALTER TABLE own ADD COLUMN IF NOT EXISTS (c INT, d VARCHAR(9), KEY (d)), ADD IF NOT EXISTS (e INT)"),
    ("", "ALTER TABLE own CHANGE e f INT, ADD IF NOT EXISTS f INT, ADD x1 INT, ADD COLUMN IF NOT EXISTS (x1 INT)"),
    ("", "ALTER TABLE own DROP x1, DROP COLUMN IF EXISTS `X1`"),
    ("", "ALTER TABLE IF EXISTS own WAIT 5 MODIFY IF EXISTS c BIGINT, DROP INDEX IF EXISTS none"),
    ("", "CREATE INDEX IF NOT EXISTS by_c ON own (c) WAIT 5"),
    ("", "ALTER TABLE own ADD hidden INT INVISIBLE, ADD squeezed TEXT COMPRESSED, ADD byte BINARY(9) DEFAULT X'6162'"),
    ("", "INSERT INTO own (id, j, squeezed) VALUES (1, '{}', 'x')"),
    ("", "CREATE TABLE old_times (a DATETIME(3), b TIME(2), c TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))"),
    ("", "INSERT INTO old_times (a, b) VALUES ('2020-01-01 00:00:00.5', '-01:02:03.25')"),
    ("sql_mode = 'ORACLE'", 'CREATE TABLE ora ("n" NUMBER(9), v VARCHAR2(20))'),
    ("", "INSERT INTO ora VALUES (1, 'x')"),
    ("", "ALTER TABLE opts RENAME COLUMN IF EXISTS none TO v, CHANGE COLUMN IF EXISTS none w INT, ADD c INT"),
    ("", "ALTER TABLE opts ADD INDEX IF NOT EXISTS a (v), ADD PRIMARY KEY IF NOT EXISTS (a)"),
    ("", "ALTER TABLE opts ADD UNIQUE IF NOT EXISTS s (c)"),
    ("", "ALTER TABLE opts ADD FOREIGN KEY IF NOT EXISTS own (a) REFERENCES names (id)"),
    ("", "ALTER TABLE opts DROP CONSTRAINT IF EXISTS none, DROP FOREIGN KEY IF EXISTS none"),
    ("", "ALTER TABLE opts DROP FOREIGN KEY IF EXISTS own"),
    ("", "ALTER TABLE opts RENAME INDEX IF EXISTS none TO x, ALTER INDEX IF EXISTS none IGNORED"),
    ("", "ALTER TABLE opts ALTER COLUMN IF EXISTS none SET DEFAULT 5, ADD CONSTRAINT two UNIQUE (c, a)"),
    ("", "ALTER TABLE opts DROP CONSTRAINT two, ALTER INDEX IF EXISTS s IGNORED"),
    ("", "RENAME TABLE IF EXISTS none TO x, opts TO opts2"),
)  # fmt: skip


@pytest.fixture(params=[Flavor.MARIADB, Flavor.MYSQL], ids=lambda flavor: str(flavor.value))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    fixture = "mariadb_source" if request.param is Flavor.MARIADB else "mysql"
    server: MariaDb = request.getfixturevalue(fixture)
    server.wipe()
    copy = Followed(server, request.param)
    yield copy
    copy.close()


def test_the_logs_of_many_sessions_are_followed(followed: Followed) -> None:
    since = end_of(followed.server)
    run(followed.server, [*BOTH, *(MARIADB if followed.flavor is Flavor.MARIADB else MYSQL)])
    rows = 0
    for transaction in transactions_until_now(followed.server, since):
        if transaction.statement is not None:
            followed.publish(followed.catalog.follow("one", transaction.statement))
        for event in transaction.changes:
            table = followed.catalog.find_definition("one", event.table)
            assert table is not None
            assert len(table.all_columns) == len(event.table.types)
            rows += 1
    assert rows >= 8
    database = followed.described_database("shop")
    assert database is not None
    for table in database.tables:
        mine = followed.catalog.find_table("one", "shop", table.name)
        assert mine is not None
        for seen, expected in zip(
            without_ids(mine.raw), without_ids(build_table_info(table, 0, table.name)), strict=True
        ):
            assert seen == expected, table.name
        target = followed.described(COPY + "shop", table.name)
        assert target is not None
        for seen, expected in zip(comparable(target).columns, comparable(table).columns, strict=True):
            assert seen == expected, table.name
        assert comparable(target) == comparable(table)
    assert {table.name for table in followed.catalog.state.list_tables()} == {table.name for table in database.tables}


@pytest.mark.parametrize(
    ("clauses", "kind"),
    [
        ("DROP b, ADD b DATE AFTER a, MODIFY b DOUBLE", "double"),
        ("ADD c DATE, MODIFY IF EXISTS c DOUBLE FIRST", "date"),
    ],
)
def test_a_statement_that_modifies_its_own_new_column_adds_what_it_became(
    mariadb_source: MariaDb, clauses: str, kind: str
) -> None:
    # Only MariaDB takes such a statement, so no target may need it; and the new column has no values to convert.
    mariadb_source.wipe()
    with closing(Followed(mariadb_source, Flavor.MARIADB)) as followed:
        followed.run("CREATE DATABASE shop", db="")
        followed.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARBINARY(9))")
        execute(mariadb_source, f"ALTER TABLE shop.t {clauses}")
        (change,) = followed.follow(f"ALTER TABLE t {clauses}")
        assert "MODIFY" not in change.query
        assert kind in change.query
        copied, own = followed.described(COPY + "shop", "t"), followed.described("shop", "t")
        assert copied is not None
        assert own is not None
        assert copied.columns == own.columns


def run(server: MariaDb, script: Script) -> None:
    for settings, text in script:
        with server.connect() as connection, connection.cursor() as cursor:
            if settings:
                cursor.execute(f"SET SESSION {settings}")
            if not text.startswith("CREATE DATABASE"):
                connection.select_db("shop")
            cursor.execute(text)


def without_ids(info: Json) -> list[object]:
    """A definition without its ids, its history, its partitions and the source's own text."""
    own = {"id", "max_col_id", "max_idx_id", "cols", "index_info", "partition", CREATE_KEY, SOURCE_KEY}
    past = {"id", "origin_default", "origin_default_bit"}
    columns = [{key: value for key, value in column.items() if key not in past} for column in info["cols"]]
    indexes = [{key: value for key, value in index.items() if key != "id"} for index in info["index_info"]]
    return [{key: value for key, value in info.items() if key not in own}, *columns, *indexes]


def comparable(table: TableDescription) -> TableDescription:
    """A table description without what a target does not adopt: invisible columns, compression."""
    columns = [
        replace(
            column,
            extra=column.extra.replace(", INVISIBLE", "").replace("INVISIBLE", "").strip(),
            type=column.type.split(" /*")[0],
        )
        for column in table.columns
    ]
    return replace(table, create="", db="", columns=tuple(columns))
