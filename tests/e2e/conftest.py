"""A live source, and a context over it, for the tests of the whole set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.live import LiveSource
from support.mariadb import MariaDb

from spark_jobs.job.context import StageContext


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LiveSource]:
    """Two pumps and a small TiDB."""
    with LiveSource(tmp_path) as live:
        yield live


@pytest.fixture
def context(source: LiveSource, request: pytest.FixtureRequest) -> Callable[..., StageContext]:
    """Makes contexts over `source`: no sink unless asked for. Spark is started for a stage that asks for it."""

    def make(stop_ts: int | None = None, **more: Any) -> StageContext:
        replication = source.replication(**{"mirror": {"enabled": False}, **more})
        return StageContext(replication, "test", lambda: request.getfixturevalue("spark"), stop_ts)

    return make


@pytest.fixture
def target(empty_mariadb: MariaDb) -> dict[str, Any]:
    """The section [target] of the session's MariaDB, emptied."""
    server = empty_mariadb
    return {"db-type": "mariadb", "host": server.host, "port": server.port, "user": server.user,
            "password": server.password}  # fmt: skip
