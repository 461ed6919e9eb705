"""A live source, and contexts over it, for the end-to-end tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.live import LiveSource
from support.mariadb import MariaDb

from binlake.spark_jobs.job.context import StageContext


@pytest.fixture
def source(tmp_path: Path) -> Iterator[LiveSource]:
    """Two pumps and a small TiDB."""
    with LiveSource(tmp_path) as live:
        yield live


@pytest.fixture
def context(source: LiveSource, request: pytest.FixtureRequest) -> Callable[..., StageContext]:
    """Make contexts over `source`, without sinks by default. Spark starts only for a stage that needs it."""

    def make(stop_ts: int | None = None, **more: Any) -> StageContext:
        replication = source.replication(**{"mirror": {"enabled": False}, **more})
        return StageContext(replication, "test", lambda: request.getfixturevalue("spark"), stop_ts)

    return make


@pytest.fixture
def target(empty_mariadb: MariaDb) -> dict[str, Any]:
    """The section [target] for the session's emptied MariaDB."""
    server = empty_mariadb
    return {"db-type": "mariadb", "host": server.host, "port": server.port, "user": server.user,
            "password": server.password}  # fmt: skip
