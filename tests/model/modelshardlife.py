"""Shards whose tables are dropped, created again, renamed and emptied, in addition to random rows and columns.

The rows of a dropped table stay at the target, so they are not compared any more (`MergedShards.left`).
"""

from __future__ import annotations

from modelmerge import MergedShards, Shard
from support.workload import Workload

from binlake.rows.schema import Action


def draw_life(shards: MergedShards) -> None:
    """Draw one of the things that may happen to a table."""
    kind = shards.random.choice(("drop", "create", "create", "rename", "empty"))
    if kind == "create" and shards.gone:
        _create(shards)
    elif kind == "drop" and len(shards.shards) > 1:
        _drop(shards)
    elif kind == "rename":
        _rename(shards)
    elif kind == "empty":
        _empty(shards)


def _drop(shards: MergedShards) -> None:
    """A table is dropped, or its whole database."""
    shard, w = shards.random.choice(shards.shards), shards.w
    shards.left |= shard.ids
    shards.shards.remove(shard)
    shards.gone.append((shard.db, shard.table))
    if shards.random.random() < 0.5:
        w.drop_table(shard.db, shard.table)
        shards.run(f"DROP TABLE {shard.db}.{shard.table}")
    else:
        _drop_database(w, shard.db)
        shards.run(f"DROP DATABASE {shard.db}")
    # From here on, steps that cannot run together come one per window.
    shards.may_follow = len(shards.plan)
    shards.release()


def _create(shards: MergedShards) -> None:
    """A table is created under the name of a dropped one, with the columns that the target has of another shard."""
    place = shards.gone.pop(shards.random.randrange(len(shards.gone)))
    columns, made = shards.shards[0].base
    if place[0] not in shards.w._dbs:
        shards.create_database(place[0])
    shards.create(Shard(*place, dict(columns), made=made))


def _rename(shards: MergedShards) -> None:
    shard, w = shards.random.choice(shards.shards), shards.w
    name = f"t_r{next(shards.keys)}"
    info = {**w.table(shard.db, shard.table).raw, "name": {"O": name, "L": name}}
    del w._tables[shard.db, shard.table]
    w.rows[shard.db, name] = w.rows.pop((shard.db, shard.table))
    w._put(shard.db, info)
    query = f"RENAME TABLE {shard.db}.{shard.table} TO {shard.db}.{name}"
    w._ddl(Action.RENAME_TABLE, shard.db, name, query, info)
    shards.run(query)
    shard.table = name


def _empty(shards: MergedShards) -> None:
    shard = shards.random.choice(shards.shards)
    shards.w.truncate(shard.db, shard.table)
    shards.run(f"TRUNCATE TABLE {shard.db}.{shard.table}")
    shards.left |= shard.ids
    shard.rows.clear()
    shard.ids.clear()


def _drop_database(w: Workload, name: str) -> None:
    for place in [place for place in w._tables if place[0] == name]:
        del w._tables[place], w.rows[place]
    w._ddl(Action.DROP_SCHEMA, name, "", f"DROP DATABASE `{name}`")
    del w._dbs[name]
