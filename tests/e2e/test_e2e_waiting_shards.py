"""Sharded MariaDB into one table where a DDL waits for all shards: DM's pessimistic mode, through every stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fedshards import FedShards
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.errors import ConfigError
from binlake.repair.verify import VerifyOptions, verify
from binlake.target.commands.locks import read_locks, resolve_lock

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]


@pytest.fixture
def shards(mariadb_source: MariaDb, empty_mariadb: MariaDb, tmp_path: Path) -> Iterator[FedShards]:
    """A feeder of two servers; the target is empty."""
    mariadb_source.wipe()
    with (
        mariadb_in_memory(MariaDb.list_source_options(2)) as second,
        FedShards(tmp_path, (mariadb_source, second), empty_mariadb, **{"shard-mode": "pessimistic"}) as fed,
    ):
        fed.more = {"mirror": {"enabled": True}}
        yield fed


def sales(shards: FedShards, shard: str | None = None) -> list[tuple[Any, ...]]:
    """The rows of all columns at the target, or of a shard."""
    if shard is None:
        return rows(shards.target, "SELECT * FROM store.sale ORDER BY id")
    return rows(shards.servers[shard], f"SELECT * FROM store.sale_{shard[-1]} ORDER BY id")


def test_rows_wait_with_their_ddl_while_everything_else_continues(shards: FedShards) -> None:  # S4-53 R-15
    shards.start()
    for step in ("base", "load"):
        shards.run_step(step)
    shards.run_windows()
    before = sales(shards, "shard-1")
    assert sales(shards) == before + sales(shards, "shard-2")

    shards.run_step("widen", "shard-1")
    shards.run_step("after", "shard-1")
    execute(shards.servers["shard-1"], "UPDATE store.sale_1 SET amount = 7 WHERE id = 1")
    execute(shards.servers["shard-2"], "UPDATE store.sale_2 SET amount = 99 WHERE id = 1001")
    shards.run_windows()
    # The waiting shard's rows stay unchanged; the other shard's rows, and other tables of the first, continue.
    assert sales(shards) == before + sales(shards, "shard-2")
    for shard, server in shards.servers.items():
        items = f"SELECT * FROM store.item_{shard[-1]} ORDER BY sale, line"
        assert rows(shards.target, items) == rows(server, items)
    (lock,) = read_locks(shards.replication())
    assert [(one["source"], one["lacks"], bool(one["held_from"])) for one in lock["tables"]] == [
        ("shard-1", [], True), ("shard-2", ["column note"], False),
    ]  # fmt: skip
    assert "wait" in lock["state"]

    # Compared while rows wait: the mirror holds the same as the target.
    assert verify(shards.replication(), VerifyOptions()).equal
    execute(shards.servers["shard-1"], "DELETE FROM store.sale_1 WHERE id = 2")
    shards.run_step("widen", "shard-2")
    shards.run_step("after", "shard-2")
    shards.run_windows()
    whole = sales(shards, "shard-1") + sales(shards, "shard-2")
    assert sales(shards) == whole
    assert read_locks(shards.replication()) == []
    assert verify(shards.replication(), VerifyOptions()).equal

    # Without the table that has not dropped the column: its rows continue without the column.
    execute(shards.servers["shard-1"], "ALTER TABLE store.sale_1 DROP COLUMN note")
    execute(shards.servers["shard-1"], "UPDATE store.sale_1 SET amount = 8 WHERE id = 1")
    shards.run_windows()
    assert sales(shards) == whole
    with pytest.raises(ConfigError, match="no rows of this table wait"):
        resolve_lock(shards.replication(), "store.item", [], "")
    done = resolve_lock(shards.replication(), "store.sale", [], "")
    assert done["sql"].startswith("ALTER TABLE `store`.`sale` DROP COLUMN `note`")
    with pytest.raises(ConfigError, match="resolved already"):
        resolve_lock(shards.replication(), "store.sale", [], "")
    execute(shards.servers["shard-2"], "UPDATE store.sale_2 SET amount = 100, note = 'late' WHERE id = 1001")
    shards.run_windows()
    assert sales(shards) == sales(shards, "shard-1") + [row[:-1] for row in sales(shards, "shard-2")]
    assert verify(shards.replication(), VerifyOptions()).equal
    execute(shards.servers["shard-2"], "ALTER TABLE store.sale_2 DROP COLUMN note")
    execute(shards.servers["shard-2"], "INSERT INTO store.sale_2 VALUES (1009, 'Ida', 1, 'new', '2026-11-09')")
    shards.run_windows()
    assert sales(shards) == sales(shards, "shard-1") + sales(shards, "shard-2")
    assert verify(shards.replication(), VerifyOptions()).equal
