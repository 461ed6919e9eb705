"""Every form of a statement that a server accepts is read as that server reads it: the target gets the same table.

Each form runs on a real server; the catalog follows it, and what it publishes runs at a copy. A form that is read by
words instead of by the grammar makes the copy differ, or is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pymysql
import pytest
from support.followed import COPY, Followed
from support.mariadb import execute

from binlake.dialect.tokens import render
from binlake.errors import BinlakeError, SchemaError
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.descriptions import TableDescription
from binlake.mysqlbinlog.model import Flavor
from deploy.local.mariadb import MariaDb

pytestmark = pytest.mark.mariadb

TABLE = (
    "CREATE TABLE p (id INT PRIMARY KEY, a INT, b VARCHAR(20), c INT, KEY k (a), d1 DATETIME(6), d2 DATETIME(6),"
    " CONSTRAINT ck CHECK (c > 0)) CHARSET utf8mb4"
)
FORMS = [
    "ADD comment INT COMMENT 'x, y' AFTER a, ADD COLUMN engine INT DEFAULT 3, ADD tablespace INT, ADD encryption INT",
    "ADD COLUMN (x INT, KEY kk (x), period INT, CONSTRAINT ck3 CHECK (x > 1)), ALGORITHM=COPY",
    "ADD x INT REFERENCES q (id)",
    "ADD x INT PARTITION BY KEY (id) PARTITIONS 2",
    "ADD x INT, DROP PRIMARY KEY, ADD PRIMARY KEY (id, x) PARTITION BY RANGE (x) (PARTITION p0 VALUES LESS THAN (3))",
    "COMMENT 'ENGINE, x' PARTITION BY HASH (id)",
    "ORDER BY a, b DESC",
    "ADD x INT, FORCE, ADD y INT, ORDER BY p.a ASC, b",
    "ROW_FORMAT COMPRESSED KEY_BLOCK_SIZE 8, MAX_ROWS 100 COMMENT 'after, options', ADD x INT",
    "MODIFY COLUMN a BIGINT UNSIGNED UNIQUE KEY COMMENT 'FIRST' AFTER b, RENAME p2",
    "ADD x VARCHAR(9) GENERATED ALWAYS AS (CONCAT(b, 'DEFAULT')) VIRTUAL, ADD y INT DEFAULT (1 + 2)",
]
MARIADB_FORMS = [
    "ADD s1 DATE NOT NULL, ADD s2 DATE NOT NULL, ADD PERIOD IF NOT EXISTS FOR pp(s1, s2)",
    "ADD PERIOD FOR pp (d1, d2)",
    "ADD PERIOD FOR pp (d1, d2), ADD UNIQUE KEY u (a, pp WITHOUT OVERLAPS)",
    "ADD COLUMN shop.p.remark INT",
    "ADD COLUMN p.remark INT FIRST",
    "ADD (p.x INT, shop.p.y INT, z INT AS (shop.p.a + 1))",
    "MODIFY p.a BIGINT AFTER c",
    "CHANGE COLUMN shop.p.a p.aa INT FIRST",
    "DROP COLUMN shop.p.a, DROP p.b",
    "ALTER COLUMN p.a SET DEFAULT 6",
    "ALTER a SET DEFAULT NEXTVAL(s)",
    "MODIFY a BIGINT DEFAULT (NEXTVAL(shop.s) + 1) COMMENT 'drawn'",
    "MODIFY a BIGINT DEFAULT NEXT VALUE FOR s COMMENT 'drawn'",
    "TABLESPACE ts STORAGE DISK",
    "`PAGE_COMPRESSED`=1 COMMENT 'x'",
    "ENCRYPTED=NO, ADD x INT",
]
MYSQL_FORMS = [
    "TABLESPACE innodb_file_per_table, ADD x INT",
    "ADD x INT, TABLESPACE = innodb_file_per_table COMMENT 'x'",
    "ADD `tablespace` INT, ADD period INT",
    "AUTOEXTEND_SIZE 4M, ADD x INT",
    "COMPRESSION 'zlib', ADD x INT",
    "PARTITION BY RANGE (id) (PARTITION tablespace VALUES LESS THAN (9) TABLESPACE = innodb_file_per_table)",
    "ADD x INT, ADD CHECK (shop.p.c > 1), ADD y INT AS (shop.p.c + 1)",
]
CREATES = [
    "CREATE TABLE p (id INT KEY, tablespace INT, checksum INT DEFAULT 5, KEY (checksum)) CHECKSUM=1 COMMENT='DEFAULT'",
    "CREATE TABLE p (id INT, PRIMARY KEY (id)) PARTITION BY LIST (id) (PARTITION data VALUES IN (1,2))",
]
MARIADB_CREATES = [
    "CREATE TABLE p (id INT, s1 DATE, s2 DATE, PERIOD FOR pp (s1, s2), UNIQUE u (id, pp WITHOUT OVERLAPS))",
    "CREATE TABLE p (p.id INT PRIMARY KEY, x BIGINT DEFAULT NEXTVAL(s), y INT DEFAULT 5, z INT AS (shop.p.y) STORED)",
]
ALL = {
    Flavor.MARIADB: [f"ALTER TABLE p {form}" for form in FORMS + MARIADB_FORMS] + CREATES + MARIADB_CREATES,
    Flavor.MYSQL: [f"ALTER TABLE p {form}" for form in FORMS + MYSQL_FORMS] + CREATES,
}


@pytest.fixture(scope="module", params=list(Flavor), ids=lambda flavor: str(flavor.value))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    server: MariaDb = request.getfixturevalue("mariadb" if request.param is Flavor.MARIADB else "mysql")
    server.wipe()
    copy = Followed(server, request.param)
    copy.run("CREATE DATABASE shop", db="")
    copy.run("CREATE TABLE q (id INT PRIMARY KEY)")
    if request.param is Flavor.MARIADB:
        execute(server, "CREATE SEQUENCE shop.s")
    yield copy
    copy.close()


def describe(followed: Followed, db: str) -> dict[str, tuple[object, ...]]:
    """What a target must have of each table: its columns and indexes, its foreign keys and its partitioning."""
    database = followed.described_database(db)
    assert database is not None
    return {table.name: _describe(table) for table in database.tables}


def _describe(table: TableDescription) -> tuple[object, ...]:
    lines = table.create.replace(COPY, "").split("\n")
    keys = [line for line in lines if "FOREIGN KEY" in line]
    partitions = table.create.partition("PARTITION BY")[2].replace("*/", "").replace(_STORED_AT, "").split()
    columns = [replace(c, default=_read_default(c.default)) for c in table.columns]
    return table.collate, table.comment, columns, table.indexes, [key.rstrip(",") for key in keys], partitions


def _read_default(default: str | None) -> str | None:
    """The default that a target has: none instead of one from a sequence, and MariaDB's text for NULL is none."""
    return None if default is None or default == "NULL" or "nextval(" in default else default


_STORED_AT = "TABLESPACE = `innodb_file_per_table` "


def test_each_form_is_read_as_the_server_reads_it(followed: Followed) -> None:
    wrong = dict[str, object]()
    for text in ALL[followed.flavor]:
        followed.run("DROP TABLE IF EXISTS p, p2")
        try:
            if text.startswith("ALTER"):
                followed.run(TABLE)
            followed.run(text)
        except (BinlakeError, pymysql.MySQLError) as error:
            wrong[text] = error
            continue
        there, here = (describe(followed, db) for db in ("shop", COPY + "shop"))
        mine = {name: followed.catalog.find_table("one", "shop", name) for name in there}
        columns = {name: [c.name for c in table.all_columns] for name, table in mine.items() if table is not None}
        if there != here or columns != {name: [c.name for c in parts[2]] for name, parts in there.items()}:
            differing = [pair for name in there for pair in zip(there[name], here.get(name, ()), strict=False)]
            wrong[text] = (followed.changes[-1].query, [(one, other) for one, other in differing if one != other])
    assert not wrong, "\n".join(f"{text}: {why}" for text, why in wrong.items())


def test_a_tracker_needs_no_tablespace_or_directory_of_the_source(followed: Followed) -> None:
    """The source has them, the tracker does not: the statement is followed without being run on this server."""
    followed.run("DROP TABLE IF EXISTS p", TABLE)
    before = len(followed.changes)
    followed.follow("ALTER TABLE p TABLESPACE elsewhere")
    followed.follow("ALTER TABLE p ENCRYPTION='Y' COMMENT 'kept', DATA DIRECTORY = '/elsewhere'")
    assert [change.query for change in followed.changes[before:]] == ["ALTER TABLE `copy_shop`.`p` COMMENT 'kept';"]
    followed.follow("CREATE TABLE r (id INT KEY) TABLESPACE = elsewhere COMMENT 'r' DATA DIRECTORY '/nowhere'")
    described = followed.described(COPY + "shop", "r")
    assert described is not None
    assert described.comment == "r"
    followed.follow("DROP TABLE r")
    shown = "CREATE TABLE `r` (\n  `tablespace` int\n) /*!50100 TABLESPACE `ts` */ ENGINE=InnoDB"
    shown += " /*!80016 ENCRYPTION='Y' */"
    assert render(create_tokens(shown, Flavor.MYSQL)) == "CREATE TABLE `r` ( `tablespace` int ) ENGINE=InnoDB"


def test_a_new_column_that_a_sequence_fills_is_refused_with_a_way_on(followed: Followed) -> None:
    if followed.flavor is Flavor.MYSQL:
        return
    followed.run("DROP TABLE IF EXISTS p", TABLE)
    for default in ("NEXTVAL(s)", "(NEXT VALUE FOR shop.s)", "LASTVAL(s)"):
        with pytest.raises(SchemaError, match="values that older rows get") as caught:
            followed.follow(f"ALTER TABLE p ADD x BIGINT DEFAULT {default}")
        assert "source.replace" in caught.value.hint
