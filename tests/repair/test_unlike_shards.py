"""Rows of a shard without a column of its target have the column's default there, and verify expects exactly that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.examples import spread
from support.mariadb import MariaDb, execute
from support.tinylake import TinyLake, set_checkpoint, target_config
from support.workload import Workload, integer, text

from binlake.repair.verify import VerifyOptions, verify

pytestmark = [pytest.mark.mariadb, pytest.mark.soak_on("mysql")]

SHARDS = {"schema-pattern": "s?", "table-pattern": "t_*", "target-schema": "whole", "target-table": "t"}
SMALL = VerifyOptions(chunk_rows=2)
DDL = ["CREATE DATABASE whole COLLATE utf8mb4_bin",
       "CREATE TABLE whole.t (id INT PRIMARY KEY, name VARCHAR(64))"]  # fmt: skip


class Shards:
    """Two source tables that share one target; `keyless`: without a primary key. `config`: of the replication."""

    def __init__(self, root: Path, server: MariaDb, *, keyless: bool = False, **config: Any) -> None:
        self.w, self.server = Workload(), server
        for db, table in (("s1", "t_1"), ("s2", "t_2")):
            self.w.create_database(db)
            self.w.create_table(db, table, [integer("id"), text("name")], [] if keyless else ["id"])
        self.lake = TinyLake(root, self.w, {"target": target_config(server), "routes": [SHARDS], **config})
        execute(server, *(statement.replace(" PRIMARY KEY", "") if keyless else statement for statement in DDL))

    def write(self, first: int, **more: object) -> int:
        """Write a row of each shard, `first` and the next key; `more`: columns of the first one. Returns commit_ts."""
        txn = self.w.begin().insert("s1", "t_1", id=first, name="one", **more)
        return txn.insert("s2", "t_2", id=first + 1, name="two").commit()

    def differences(self, ts: int) -> list[tuple[str, str]]:
        """(key, kind) of the differences that verify reports with the target's checkpoint at `ts`."""
        set_checkpoint(self.server, ts)
        verified = verify(self.lake.replication, SMALL)
        assert [table.structure for table in verified.tables] == [[]]
        return [(difference.key, difference.kind) for difference in verified.differences]


@pytest.mark.parametrize(
    ("mode", "rewritten", "keyless"),
    # Each value is in two of the first four cases; `make soak` runs all eight.
    spread(
        [(mode, rewritten, keyless) for mode in ("", "optimistic") for rewritten in (True, False)
         for keyless in ((mode == "") is rewritten, (mode == "") is not rewritten)],
        least=4,
    ),
)  # fmt: skip
def test_column_of_one_shard_has_its_default_in_rows_of_the_other(
    tmp_path: Path, empty_server: MariaDb, mode: str, rewritten: bool, keyless: bool
) -> None:
    shards = Shards(tmp_path, empty_server, keyless=keyless, **({"shard-mode": mode} if mode else {}))
    shards.write(1)
    shards.lake.land()
    shards.w.add_column("s1", "t_1", integer("n", default="7"))
    shards.w.add_column("s1", "t_1", text("v", 9, not_null=True, default="x"))
    shards.w.add_column("s1", "t_1", integer("empty"))
    middle = shards.write(3, n=30, v="y", empty=None)
    shards.write(5, n=None, v="", empty=1)
    end = shards.lake.land()
    execute(
        empty_server,
        "ALTER TABLE whole.t ADD n INT DEFAULT 7, ADD v VARCHAR(9) NOT NULL DEFAULT 'x', ADD `empty` INT",
        "INSERT INTO whole.t (id, name, n, v) VALUES (1, 'one', 7, 'x'), (2, 'two', 7, 'x'), (3, 'one', 30, 'y')",
        "INSERT INTO whole.t (id, name) VALUES (4, 'two')",
    )
    ts = middle
    if rewritten:
        execute(empty_server, "INSERT INTO whole.t VALUES (5, 'one', NULL, '', 1), (6, 'two', 7, 'x', NULL)")
        ts = end
    assert shards.differences(ts) == []
    # Neither NULL nor a value of another row is mistaken for the default.
    execute(empty_server, "UPDATE whole.t SET n = NULL WHERE id = 4", "UPDATE whole.t SET v = '' WHERE id = 2")
    kinds = {"missing", "extra"} if keyless else {"different"}
    differences = shards.differences(ts)
    assert {kind for _, kind in differences} == kinds
    assert len(differences) == (4 if keyless else 2)


def test_shards_that_each_lack_a_column_of_the_other_are_verified(
    tmp_path: Path, empty_server: MariaDb
) -> None:  # R-15 S4-03
    shards = Shards(tmp_path, empty_server, **{"shard-mode": "optimistic"})
    shards.w.add_column("s1", "t_1", integer("a", default="1"))
    shards.w.add_column("s2", "t_2", integer("b", not_null=True, default="2"))
    shards.w.begin().insert("s1", "t_1", id=1, name="one", a=10).commit()
    shards.w.begin().insert("s2", "t_2", id=2, name="two", b=20).commit()
    before = {"id": 2, "name": "two", "b": 20}
    shards.w.begin().update("s2", "t_2", before, name="zwei").commit()
    end = shards.lake.land()
    execute(
        empty_server,
        "ALTER TABLE whole.t ADD a INT DEFAULT 1, ADD b INT NOT NULL DEFAULT 2",
        "INSERT INTO whole.t VALUES (1, 'one', 10, 2), (2, 'zwei', 1, 20)",
    )
    assert shards.differences(end) == []
    execute(empty_server, "UPDATE whole.t SET a = NULL WHERE id = 2", "UPDATE whole.t SET b = 0 WHERE id = 1")
    assert sorted(shards.differences(end)) == [('["1"]', "different"), ('["2"]', "different")]
