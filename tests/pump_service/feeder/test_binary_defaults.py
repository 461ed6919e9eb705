"""A binary column's default is its bytes, whatever they are: servers show it as text, with NULs and invalid bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from support.followed import COPY, Followed
from support.mariadb import execute, rows
from support.sourcelog import source_of

from binlake.mysqlbinlog.definitions.descriptions import mask_four_byte_characters
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.checks.tables import check_tables, read_table_facts
from binlake.pump_service.feeder.server import connect
from binlake.pump_service.feeder.snapshot.structures import describe_source, read_create_text
from binlake.rows.codec.encode import derive_filled_text
from deploy.local.mariadb import MariaDb

pytestmark = pytest.mark.mariadb

CASES = (
    "VARBINARY(8) NOT NULL DEFAULT X'410042'",
    "VARBINARY(8) DEFAULT X'C3A400'",
    "VARBINARY(8) DEFAULT X'FF'",
    "VARBINARY(8) DEFAULT X'00FF275C0A'",
    "VARBINARY(8) DEFAULT X''",
    "VARBINARY(8) DEFAULT '0x41'",
    "VARBINARY(8) DEFAULT 'a''b?'",
    "VARBINARY(8) DEFAULT NULL",
    "BINARY(4) DEFAULT 0x4100FF",
    "BINARY(4) NOT NULL DEFAULT X'00FF'",
    "BINARY(3) NOT NULL DEFAULT 'a'",
    "ENUM('a', 'b') CHARACTER SET binary DEFAULT 'b'",
    "SET('a', 'b') CHARACTER SET binary DEFAULT 'a,b'",
)


@pytest.fixture(params=[Flavor.MARIADB, Flavor.MYSQL], ids=lambda flavor: str(flavor.value))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    server: MariaDb = request.getfixturevalue("mariadb" if request.param is Flavor.MARIADB else "mysql")
    server.wipe()
    copy = Followed(server, request.param)
    copy.run("CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", db="")
    yield copy
    copy.close()


def test_older_rows_get_the_bytes_of_a_new_columns_default(followed: Followed) -> None:
    server = followed.server
    followed.run("CREATE TABLE t (id INT PRIMARY KEY)")
    execute(server, "INSERT INTO shop.t VALUES (1)", f"INSERT INTO {COPY}shop.t VALUES (1)")
    for number, case in enumerate(CASES):
        followed.run(f"ALTER TABLE t ADD c{number} {case}")
    followed.restarted()
    table = followed.catalog.find_table(followed.source, "shop", "t")
    assert table is not None
    for db in ("shop", COPY + "shop"):
        execute(server, f"INSERT INTO {db}.t (id) VALUES (2)")
    for number, case in enumerate(CASES):
        query = f"SELECT HEX(c{number}), CAST(c{number} AS CHAR CHARACTER SET latin1) FROM %s.t ORDER BY id"
        [(value, text), new] = rows(server, query % "shop")
        assert new == (value, text), case
        assert rows(server, query % (COPY + "shop")) == [(value, text), (value, text)], case
        column = table.find_column(f"c{number}")
        assert column is not None
        assert derive_filled_text(column) == (text if column.elems else value), case


def test_such_tables_are_described_checked_and_read_again_alike(followed: Followed) -> None:
    server = followed.server
    for number, case in enumerate(CASES):
        execute(server, f"CREATE TABLE shop.t{number} (id INT PRIMARY KEY, v {case})")
    source = source_of(server, **{"ignore-tables": [f"{COPY}*.*"]})
    with closing(connect(source)) as link:
        [database] = [one for one in describe_source(link) if one.name == "shop"]
        for table in database.tables:
            table.create.encode()
            assert read_create_text(link, ("shop", table.name)) == mask_four_byte_characters(table.create)
        findings = check_tables(read_table_facts(link, source), with_snapshot=True)
        assert {finding.check: finding.verdict for finding in findings}["definitions"] == "ok"
    followed.adopt()
    for number, case in enumerate(CASES):
        for db in ("shop", COPY + "shop"):
            execute(server, f"INSERT INTO {db}.t{number} (id) VALUES (1)")
        [there, here] = [rows(server, f"SELECT HEX(v) FROM {db}.t{number}") for db in ("shop", COPY + "shop")]
        assert there == here, case
