"""A live source, and a context over it, for the tests of the whole set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.live import LiveSource
from support.mariadb import MariaDb

from spark_jobs.job.context import StageContext


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LiveSource]:
    """Two pumps and a small TiDB."""
    with LiveSource(tmp_path) as live:
        yield live


@pytest.fixture
def context(source: LiveSource, spark: SparkSession) -> Callable[..., StageContext]:
    """Makes contexts over `source`: no sink unless asked for."""

    def make(stop_ts: int | None = None, **more: Any) -> StageContext:
        replication = source.replication(**{"mirror": {"enabled": False}, **more})
        return StageContext(replication, "test", lambda: spark, stop_ts)

    return make


@pytest.fixture
def target(empty_mariadb: MariaDb) -> dict[str, Any]:
    """The section [target] of the session's MariaDB, emptied."""
    server = empty_mariadb
    return {"db-type": "mariadb", "host": server.host, "port": server.port, "user": server.user,
            "password": server.password}  # fmt: skip
