"""`binlake ddl lock`: the tables that share a target and differ in shape at the end of the lake.

It corresponds to DM's `shard-ddl-lock`. In mode pessimistic it shows which tables' rows wait for which tables. In the
other modes no table waits: the first table widens the target and the last one narrows it, and meanwhile this command
shows which DDL are missing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import structlog

from binlake.common.commandline import Exit
from binlake.common.terminal import print_table
from binlake.config.model import Replication
from binlake.ddl.shardlocks import Name, Resolution
from binlake.ddl.sharedddl import SharedJudge
from binlake.ddl.targets import Naming, ShardTable, TargetTables, find_unlike_shards
from binlake.errors import ConfigError
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.sharedtargets import read_locks_at, read_resolutions, read_target_tables_at, record_resolution
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import BY_NAME
from binlake.rows.schema.forms import fold_pair
from binlake.rules import Rules

log = structlog.get_logger(__name__)

_STATES = {
    True: "the target can store the rows of all",
    False: "no shape can store the rows of all: the next DDL of one of them stops",
}
_WAITS = "they wait for each other: rows after a DDL that other tables lack are held back"


def show_locks(replication: Replication, output: str) -> int:
    """Print the locks. Returns the exit status: 3 if there is none. Raises ConfigError."""
    locks = read_locks(replication)
    if output == "json":
        print(json.dumps(locks))
    elif not locks:
        print("all tables that share a target have the same shape")
    for lock in locks if output != "json" else ():
        print(f"{lock['target']}: {lock['state']}")
        rows = [
            (t["source"], t["table"], ", ".join(t["lacks"]), t["held_from"], t["ddl"], t["commit_ts"])
            for t in lock["tables"]
        ]
        names = ("source", "table", "lacks", "held from", "last DDL", "commit_ts")
        print_table(names, rows, whole=("last DDL",))
    return Exit.DONE if locks else Exit.NOT_FOUND


def read_locks(replication: Replication) -> list[dict[str, Any]]:
    """One item per table of the target, with its tables of the source, for JSON. Raises ConfigError."""
    paths = LakePaths.of(replication)
    landed = WindowLog(paths).find_landed_ts()
    if landed is None:
        raise ConfigError("nothing has landed yet", where={"lake": paths.root}, hint="run the first window")
    history, naming = SchemaHistory(paths), Naming(Rules.of(replication))
    unlike = find_unlike_shards(TargetTables(history.read_state_at(landed), naming), naming)
    held = _read_hold_starts(replication, paths)
    last = history.find_last_ddls([shard.table_id for target in unlike for shard in target.shards], landed)
    return [
        {
            "target": f"{target.db}.{target.table}",
            "state": _WAITS if any(_fold_shard_name(s) in held for s in target.shards) else _STATES[target.mergeable],
            "tables": [
                {
                    "source": shard.source or replication.name,
                    "table": f"{shard.db}.{shard.table}",
                    "lacks": list(shard.lacks),
                    "held_from": held.get(_fold_shard_name(shard), ""),
                    "ddl": last.get(shard.table_id, (0, ""))[1],
                    "commit_ts": str(last[shard.table_id][0]) if shard.table_id in last else "",
                }
                for shard in target.shards
            ],
        }
        for target in unlike
    ]


def resolve_lock(replication: Replication, table: str, without: Sequence[str], sql: str) -> dict[str, Any]:
    """Record that merge continues without the tables that others wait for. Returns the consequences, for JSON.

    Raises ConfigError if that would release nothing.
    """
    paths, rules = LakePaths.of(replication), Rules.of(replication)
    windows, naming = WindowLog(paths), Naming(rules)
    with hold_lake_lock(paths, BY_NAME["merge"].lock):
        merged = windows.read_newest(("merge",), 1)
        place = merged[0]["hi"] if merged else 0
        locks = read_locks_at(windows, rules, place)
        resolution = Resolution(_split_name(table), tuple(map(_split_name, without)), sql)
        tables = read_target_tables_at(paths, naming, place)
        if any(fold_pair(one.target) == fold_pair(resolution.target) for one in read_resolutions(windows, place)):
            raise ConfigError(
                "this shard lock is resolved already",
                where={"table": table, "behind": place},
                hint="the next window applies it; then `binlake ddl lock` shows which tables still wait",
            )
        row = SharedJudge(naming, tables, locks).resolve(resolution, place, 0) if locks.holds else None
        if row is None:
            raise ConfigError(
                "no rows of this table wait for tables that could be left out",
                where={"table": table, "without": ", ".join(without)},
                hint="`binlake ddl lock` shows which tables wait and which DDL they lack; if tables have reached"
                " different shapes, name those to continue without with --without",
            )
        record_resolution(windows, place, resolution)
    log.warning("shard_lock_resolved", table=table, without=list(without), sql=row.sql, behind=str(place))
    return {"table": table, "sql": row.sql, "behind": str(place), "what": row.alert}


def _split_name(name: str) -> Name:
    db, dot, table = name.partition(".")
    if not (db and dot and table):
        raise ConfigError("a table's name must be db.table", where={"name": name}, hint="`binlake ddl lock` shows it")
    return db, table


def _fold_shard_name(shard: ShardTable) -> Name:
    return fold_pair((shard.db, shard.table))


def _read_hold_starts(replication: Replication, paths: LakePaths) -> dict[Name, str]:
    """By a source table's name in lower case: the commit_ts from which its rows wait, as text."""
    windows = WindowLog(paths)
    merged = windows.read_newest(("merge",), 1)
    ts = merged[0]["hi"] if merged else 0
    starts: dict[Name, str] = {}
    for hold in read_locks_at(windows, Rules.of(replication), ts).holds:
        name = fold_pair(hold.source)
        starts[name] = str(min(hold.since, int(starts.get(name, hold.since))))
    return starts
