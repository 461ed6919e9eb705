"""Two MariaDB servers that one feeder reads, configured by DM's own files, with the lake and the target."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from support.feeding import FedCluster
from support.mariadb import MariaDb, execute

from binlake.cli import run as run_command
from binlake.common.sql import read_steps
from binlake.config.model import Replication
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window

SHARDS = ("shard-1", "shard-2")
FIRST_IDS = {"shard-1": 0, "shard-2": 1000}
TASK: dict[str, Any] = {
    "name": "shards",
    "task-mode": "incremental",
    "shard-mode": "optimistic",
    "block-allow-list": {"store": {"do-dbs": ["store"]}},
    "routes": {
        "sale": {
            "schema-pattern": "store", "table-pattern": "sale_*", "target-schema": "store", "target-table": "sale"
        },
    },
    "syncers": {"global": {"batch": 100, "compact": True}},
    "validators": {"global": {"mode": "full"}},
    "mysql-instances": [
        {"source-id": shard, "block-allow-list": "store", "route-rules": ["sale"], "syncer-config-name": "global",
         "validator-config-name": "global"}
        for shard in SHARDS
    ],
}  # fmt: skip


class FedShards:
    """`servers`: the emptied shards; `target`: where their tables are merged into one. Use as a context manager.

    `task`: keys of DM's task in addition to `TASK`. `more`: sections of the replication in addition to the imported
    ones. Nothing is read before `start`.
    """

    def __init__(self, folder: Path, servers: Sequence[MariaDb], target: MariaDb, **task: Any) -> None:
        self.servers = dict(zip(SHARDS, servers, strict=True))
        self.target = target
        self.more: dict[str, Any] = {}
        self.validated: list[dict[str, Any]] = []
        self._folder = folder
        self._replication, feeder = self._import({**TASK, **task})
        self._cluster = FedCluster(folder, target, feeder["source"])

    def _import(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Run `binlake dm import` on the task and the sources; return the replication and the feeder's settings."""
        to = {"host": self.target.host, "port": self.target.port, "user": "root", "password": ""}
        files = {"task": {**task, "target-database": to}}
        for shard, server in self.servers.items():
            at = {"host": server.host, "port": server.port, "user": "root", "password": ""}
            files[shard] = {"source-id": shard, "enable-gtid": True, "from": at}
        dm = self._folder / "dm"
        dm.mkdir()
        for name, content in files.items():
            (dm / f"{name}.yaml").write_text(yaml.safe_dump(content))
        paths = [str(dm / f"{name}.yaml") for name in files]
        assert run_command(["dm", "import", *paths, "--out", str(dm), "--target-type", "mariadb"]) == 0
        read = [tomllib.loads(path.read_text()) for path in (dm / "shards.toml", dm / "feeder" / "shards.toml")]
        return read[0], read[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._cluster.__exit__(kind, value, at)

    def start(self) -> None:
        """Start the feeder at the current end of the shards' logs."""
        self._cluster.start_feeder()

    def run_step(self, step: str, *shards: str, first: Mapping[str, int] = FIRST_IDS) -> None:
        """Run a step of sql/demo_shards.sql on the shards."""
        for shard in shards or SHARDS:
            steps = read_steps("demo_shards.sql", shard=shard[-1], first=first[shard])
            execute(self.servers[shard], *steps[step])

    def change(self, **settings: Any) -> None:
        """Change keys of the imported replication, as an operator does between two windows."""
        self._replication.update(settings)

    def replication(self) -> Replication:
        """The imported replication, with this cluster as source and a lake in this folder."""
        rules = {key: value for key, value in self._replication.items() if key not in ("name", "source", "lake")}
        return self._cluster.replication(**rules, **self.more)

    def run_windows(self) -> None:
        """Run windows until everything logged is applied, and check that validation finds no error."""
        self._cluster.follow(*self.servers.values())
        until = self._cluster.settle()
        ctx = StageContext(self.replication(), "test", _no_spark)
        while (ctx.windows.find_landed_ts() or 0) < until:
            run_window(ctx)
        validated = json.loads(ctx.windows.read_last_events(("validate",), 1, ("done",))[0]["detail"])
        assert validated["errors"] == 0, validated["listed"]
        self.validated.append(validated)


def _no_spark() -> Any:
    raise AssertionError("a small window must not need Spark")
