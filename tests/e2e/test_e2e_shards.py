"""Sharded MariaDB into one table through one feeder, configured by DM's own files (S4-03, S4-53, S4-52, R-15)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fedshards import FIRST_IDS, SHARDS, FedShards
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.errors import Drift, SchemaError
from binlake.repair.verify import VerifyOptions, verify
from binlake.target.commands.locks import read_locks

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

SAME_IDS = dict.fromkeys(SHARDS, 0)


@pytest.fixture(scope="module")
def sources(mariadb_source: MariaDb) -> Iterator[tuple[MariaDb, MariaDb]]:
    """The servers of two shards, each with its own log."""
    with mariadb_in_memory(MariaDb.list_source_options(2)) as second:
        yield mariadb_source, second


@pytest.fixture
def shards(sources: tuple[MariaDb, MariaDb], empty_mariadb: MariaDb, tmp_path: Path) -> Iterator[FedShards]:
    """A feeder of both emptied shards, with an empty target."""
    for server in sources:
        server.wipe()
    with FedShards(tmp_path, sources, empty_mariadb) as fed:
        yield fed


def sales(server: MariaDb, table: str, columns: str = "id, customer, amount, state, at") -> list[tuple[Any, ...]]:
    """The rows of a table of sales, by id."""
    return rows(server, f"SELECT {columns} FROM store.{table} ORDER BY id")


def union(shards: FedShards, columns: str = "id, customer, amount, state, at") -> list[tuple[Any, ...]]:
    """The rows of all shards."""
    return [row for shard, server in shards.servers.items() for row in sales(server, f"sale_{shard[-1]}", columns)]


def test_shards_of_a_shop_become_one_table(shards: FedShards) -> None:  # S4-03 S4-53 R-15 R-25
    shards.start()
    for step in ("base", "load"):
        shards.run_step(step)
    shards.run_windows()
    assert len(union(shards)) == 8
    assert sales(shards.target, "sale") == union(shards)
    # Each row is also compared with its shard.
    assert shards.validated[-1]["against_source"] == shards.validated[-1]["compared"] > 8
    # A table without a route is at the target in the same database as on its shard.
    for shard, server in shards.servers.items():
        items = f"SELECT * FROM store.item_{shard[-1]} ORDER BY sale, line"
        assert len(rows(server, items)) == 4
        assert rows(shards.target, items) == rows(server, items)

    shards.run_step("widen", "shard-1")
    shards.run_step("after", "shard-1")
    execute(shards.servers["shard-2"], "UPDATE store.sale_2 SET amount = 99 WHERE id = 1001")
    shards.run_windows()
    (lock,) = read_locks(shards.replication())
    assert [(one["source"], one["lacks"]) for one in lock["tables"]] == [("shard-1", []), ("shard-2", ["column note"])]
    assert lock["tables"][0]["ddl"].startswith("ALTER TABLE `shard-1_store`.`sale_1` ADD COLUMN `note`")
    # Rows of the shard without the column have its default.
    assert {row[0] for row in sales(shards.target, "sale", "note")} == {"none"}
    assert sales(shards.target, "sale") == union(shards)

    shards.run_step("widen", "shard-2")
    shards.run_step("after", "shard-2")
    shards.run_windows()
    assert sales(shards.target, "sale", "*") == union(shards, "*")
    assert read_locks(shards.replication()) == []

    # The last shard that has a column drops it at the target; a shard's rows stay when it drops its table.
    execute(shards.servers["shard-1"], "ALTER TABLE store.sale_1 DROP COLUMN note")
    shards.run_windows()
    assert {row[0] for row in sales(shards.target, "sale", "note")} == {"none"}
    execute(shards.servers["shard-2"], "ALTER TABLE store.sale_2 DROP COLUMN note")
    shards.run_windows()
    before = union(shards, "*")
    assert sales(shards.target, "sale", "*") == before
    execute(shards.servers["shard-1"], "DROP TABLE store.sale_1")
    shards.run_windows()
    assert sales(shards.target, "sale", "*") == before


def test_columns_of_a_dropped_shard_are_named_and_windows_continue_once_they_are_gone(
    sources: tuple[MariaDb, MariaDb], empty_mariadb: MariaDb, tmp_path: Path
) -> None:  # S4-53 R-15: without a shard-mode, the values of the remaining rows are never removed
    for server in sources:
        server.wipe()
    with FedShards(tmp_path, sources, empty_mariadb, **{"shard-mode": ""}) as shards:
        shards.start()
        shards.run_step("base")
        # The feeder reads the shards concurrently; the second shard must have its table before the first drops its
        # own.
        shards.run_windows()
        shards.run_step("widen", "shard-1")
        execute(shards.servers["shard-1"], "DROP TABLE store.sale_1")
        shards.run_windows()
        shards.run_step("load", "shard-2")
        with pytest.raises(Drift, match=r"store\.sale: column note is the target's own"):
            shards.run_windows()
        execute(shards.target, "ALTER TABLE store.sale DROP COLUMN note")
        shards.run_windows()
        assert sales(shards.target, "sale", "*") == sales(shards.servers["shard-2"], "sale_2")


def test_same_id_on_two_shards_stops_with_both_named(shards: FedShards) -> None:  # S4-03
    shards.start()
    shards.run_step("base")
    shards.run_step("load", "shard-1")
    shards.run_windows()
    before = sales(shards.target, "sale")
    execute(shards.servers["shard-2"], "INSERT INTO store.sale_2 VALUES (1, 'Eve', 1, 'new', '2026-11-01')")
    with pytest.raises(SchemaError, match=r"sources=shard-1_store\.sale_1,shard-2_store\.sale_2"):
        shards.run_windows()
    assert sales(shards.target, "sale") == before


def test_source_column_separates_equal_ids(
    sources: tuple[MariaDb, MariaDb], empty_mariadb: MariaDb, tmp_path: Path
) -> None:  # S4-03
    for server in sources:
        server.wipe()
    sale = {"schema-pattern": "store", "table-pattern": "sale_*", "target-schema": "store", "target-table": "sale",
            "extract-source": {"source-regexp": "shard-(.*)", "target-column": "shard"}}  # fmt: skip
    execute(
        empty_mariadb,
        "CREATE DATABASE store CHARACTER SET utf8mb4",
        "CREATE TABLE store.sale (id BIGINT NOT NULL, customer VARCHAR(40) NOT NULL, amount DECIMAL(12,2) NOT NULL,"
        " state ENUM('new','paid','sent') NOT NULL DEFAULT 'new', at DATETIME(3) NOT NULL,"
        " shard VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL, PRIMARY KEY (id, shard))",
    )
    with FedShards(tmp_path, sources, empty_mariadb, routes={"sale": sale}) as shards:
        shards.start()
        for step in ("base", "load"):
            shards.run_step(step, first=SAME_IDS)
        shards.run_windows()
        found = rows(empty_mariadb, "SELECT shard, id, customer, amount, state, at FROM store.sale ORDER BY shard, id")
        expected = [
            (shard[-1], *row) for shard in FIRST_IDS for row in sales(shards.servers[shard], f"sale_{shard[-1]}")
        ]
        assert len(expected) == 8
        assert found == expected
        # The lake's keys are those of the shards.
        assert "its rows have another key at the target" in shards.validated[-1]["tables"]["store.sale"]


def test_shards_with_old_rows_become_one_table(
    sources: tuple[MariaDb, MariaDb], empty_mariadb: MariaDb, tmp_path: Path
) -> None:  # S4-02 S4-03
    for server in sources:
        server.wipe()
    with FedShards(tmp_path, sources, empty_mariadb, **{"task-mode": "all"}) as shards:
        for step in ("base", "load"):
            shards.run_step(step)
        shards.start()
        shards.run_step("widen")
        shards.run_step("after")
        shards.run_windows()
        assert len(union(shards, "*")) == 10
        assert sales(empty_mariadb, "sale", "*") == union(shards, "*")


@pytest.mark.parametrize(
    ("mode", "ahead"),
    [("", "shard-2"), *(pytest.param("pessimistic", one, marks=pytest.mark.soak) for one in SHARDS)],
)
def test_shards_loaded_before_and_after_their_alter_become_one_table(
    sources: tuple[MariaDb, MariaDb], empty_mariadb: MariaDb, tmp_path: Path, mode: str, ahead: str
) -> None:  # S4-53 R-15
    for server in sources:
        server.wipe()
    behind = next(shard for shard in SHARDS if shard != ahead)
    with FedShards(tmp_path, sources, empty_mariadb, **{"task-mode": "all", "shard-mode": mode}) as shards:
        shards.more = {"mirror": {"enabled": True}}
        for step in ("base", "load"):
            shards.run_step(step)
        shards.run_step("widen", ahead)
        shards.run_step("after", ahead)
        shards.start()
        shards.run_windows()
        rows_behind = sales(shards.servers[behind], f"sale_{behind[-1]}")
        assert [row for row in sales(empty_mariadb, "sale") if row in rows_behind] == rows_behind
        assert verify(shards.replication(), VerifyOptions()).equal
        shards.run_step("widen", behind)
        shards.run_step("after", behind)
        shards.run_windows()
        assert len(union(shards, "*")) == 10
        assert sales(empty_mariadb, "sale", "*") == union(shards, "*")
        assert read_locks(shards.replication()) == []
        assert verify(shards.replication(), VerifyOptions()).equal
