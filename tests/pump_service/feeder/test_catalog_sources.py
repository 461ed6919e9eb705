"""Several sources in one catalog: ids and versions are shared, and no database has two sources."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.descriptions import DatabaseDescription, TableDescription
from binlake.mysqlbinlog.definitions.statements import SingleStatement
from binlake.mysqlbinlog.model import Flavor, LoggedSession, LoggedStatement
from binlake.pump_service.feeder.catalog import Catalog, SourceNames

SHOP = DatabaseDescription("shop", "utf8mb4", "utf8mb4_bin")


class MemoryTracker:
    """Describes databases only."""

    def run(self, statement: SingleStatement, session: LoggedSession) -> None:
        assert session == LoggedSession()
        assert statement.db == "shop"

    def describe_table(self, db: str, table: str) -> TableDescription | None:
        raise AssertionError(f"{db}.{table}")

    def describe_database(self, db: str) -> DatabaseDescription | None:
        return SHOP if db == "shop" else None

    def rebuild(self, databases: Iterable[DatabaseDescription]) -> None:
        assert all(database.name == "shop" for database in databases)


def catalog(*names: SourceNames) -> Catalog:
    return Catalog(names, {source.name: MemoryTracker() for source in names}, [])


def test_a_database_of_two_sources_is_refused_until_it_is_renamed() -> None:
    both = catalog(SourceNames("a", Flavor.MYSQL), SourceNames("b", Flavor.MARIADB))
    assert len(both.adopt("a", [SHOP])) == 1
    with pytest.raises(SchemaError, match="two sources have a database that is called shop") as refused:
        both.adopt("b", [SHOP])
    assert "rename-schema" in refused.value.hint
    assert both.version == 1
    apart = catalog(SourceNames("a", Flavor.MYSQL), SourceNames("b", Flavor.MARIADB, lambda db: f"b_{db}"))
    changes = [
        *apart.adopt("a", [SHOP]),
        *apart.follow("b", LoggedStatement("", "CREATE DATABASE shop", LoggedSession())),
    ]
    assert [change.version for change in changes] == [1, 2]
    assert len({change.job_id for change in changes} | {change.body["schema_id"] for change in changes}) == 4
    assert changes[1].query == "CREATE DATABASE `b_shop` DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;"
