"""Rows that move between a followed table and one that is left out (ignore-tables): in no log, so refused (R-11)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.loggedcopy import LoggedCopy
from support.mariadb import MariaDb, execute

from binlake.errors import SchemaError

pytestmark = pytest.mark.mariadb

COLUMNS = "(id INT PRIMARY KEY, v INT)"
RANGES = f"{COLUMNS} PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (100))"


def leaves_out(db: str, table: str) -> bool:
    """ignore-tables = "*.out*, left.*"."""
    return db == "left" or table.startswith("out")


@pytest.fixture(params=["mariadb_source", "mysql"])
def copy(request: pytest.FixtureRequest) -> Iterator[LoggedCopy]:
    server: MariaDb = request.getfixturevalue(request.param)
    server.wipe()
    execute(
        server, "CREATE DATABASE shop", "CREATE DATABASE `left`",
        *(f"CREATE TABLE {name} {COLUMNS}" for name in ("shop.t", "shop.out_t", "`left`.x")),
        *(f"CREATE TABLE {name} {RANGES}" for name in ("shop.p", "shop.out_p", "`left`.p")),
    )  # fmt: skip
    made = LoggedCopy(server, ignores=leaves_out)
    made.adopt()
    execute(
        server, *(f"INSERT INTO {name} VALUES (1, 1)" for name in ("shop.t", "shop.out_p", "`left`.p")),
        *(f"INSERT INTO {name} VALUES (2, 2)" for name in ("shop.p", "shop.out_t", "`left`.x")),
    )  # fmt: skip
    made.catch_up()
    yield made
    made.close()
    server.wipe()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("ALTER TABLE shop.out_p EXCHANGE PARTITION p0 WITH TABLE shop.t", "between a table that is left out and one"),
        ("ALTER TABLE `left`.p EXCHANGE PARTITION p0 WITH TABLE shop.t", "between a table that is left out and one"),
        ("ALTER TABLE shop.p EXCHANGE PARTITION p0 WITH TABLE shop.out_t", "with the table shop.out_t, which"),
        ("ALTER TABLE shop.p EXCHANGE PARTITION p0 WITH TABLE `left`.x", "with the table left.x, which"),
        ("RENAME TABLE shop.out_t TO shop.new", "gets the name of one that is followed"),
        ("RENAME TABLE `left`.x TO shop.x", "gets the name of one that is followed"),
        ("ALTER TABLE shop.out_t ADD w INT, RENAME TO shop.new", "gets the name of one that is followed"),
        ("RENAME TABLE shop.t TO shop.out_u", "a name that is left out"),
        ("ALTER TABLE shop.t RENAME TO `left`.t", "a name that is left out"),
        ("RENAME TABLE shop.t TO shop.out_u, shop.out_t TO shop.t", "gets the name of one"),
        ("CREATE TABLE shop.new LIKE shop.out_t", "created like one that is left out"),
        ("CREATE TABLE shop.new (LIKE `left`.x)", "created like one that is left out"),
    ],
)
def test_rows_or_definitions_from_the_other_side_are_refused(copy: LoggedCopy, statement: str, message: str) -> None:
    execute(copy.server, statement)
    with pytest.raises(SchemaError, match=message) as refused:
        copy.catch_up()
    assert refused.value.hint
    assert {"table", "source"} <= set(refused.value.where)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE shop.out_p EXCHANGE PARTITION p0 WITH TABLE shop.out_t",
        "ALTER TABLE shop.p EXCHANGE PARTITION p0 WITH TABLE shop.t",
        "RENAME TABLE shop.out_t TO shop.out_u, `left`.x TO shop.out_t",
        "CREATE TABLE shop.new AS SELECT * FROM shop.out_t UNION ALL SELECT id + 10, v FROM `left`.x",
        "INSERT INTO shop.t SELECT * FROM `left`.x",
        "UPDATE shop.t JOIN shop.out_p USING (id) SET t.v = 7, out_p.v = 8",
        "CREATE TABLE IF NOT EXISTS shop.t LIKE shop.out_t",
        "CREATE TABLE `left`.n LIKE shop.t",
        "CREATE TABLE `left`.f (id INT PRIMARY KEY, FOREIGN KEY (id) REFERENCES shop.t (id) ON DELETE CASCADE)",
        "DROP TABLE shop.out_t, shop.t",
    ],
)
def test_what_is_logged_or_stays_on_one_side_is_followed(copy: LoggedCopy, statement: str) -> None:
    execute(copy.server, statement)
    execute(copy.server, "UPDATE shop.p SET v = v + 1")
    copy.catch_up()
    assert [found for found in copy.differences("shop") if not leaves_out("shop", found[0])] == []


@pytest.mark.parametrize("copy", ["mariadb_source"], indirect=True)
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("ALTER TABLE shop.out_p CONVERT TABLE shop.t TO PARTITION p2 VALUES LESS THAN (300)", "exchanged between"),
        ("ALTER TABLE shop.out_p CONVERT PARTITION p0 TO TABLE shop.new", "left out"),
        ("ALTER TABLE shop.p CONVERT PARTITION p0 TO TABLE shop.out_new", r"exchanged with the table shop\.out_new"),
    ],
)
def test_converted_partitions_are_refused_too(copy: LoggedCopy, statement: str, message: str) -> None:
    more = "ADD PARTITION (PARTITION p1 VALUES LESS THAN (200))"
    execute(copy.server, f"ALTER TABLE shop.out_p {more}", f"ALTER TABLE shop.p {more}")
    execute(copy.server, "UPDATE shop.t SET id = 250", statement)
    with pytest.raises(SchemaError, match=message):
        copy.catch_up()
