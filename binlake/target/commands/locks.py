"""`binlake ddl lock`: the tables that share a target and are not of one shape, as the lake knows them at its end.

It is DM's `shard-ddl-lock`, without a lock: nobody waits. The first table widens the target, the last one narrows it,
and meanwhile this says whose DDL is missing.
"""

from __future__ import annotations

import json
from typing import Any

from binlake.base.terminal import print_table
from binlake.config.model import Replication
from binlake.errors import ConfigError
from binlake.lake.paths import LakePaths
from binlake.lake.schemas import SchemaHistory
from binlake.lake.windowlog import WindowLog
from binlake.rules import Rules
from binlake.window.shards import find_unlike_shards
from binlake.window.targets import Naming, TargetTables

_STATES = {
    True: "the target holds the rows of all",
    False: "no shape holds the rows of all: the next DDL of one of them stops",
}


def show_locks(replication: Replication, output: str) -> int:
    """Print them; the status: 3 when there is none. Raises ConfigError."""
    locks = read_locks(replication)
    if output == "json":
        print(json.dumps(locks))
    elif not locks:
        print("all tables that share a target are of one shape")
    for lock in locks if output != "json" else ():
        print(f"{lock['target']}: {lock['state']}")
        rows = [(t["source"], t["table"], ", ".join(t["lacks"]), t["ddl"], t["commit_ts"]) for t in lock["tables"]]
        print_table(("source", "table", "lacks", "last DDL", "commit_ts"), rows, whole=("last DDL",))
    return 0 if locks else 3


def read_locks(replication: Replication) -> list[dict[str, Any]]:
    """A table of the target each, with its tables of the source, for JSON. Raises ConfigError."""
    paths = LakePaths.of(replication)
    landed = WindowLog(paths).landed_ts()
    if landed is None:
        raise ConfigError("nothing has landed yet", where={"lake": paths.root}, hint="run the first window")
    history, naming = SchemaHistory(paths), Naming(Rules.of(replication))
    found = find_unlike_shards(TargetTables(history.state_at(landed), naming), naming)
    last = history.last_ddl_of([shard.table_id for one in found for shard in one.shards], landed)
    return [
        {
            "target": f"{one.db}.{one.table}",
            "state": _STATES[one.mergeable],
            "tables": [
                {
                    "source": shard.source or replication.name,
                    "table": f"{shard.db}.{shard.table}",
                    "lacks": list(shard.lacks),
                    "ddl": last.get(shard.table_id, (0, ""))[1],
                    "commit_ts": str(last[shard.table_id][0]) if shard.table_id in last else "",
                }
                for shard in one.shards
            ],
        }
        for one in found
    ]
