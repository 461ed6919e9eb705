"""Two MariaDB servers that one feeder reads, configured by DM's own files, with the lake and the target behind it."""

from __future__ import annotations

import threading
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml
from support.live import LiveSource
from support.mariadb import MariaDb, execute, rows

from binlake.cli import run as run_command
from binlake.config.model import Replication
from pump_service.feeder.service import Feeder
from pump_service.feeder.settings import FeederFile
from spark_jobs.job.context import StageContext
from spark_jobs.job.runner import run_window
from sql import read_steps

SHARDS = ("shard-1", "shard-2")
FIRST_IDS = {"shard-1": 0, "shard-2": 1000}
_LONGEST_S = 60.0
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
    "mysql-instances": [
        {"source-id": shard, "block-allow-list": "store", "route-rules": ["sale"], "syncer-config-name": "global"}
        for shard in SHARDS
    ],
}  # fmt: skip


class FedShards:
    """`servers`: those of the shards, emptied; `target`: where their tables become one. Use as a context manager.

    `task`: keys of DM's task beside those of `TASK`. Nothing is read before `start`.
    """

    def __init__(self, folder: Path, servers: Sequence[MariaDb], target: MariaDb, **task: Any) -> None:
        self.servers = dict(zip(SHARDS, servers, strict=True))
        self.target = target
        self._live = LiveSource(folder)
        self._folder = folder
        replication, feeder = self._import({**TASK, **task})
        feeder["data-dir"] = str(folder / "feeder-data")
        feeder["status-addr"] = "127.0.0.1:0"
        feeder["pd-urls"] = self._live.driver.url
        feeder["tracker"] |= {"port": target.port, "user": "root", "password": ""}
        self._feeder = Feeder(FeederFile.model_validate(feeder))
        self._replication = replication
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._url = ""
        self._serves = threading.Event()
        self._failure: BaseException | None = None

    def _import(self, task: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `binlake dm import` makes of the task and the sources."""
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
        lake = str(self._folder / "lake")
        out = ["--out", str(dm), "--target-type", "mariadb", "--lake", lake, "--pd-urls", self._live.driver.url]
        assert run_command(["dm", "import", *paths, *out]) == 0
        read = [tomllib.loads(path.read_text()) for path in (dm / "shards.toml", dm / "feeder" / "shards.toml")]
        return read[0], read[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, _: TracebackType | None) -> None:
        self._feeder.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self._live.vanish()
        if value is None and self._failure is not None:
            raise self._failure

    def _feed(self) -> None:
        try:
            self._feeder.run(self._on_started)
        except BaseException as error:  # noqa: BLE001 - raised where the test ends
            self._failure = error
        finally:
            self._serves.set()

    def _on_started(self, url: str) -> None:
        self._url = url
        self._serves.set()

    def start(self) -> None:
        """Feed, from the present end of the shards' logs."""
        self._thread.start()
        self._serves.wait()
        self._wait(lambda places: len(places) == len(SHARDS) and all(file for file, _ in places.values()))

    def run_step(self, step: str, *shards: str, first: Mapping[str, int] = FIRST_IDS) -> None:
        """Let shards run a step of sql/demo_shards.sql."""
        for shard in shards or SHARDS:
            steps = read_steps("demo_shards.sql", shard=shard[-1], first=first[shard])
            execute(self.servers[shard], *steps[step])

    def wait_until_fed(self) -> int:
        """Until all that the shards have logged is with the pumps; a commit_ts behind it."""
        ends = {shard: rows(server, "SHOW MASTER STATUS")[0][:2] for shard, server in self.servers.items()}
        self._wait(lambda places: all(places[shard] >= end for shard, end in ends.items()))
        return self._live.settle()

    def _wait(self, done: Callable[[Mapping[str, tuple[str, int]]], bool]) -> None:
        """Until the places up to which the shards' logs are published are as `done` wants them."""
        deadline = time.monotonic() + _LONGEST_S
        while True:
            shown = {one["source"]: one for one in httpx.get(f"{self._url}/feeder").json()["sources"]}
            if done({shard: (one.get("file", ""), one.get("offset", 0)) for shard, one in shown.items()}):
                return
            assert self._thread.is_alive(), self._failure
            assert all(one["state"] != "failed" for one in shown.values()), shown
            assert time.monotonic() < deadline, shown
            time.sleep(0.02)

    def run_windows(self, **target: Any) -> StageContext:
        """Windows until all that was logged is applied."""
        until = self.wait_until_fed()
        ctx = self.context(**target)
        while (ctx.windows.landed_ts() or 0) < until:
            run_window(ctx)
        return ctx

    def context(self, **target: Any) -> StageContext:
        """A context over the replication; it has no Spark."""
        raw = {**self._replication, "initial-commit-ts": "0", "mirror": {"enabled": False}}
        raw["source"] = {**raw["source"], "status-url": self._url}
        raw["target"] = {**raw["target"], **target}
        return StageContext(Replication.model_validate(raw), "test", _no_spark)


def _no_spark() -> Any:
    raise AssertionError("a small window asks for no Spark")
