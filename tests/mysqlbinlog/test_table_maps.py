"""A table map that does not fit the definition is refused, even if the type numbers are the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.loggedrows import definition_of, events_of
from support.mariadb import MariaDb, empty_database, execute
from support.sourcetypes import kinds

from binlake.errors import SchemaError
from binlake.mysqlbinlog.definitions.tablemaps import check_table_map
from binlake.mysqlbinlog.model import TableMap

pytestmark = pytest.mark.mariadb
_COLUMNS = (
    "id INT, n INT, v VARCHAR(9) CHARACTER SET latin1, c TEXT CHARACTER SET utf8mb4, b BLOB, u BIGINT UNSIGNED,"
    " e ENUM('ä', 'b😀', 'c,''d') CHARACTER SET utf8mb4, s SET('é', 'q') CHARACTER SET latin1, PRIMARY KEY (id, n)"
)


@pytest.fixture(scope="module", params=["mariadb_source", "mysql"])
def source(request: pytest.FixtureRequest) -> Iterator[MariaDb]:
    with empty_database(request.getfixturevalue(request.param), "maps") as server:
        yield server


def _logged(server: MariaDb, table: str, metadata: str) -> TableMap:
    execute(server, f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        (event,) = events_of(server, [f"INSERT INTO maps.{table} () VALUES ()"])
    finally:
        execute(server, "SET GLOBAL binlog_row_metadata = FULL")
    return event.table


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_every_type_fits_its_own_definition(source: MariaDb, metadata: str) -> None:
    columns = ", ".join(f"c{n} {kind.sql}" for n, kind in enumerate(kinds(source.name)))
    execute(source, "DROP TABLE IF EXISTS maps.wide", f"CREATE TABLE maps.wide (id INT, {columns})")
    check_table_map(definition_of(source, "maps", "wide"), _logged(source, "wide", metadata))


@pytest.mark.parametrize(
    ("unlogged", "message"),
    [
        ("MODIFY n INT UNSIGNED NOT NULL", "column n has other signs"),
        ("MODIFY u BIGINT", "column u has other signs"),
        ("MODIFY v VARCHAR(9) CHARACTER SET gbk", "column v has other charsets"),
        ("MODIFY c TEXT CHARACTER SET utf8mb3", "column c has other charsets"),
        ("MODIFY b TEXT CHARACTER SET latin1", "column b has other charsets"),
        ("MODIFY e ENUM('b😀', 'ä', 'c,''d') CHARACTER SET utf8mb4", "column e has other elements"),
        ("MODIFY s SET('é', 'q', 'r') CHARACTER SET latin1", "column s has other elements"),
        ("DROP PRIMARY KEY, ADD PRIMARY KEY (id)", "another primary key"),
        ("DROP PRIMARY KEY", "another primary key"),
        ("CHANGE n m INT NOT NULL", "column 2 is m in the log, n in the definition"),
    ],
)
def test_changes_of_an_unlogged_alter_are_detected(source: MariaDb, unlogged: str, message: str) -> None:
    execute(source, "DROP TABLE IF EXISTS maps.t", f"CREATE TABLE maps.t ({_COLUMNS})")
    definition = definition_of(source, "maps", "t")
    check_table_map(definition, _logged(source, "t", "FULL"))
    execute(source, "TRUNCATE maps.t", f"ALTER TABLE maps.t {unlogged}")
    logged = _logged(source, "t", "FULL")
    with pytest.raises(SchemaError, match=message):
        check_table_map(definition, logged)


@pytest.mark.parametrize("keys", ["UNIQUE (b), UNIQUE (a)", "UNIQUE (a, n), KEY (n)", "UNIQUE (b)"])
def test_unique_key_may_stand_for_a_missing_primary_key(source: MariaDb, keys: str) -> None:
    columns = "a INT NOT NULL DEFAULT 1, n INT NOT NULL DEFAULT 2, b INT"
    execute(source, "DROP TABLE IF EXISTS maps.t", f"CREATE TABLE maps.t ({columns}, {keys})")
    check_table_map(definition_of(source, "maps", "t"), _logged(source, "t", "FULL"))
