"""A full load begins while a table is altered between the reads of its definition (found by drawn sources)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from support.mariadb import MariaDb, execute
from support.sourcelog import source_of

from binlake.errors import SourceUnavailable
from binlake.mysqlbinlog.definitions.descriptions import Query, build_visibility_sql, describe_table
from binlake.mysqlbinlog.model import Flavor
from binlake.pump_service.feeder.server import ask_by_name, connect

pytestmark = pytest.mark.mariadb

CASES = {
    "a binary column is added": ("ADD c BINARY(2) DEFAULT X'00FF'", "c"),
    "a binary column is renamed": ("CHANGE b d BINARY(2) DEFAULT X'00FF'", "d"),
    "a TIMESTAMP is added": ("ADD c TIMESTAMP NOT NULL DEFAULT '2020-01-02 03:04:05'", "c"),
    "a TIMESTAMP gets a default": ("MODIFY at TIMESTAMP NOT NULL DEFAULT '2020-01-02 03:04:05'", "at"),
}


@pytest.fixture(params=[Flavor.MARIADB, Flavor.MYSQL], ids=lambda flavor: str(flavor.value))
def family(request: pytest.FixtureRequest) -> tuple[MariaDb, Flavor]:
    server: MariaDb = request.getfixturevalue("mariadb" if request.param is Flavor.MARIADB else "mysql")
    server.wipe()
    execute(server, "CREATE DATABASE shop")
    return server, request.param


def alter_while_read(server: MariaDb, query: Query, alters: Iterable[str]) -> Query:
    """`query`, but after each SHOW CREATE TABLE the next of `alters` runs."""
    left = iter(alters)

    def run(sql: str, arguments: Sequence[object]) -> Iterable[Mapping[str, Any]]:
        found = list(query(sql, arguments))
        if sql.startswith("SHOW CREATE TABLE") and (alter := next(left, None)):
            execute(server, f"ALTER TABLE shop.t {alter}")
        return found

    return run


@pytest.mark.parametrize("case", CASES)
def test_a_table_that_is_altered_meanwhile_is_read_again(family: tuple[MariaDb, Flavor], case: str) -> None:
    server, flavor = family
    execute(
        server,
        "CREATE TABLE shop.t (id INT PRIMARY KEY, b BINARY(2) DEFAULT X'00FF', at TIMESTAMP NULL DEFAULT NULL)",
    )
    alter, column = CASES[case]
    link = connect(source_of(server))
    query = alter_while_read(server, lambda sql, given: ask_by_name(link, sql, given), [alter])
    described = describe_table(query, flavor, "shop", "t", build_visibility_sql(query))
    assert described is not None
    assert column in [one.name for one in described.columns]
    link.close()


def test_a_table_that_is_altered_each_time_is_named(family: tuple[MariaDb, Flavor]) -> None:
    server, flavor = family
    execute(server, "CREATE TABLE shop.t (id INT PRIMARY KEY)")
    link = connect(source_of(server))
    alters = (f"ADD c{number} BINARY(2) DEFAULT X'00FF'" for number in range(99))
    query = alter_while_read(server, lambda sql, given: ask_by_name(link, sql, given), alters)
    with pytest.raises(SourceUnavailable, match="altered each time") as raised:
        describe_table(query, flavor, "shop", "t", build_visibility_sql(query))
    assert raised.value.where["table"] == "shop.t"
    link.close()
