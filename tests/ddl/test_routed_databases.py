"""A route with a table-pattern is no rule for the database: the target's database is created with its first table."""

from __future__ import annotations

import pytest
from support.mariadb import MariaDb, execute, rows
from test_ddl_decisions import plan, shop

from binlake.ddl.definitions import LandedDdl
from binlake.dialect import map_ddl

pytestmark = pytest.mark.mariadb

SHARDS = {"schema-pattern": "shop", "table-pattern": "t_*", "target-schema": "merged", "target-table": "t"}
RENAMED = {"schema-pattern": "shop", "table-pattern": "t_1", "target-schema": "renamed"}
WHOLE = {"schema-pattern": "shop", "target-schema": "whole"}


def run(server: MariaDb, planned: list[LandedDdl]) -> set[tuple[str, str]]:
    dialect = server.name
    for ddl in planned:
        if ddl.decision == "apply":
            execute(server, *map_ddl(ddl, dialect).sql)  # type: ignore[arg-type]
    sql = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE = 'BASE TABLE'"
    found = rows(server, sql)
    return {name for name in found if name[0] in ("merged", "renamed", "shop", "whole")}


@pytest.mark.parametrize("family", ["mariadb", "mysql"])
def test_tables_of_a_table_route_find_their_database(request: pytest.FixtureRequest, family: str) -> None:
    server: MariaDb = request.getfixturevalue(family)
    for routes, expected in (
        ([SHARDS], {("merged", "t")}),
        ([RENAMED], {("renamed", "t_1"), ("shop", "t_2")}),
        ([RENAMED, WHOLE], {("renamed", "t_1"), ("whole", "t_2")}),
    ):
        server.wipe()
        planned = plan(shop("t_1", "t_2"), routes=routes)
        assert run(server, planned) == expected, routes
        # A database that the source creates is not created again.
        assert [ddl.sql for ddl in planned if "CREATE DATABASE IF NOT EXISTS `whole`" in ddl.sql] == []
        assert [ddl.sql for ddl in planned if "CREATE DATABASE IF NOT EXISTS `shop`" in ddl.sql] == []
