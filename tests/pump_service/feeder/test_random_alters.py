"""Random ALTER statements between random row changes, from real logs: definitions and rows equal those of the source.

The catalog follows the log and decodes its rows; a copy gets what is published. At the end the catalog matches SHOW
CREATE TABLE, and the copy has the rows that SELECT shows.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.loggedcopy import LoggedCopy
from support.mariadb import MariaDb, execute
from support.randomalters import run_random_alters

from binlake.dialect.tokens import render
from binlake.errors import TargetRefused
from binlake.mysqlbinlog.definitions.columntext import create_tokens
from binlake.mysqlbinlog.definitions.tables import CREATE_KEY, build_table_info
from binlake.rows.schema.forms import Json
from binlake.rows.schema.info import SOURCE_KEY

pytestmark = [pytest.mark.mariadb, pytest.mark.long]

STEPS = 40


@pytest.fixture
def copy(request: pytest.FixtureRequest) -> Iterator[LoggedCopy]:
    """A copy of the server that the test's parameter names."""
    server: MariaDb = request.getfixturevalue(request.param)
    server.wipe()
    execute(server, "CREATE DATABASE shop")
    logged = LoggedCopy(server)
    logged.adopt()
    yield logged
    logged.close()
    server.wipe()


def check_random_alters(copy: LoggedCopy, seed: int, steps: int) -> None:
    ran = run_random_alters(copy.server, seed, steps)
    try:
        follow_to_end(copy)
    except BaseException:
        print(f"seed {seed}:", *ran, sep=";\n")
        raise


def follow_to_end(copy: LoggedCopy) -> None:
    """Follow the log to its end, or to a DDL that the copy's dialect cannot express, which is refused with its name."""
    try:
        copy.catch_up()
    except TargetRefused as error:
        if "a DDL cannot be expressed" not in error.message:
            raise
        return
    compare_definitions(copy)
    assert copy.differences("shop") == []


def compare_definitions(copy: LoggedCopy) -> None:
    """Check that the catalog's tables are those that the server shows."""
    database = copy.described_database("shop")
    assert database is not None
    for table in database.tables:
        mine = copy.catalog.find_table(copy.source, "shop", table.name)
        assert mine is not None, table.name
        for seen, shown in zip(describe(mine.raw), describe(build_table_info(table, 0, table.name)), strict=True):
            assert seen == shown, f"{table.name}: {seen} is not {shown}"
        assert mine.raw[CREATE_KEY].replace("`shop`.", "", 1) == render(create_tokens(table.create, copy.flavor))
    assert {table.name for table in copy.catalog.state.list_tables()} == {table.name for table in database.tables}


def describe(info: Json) -> list[object]:
    """The parts of a definition to compare: without ids and the history of older rows."""
    own = {"id", "max_col_id", "max_idx_id", "cols", "index_info", "partition", CREATE_KEY, SOURCE_KEY}
    past = {"id", "origin_default", "origin_default_bit"}
    columns = [{key: value for key, value in column.items() if key not in past} for column in info["cols"]]
    indexes = [{key: value for key, value in index.items() if key != "id"} for index in info["index_info"]]
    return [{key: value for key, value in info.items() if key not in own}, *columns, *indexes]


SEEDS = [("mariadb_source", 1), ("mariadb_source", 2), ("mariadb_source", 3), ("mysql", 4), ("mysql", 5)]
SOAKED = [(family, seed) for family in ("mariadb_source", "mysql") for seed in range(100, 200)]


@pytest.mark.parametrize(("copy", "seed"), SEEDS, indirect=["copy"])
def test_random_alters_and_rows(copy: LoggedCopy, seed: int) -> None:  # S4-22 S4-23
    check_random_alters(copy, seed, STEPS)


@pytest.mark.soak
@pytest.mark.parametrize(("copy", "seed"), SOAKED, indirect=["copy"])
def test_many_random_alters_and_rows(copy: LoggedCopy, seed: int) -> None:
    check_random_alters(copy, seed, 2 * STEPS)
