"""Which of the tables that share a target lack a DDL of the others (R-15)."""

from __future__ import annotations

import pytest
from support.workload import Workload, integer, text
from test_judging import SHARDS, logged, rules, two_shards

from binlake.ddl.targets import Naming, TargetTables, UnlikeShards, find_unlike_shards
from binlake.rows.schema import SchemaState


def list_unlike(w: Workload) -> list[UnlikeShards]:
    naming = Naming(rules(routes=[SHARDS]))
    return find_unlike_shards(TargetTables(SchemaState().fold(logged(w)[1]), naming), naming)


def test_column_is_missing_until_the_last_shard_has_it() -> None:
    w = two_shards()
    assert list_unlike(w) == []
    w.add_column("s2", "t_2", integer("n"))
    (found,) = list_unlike(w)
    assert (found.db, found.table, found.mergeable) == ("all", "t", True)
    assert [(shard.db, shard.table, shard.lacks) for shard in found.shards] == [
        ("s1", "t_1", ("column n",)),
        ("s2", "t_2", ()),
    ]
    w.add_column("s1", "t_1", integer("n"))
    assert list_unlike(w) == []


def test_incompatible_shapes_are_reported_as_such() -> None:
    w = two_shards()
    w.add_column("s1", "t_1", integer("a"))
    w.add_column("s2", "t_2", integer("b"))
    (found,) = list_unlike(w)
    assert not found.mergeable
    assert [shard.lacks for shard in found.shards] == [("column b",), ("column a",)]


@pytest.mark.parametrize("other", ["plain", "typed"])
def test_different_keys_and_types_are_named(other: str) -> None:
    w = Workload()
    w.create_database("s1")
    w.create_database("s2")
    w.create_table("s1", "t_1", [integer("id"), text("name")], ["id"], ["name"])
    name = integer("name") if other == "typed" else text("name")
    w.create_table("s2", "t_2", [integer("id"), name], ["id"])
    (found,) = list_unlike(w)
    lacks = [shard.lacks for shard in found.shards]
    if other == "plain":
        assert (found.mergeable, lacks) == (True, [("no unique key (name)",), ()])
    else:
        assert not found.mergeable
        assert "definition of column name" in lacks[0]
        assert "definition of column name" in lacks[1]
