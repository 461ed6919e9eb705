"""A shard that is loaded after an ADD COLUMN and one that runs it later: older rows get one value, the source's.

The target has the column as the loaded shard was created with it, and fills the rows of the other shard until that has
run its ADD COLUMN: with the value that this gives them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.followed import Followed
from support.mariadb import execute, rows

from binlake.ddl.joined import fill_for_others, join_tables
from binlake.mysqlbinlog.model import Flavor
from binlake.rows.codec.encode import derive_filled_text
from deploy.local.mariadb import MariaDb

pytestmark = pytest.mark.mariadb

BOTH = (
    "CHAR(3) NOT NULL", "CHAR(3) NOT NULL DEFAULT 'ä'", "CHAR(3) DEFAULT 'a'", "CHAR(3)",
    "VARCHAR(9) NOT NULL", "VARCHAR(9) NOT NULL DEFAULT 'ä'", "VARCHAR(9) NOT NULL DEFAULT ''", "VARCHAR(9)",
    "VARCHAR(30) NOT NULL DEFAULT 'CURRENT_TIMESTAMP'", "VARCHAR(30) NOT NULL DEFAULT 'current_user'",
    "VARCHAR(30) NOT NULL DEFAULT 'NULL'", "VARCHAR(30) CHARACTER SET latin1 NOT NULL DEFAULT 'ä'",
    "VARBINARY(4) NOT NULL", "VARBINARY(4) NOT NULL DEFAULT X'00FF'", "BINARY(3) NOT NULL",
    "BINARY(3) NOT NULL DEFAULT 'a'", "BLOB NOT NULL", "TEXT NOT NULL", "TEXT",
    "ENUM('b', 'a') NOT NULL", "ENUM('b', 'a') NOT NULL DEFAULT 'a'", "ENUM('b', 'a') DEFAULT 'a'",
    "ENUM('', 'a') NOT NULL",
    "SET('a', 'b') NOT NULL", "SET('a', 'b') NOT NULL DEFAULT 'a,b'", "BIT(9) NOT NULL",
    "BIT(9) NOT NULL DEFAULT b'101'",
    "BIT(9) DEFAULT b'101'", "BIT(1) NOT NULL DEFAULT 1",
    "INT NOT NULL", "INT NOT NULL DEFAULT 7", "INT DEFAULT -7", "BIGINT UNSIGNED NOT NULL DEFAULT 18446744073709551615",
    "INT(4) ZEROFILL NOT NULL DEFAULT 7", "DECIMAL(6,2) NOT NULL", "DECIMAL(6,2) NOT NULL DEFAULT 1.5",
    "FLOAT NOT NULL DEFAULT 1.1", "DOUBLE NOT NULL DEFAULT 1e30", "DOUBLE NOT NULL", "YEAR NOT NULL",
    "YEAR NOT NULL DEFAULT 2020", "DATE NOT NULL DEFAULT '2020-02-03'", "TIME NOT NULL",
    "TIME(2) DEFAULT '-01:02:03.4'",
    "DATETIME(3) NOT NULL DEFAULT '2020-02-03 04:05:06.7'", "DATETIME DEFAULT NULL",
    "TIMESTAMP NOT NULL DEFAULT '2020-02-03 04:05:06'", "JSON",
)  # fmt: skip


@pytest.fixture(params=[Flavor.MARIADB, Flavor.MYSQL], ids=lambda flavor: str(flavor.value))
def followed(request: pytest.FixtureRequest) -> Iterator[Followed]:
    server: MariaDb = request.getfixturevalue("mariadb" if request.param is Flavor.MARIADB else "mysql")
    server.wipe()
    copy = Followed(server, request.param, published=False)
    copy.run("CREATE DATABASE shop CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci", db="")
    yield copy
    copy.close()


@pytest.mark.soak_on("mysql")
def test_older_rows_of_both_shards_get_one_value(followed: Followed) -> None:
    """S4-53 R-15."""
    wrong = list[object]()
    zone = "SET time_zone = '+03:00'"
    for number, kind in enumerate(BOTH):
        late, early = f"late{number}", f"early{number}"
        followed.run(f"CREATE TABLE {early} (id INT PRIMARY KEY)")
        execute(followed.server, f"INSERT INTO shop.{early} VALUES (1)")
        followed.run(f"CREATE TABLE {late} (id INT PRIMARY KEY, c {kind})", settings=zone)
        before, loaded = (followed.catalog.find_table("one", "shop", name) for name in (early, late))
        assert before is not None
        assert loaded is not None
        widest = fill_for_others(loaded, (before, loaded)).find_column("c")
        joined = join_tables((before, loaded)).find_column("c")
        followed.run(f"ALTER TABLE {early} ADD COLUMN c {kind}", settings=zone)
        after = followed.catalog.find_table("one", "shop", early)
        assert after is not None
        added = after.find_column("c")
        assert widest is not None
        assert joined is not None
        assert added is not None
        fills = [derive_filled_text(column) for column in (added, widest, joined)]
        execute(followed.server, f"INSERT INTO shop.{late} VALUES (1, {_as_literal(fills[0], added.is_binary)})")
        query = f"SELECT (SELECT HEX(c) FROM shop.{early}), (SELECT HEX(c) FROM shop.{late})"
        [(source, target)] = rows(followed.server, query)
        if len(set(fills)) > 1 or source != target:
            wrong.append((kind, *fills, source, target))
    assert wrong == []


@pytest.mark.parametrize("name", ["CURRENT_TIMESTAMP", "CURRENT_DATE", "current_user"])
def test_a_text_that_reads_like_a_clock_is_a_default_like_any_other(followed: Followed, name: str) -> None:
    kinds = f"VARCHAR(30) NOT NULL DEFAULT '{name}'", f"ENUM('a', '{name}') DEFAULT '{name}'"
    followed.published = True
    followed.run("CREATE DATABASE two", "CREATE TABLE two.old (id INT PRIMARY KEY)", db="")
    for db in ("two", "copy_two"):
        execute(followed.server, f"INSERT INTO {db}.old VALUES (1)")
    followed.run(f"CREATE TABLE two.new (id INT PRIMARY KEY, v {kinds[0]}, e {kinds[1]})", db="")
    followed.run(f"ALTER TABLE two.old ADD COLUMN v {kinds[0]}, ADD COLUMN e {kinds[1]}", db="")
    for db in ("two", "copy_two"):
        execute(followed.server, f"INSERT INTO {db}.old (id) VALUES (2)", f"INSERT INTO {db}.new (id) VALUES (2)")
        assert (
            rows(followed.server, f"SELECT v, e FROM {db}.old UNION ALL SELECT v, e FROM {db}.new")
            == [(name, name)] * 3
        )
    old = followed.state.find("copy_two", "old")
    assert old is not None
    assert [derive_filled_text(column) for column in old.columns[1:]] == [name, name]


def _as_literal(text: str | None, is_binary: bool) -> str:
    return "NULL" if text is None else f"X'{text}'" if is_binary else "'" + text.replace("'", "''") + "'"
