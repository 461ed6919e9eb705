"""Shards none of whose definitions holds the others' rows, without a shard-mode: the stop, and the way on (R-15)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fedshards import FedShards
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.errors import SchemaError
from binlake.repair.verify import VerifyOptions, verify

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]


ALTERS = ("DROP COLUMN note", "ADD COLUMN colour VARCHAR(9) NOT NULL DEFAULT 'red'")


def read_sales(shards: FedShards) -> list[tuple[Any, ...]]:
    """The rows of both shards."""
    sales = (
        rows(server, f"SELECT * FROM store.sale_{shard[-1]} ORDER BY id") for shard, server in shards.servers.items()
    )
    return [row for one in sales for row in one]


def test_shard_that_drops_and_adds_before_the_other_stops_and_continues_with_a_joined_definition(
    mariadb_source: MariaDb, empty_mariadb: MariaDb, tmp_path: Path
) -> None:  # S4-53 R-15: drawn sources, world 70000600
    mariadb_source.wipe()
    with (
        mariadb_in_memory(MariaDb.list_source_options(2)) as second,
        FedShards(tmp_path, (mariadb_source, second), empty_mariadb, **{"shard-mode": ""}) as shards,
    ):
        shards.more = {"mirror": {"enabled": True}}
        shards.start()
        for step in ("base", "load", "widen", "after"):
            shards.run_step(step)
        shards.run_windows()
        for alter in ALTERS:
            execute(shards.servers["shard-1"], f"ALTER TABLE store.sale_1 {alter}")
        with pytest.raises(SchemaError, match=r"sale_1 lacks column note; .*sale_2 lacks column colour") as e:
            shards.run_windows()
        assert e.value.hint.startswith('set shard-mode = "optimistic"')
        shards.change(**{"shard-mode": "optimistic"})
        shards.run_windows()
        execute(shards.servers["shard-2"], "UPDATE store.sale_2 SET note = 'x' WHERE id = 1001")
        execute(shards.servers["shard-1"], "UPDATE store.sale_1 SET colour = 'blue' WHERE id = 1")
        shards.run_windows()
        changed = "SELECT id, note, colour FROM store.sale WHERE id IN (1, 1001) ORDER BY id"
        assert rows(shards.target, changed) == [(1, "none", "blue"), (1001, "x", "red")]
        for alter in ALTERS:
            execute(shards.servers["shard-2"], f"ALTER TABLE store.sale_2 {alter}")
        shards.run_windows()
        assert rows(shards.target, "SELECT * FROM store.sale ORDER BY id") == read_sales(shards)
        assert verify(shards.replication(), VerifyOptions()).equal
