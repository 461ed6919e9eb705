"""A source history with everything that a SQL sink must follow, in a lake with a target."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from history import History, plain, shop
from lakehouse import Lakehouse, Source
from pyspark.sql import SparkSession
from support.mariadb import MariaDb, execute, rows

from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.stagerun import compare_after_apply
from binlake.spark_jobs.stages import compact, convert, finalize

LandedShop = Callable[[int], Path]
"""A lake with the first windows of the history, landed and merged; copy it before use."""


def land_shop(root: Path, windows: int) -> None:
    """Land and merge the first `windows` windows of the history."""
    history = shop()
    lakehouse = Lakehouse(None, root, Source.of_workload(history.workload))
    for lo, hi in list(zip([0, *history.cuts], history.cuts, strict=False))[:windows]:
        lakehouse.land(lo, hi)


class Sink:
    """The history in a lake with a server as target; its databases are dropped first. `landed`: a lake to copy."""

    def __init__(
        self, spark: SparkSession | None, root: Path, server: MariaDb, *, landed: Path | None = None, **target: Any
    ) -> None:
        if landed is not None:
            shutil.copytree(landed, root, dirs_exist_ok=True)
        execute(server, "DROP DATABASE IF EXISTS shop", "DROP DATABASE IF EXISTS tidb_binlog")
        self.server = server
        self.history: History = shop()
        address = {"host": "127.0.0.1", "port": server.port, "user": server.user, "password": server.password}
        config = {"target": {"db-type": server.name, **address, **target}}
        self.lakehouse = Lakehouse(spark, root, Source.of_workload(self.history.workload), config)
        self.ctx: StageContext = self.lakehouse.context()
        self.windows = [Bounds(lo, hi) for lo, hi in zip([0, *self.history.cuts], self.history.cuts, strict=False)]

    def derive(self, bounds: Bounds) -> list[StageResult]:
        results = [compact.run(self.ctx, bounds)]
        results.append(convert.run(self.ctx, Bounds(results[0].lo, results[0].hi)))
        return results

    def apply(self, bounds: Bounds) -> list[StageResult]:
        results = self.derive(bounds)
        applied = finalize.run(self.ctx, Bounds(results[1].lo, results[1].hi))
        return [*results, compare_after_apply(self.ctx, applied)]

    def target(self) -> dict[tuple[str, str], Any]:
        """All rows of the target's database `shop` in the form of the model."""
        found = {}
        for (name,) in rows(
            self.server, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'shop'"
        ):
            columns = [c for (c, *_) in rows(self.server, f"SHOW COLUMNS FROM shop.`{name}`")]
            data = rows(self.server, f"SELECT * FROM shop.`{name}`")
            texts = ([None if value is None else str(value) for value in row] for row in data)
            found["shop", name] = plain([dict(zip(columns, row, strict=True)) for row in texts])
        return found

    def model(self, ts: int) -> dict[tuple[str, str], Any]:
        state = [tables for commit_ts, tables in self.history.states if commit_ts <= ts][-1]
        return {name: plain(data) for name, data in state.items()}
