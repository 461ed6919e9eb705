"""Loads as columns whose feeder and pump are killed with -9, as processes, while windows run and rows change: the first
one of a source, and that of a table later (decision 148)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest
from deltalake import DeltaTable
from support.feeding import contents, mixed_transactions
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows
from support.windows import wait_until

from binlake.cli import run
from binlake.config.model import Replication
from binlake.errors import SourceUnavailable
from binlake.lake.paths import LakePaths
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window
from deploy.local.source import FeederSource

# Kills at each step of a load, in one process, are of `make test` (test_e2e_feeder, test_e2e_column_load).
pytestmark = [pytest.mark.mariadb, pytest.mark.e2e, pytest.mark.soak]
_ROWS = 2000
_WAIT_S = 90.0


@pytest.fixture
def server() -> Iterator[MariaDb]:
    with mariadb_in_memory(MariaDb.list_source_options()) as made:
        numbers = f"WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < {_ROWS - 1}) SELECT"
        execute(
            made,
            "CREATE DATABASE fed CHARACTER SET utf8mb4",
            "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE)",
            "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
            "SET SESSION max_recursive_iterations = 20000",
            f"INSERT INTO fed.t {numbers} i, CONCAT('u', i), i / 7 FROM n",
            "INSERT INTO fed.log VALUES (1, 'base'), (1, 'base')",
        )
        yield made


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FeederSource]:
    made = FeederSource(tmp_path / "cluster", pumps=2)
    try:
        yield made.start()
    finally:
        made.stop()


def read_load(cluster: FeederSource) -> dict[str, Any]:
    """The load on the feeder's page; {} while there is none."""
    try:
        sources = cluster.fetch_feeder_status()["sources"]
    except (httpx.HTTPError, json.JSONDecodeError):
        return {}
    return dict(sources[0].get("load", {})) if sources else {}


def _no_spark() -> NoReturn:
    raise AssertionError("such small windows must not need Spark")


def test_target_source_and_mirror_are_equal_after_kills(
    cluster: FeederSource, server: MariaDb, mariadb: MariaDb, target: dict[str, Any]
) -> None:
    # S4-24 R-34
    execute(mariadb, "DROP DATABASE IF EXISTS fed")
    ctx = StageContext(build_replication(cluster, target), "test", _no_spark)
    cluster.feed(describe_feeder(server, "rows-per-second = 150"))
    pump, feeder = cluster.parts[1], cluster.parts[-1]
    for number, killed in enumerate((pump, feeder, pump), 1):
        # Windows carry what was read, and the load goes on.
        wait_until(lambda at=number * _ROWS // 5: run_and_count(ctx, mariadb) >= at, seconds=_WAIT_S)  # type: ignore[misc]
        assert read_load(cluster).get("state") != "done"
        killed.kill9()
        with server.connect() as link:
            mixed_transactions(link, "fed", number, 20)
        killed.start()
    wait_until(lambda: read_load(cluster).get("state") == "done", seconds=_WAIT_S)
    with server.connect() as link:
        mixed_transactions(link, "fed", 9, 20)
    wait_until(lambda: run_and_compare(ctx, server, mariadb), seconds=_WAIT_S)
    require_equal_mirrors(ctx, server)


def test_a_table_that_is_loaded_later_is_equal_after_kills_of_the_feeder(
    cluster: FeederSource, server: MariaDb, mariadb: MariaDb, target: dict[str, Any]
) -> None:
    # S4-24 R-34
    execute(mariadb, "DROP DATABASE IF EXISTS fed")
    ctx = StageContext(build_replication(cluster, target), "test", _no_spark)
    cluster.feed(describe_feeder(server, "rows-per-second = 1000000"))
    feeder = cluster.parts[-1]
    wait_until(lambda: read_load(cluster).get("state") == "done", seconds=_WAIT_S)
    wait_until(lambda: run_and_compare(ctx, server, mariadb), seconds=_WAIT_S)
    feeder.kill9()
    settings = cluster.folder / "feeder.toml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(text.replace("rows-per-second = 1000000", "rows-per-second = 150"), encoding="utf-8")
    words = ["feeder", "load-table", "--config", str(settings), "--source", "s1", "--table", "fed.t"]
    assert run(words) == 0
    feeder.start()
    for number in range(1, 4):
        wait_until(lambda at=number: run_and_read(ctx, cluster) >= at * _ROWS // 5, seconds=_WAIT_S)  # type: ignore[misc]
        change_rows(server, number)
        assert read_load(cluster)["state"] != "done"
        feeder.kill9()
        change_rows(server, 10 + number)
        feeder.start()
    wait_until(lambda: read_load(cluster).get("state") == "done", seconds=_WAIT_S)
    change_rows(server, 9)
    wait_until(lambda: run_and_compare(ctx, server, mariadb), seconds=_WAIT_S)
    require_equal_mirrors(ctx, server)


def describe_feeder(server: MariaDb, pace: str) -> str:
    return (
        f'[tracker]\nhost = "{server.host}"\nport = {server.port}\n[[source]]\nname = "s1"\nhost = "{server.host}"\n'
        f'port = {server.port}\nignore-tables = ["mysql.*"]\n'
        f'snapshot = {{ threads = 2, chunk-rows = 50, form = "columns", {pace} }}\n'
    )


def change_rows(server: MariaDb, number: int) -> None:
    """Change, delete and insert rows of all ranges, without moving keys: that would begin the load again."""
    execute(
        server,
        f"UPDATE fed.t SET v = v + 1 WHERE id % 29 = {number}",
        f"DELETE FROM fed.t WHERE id % 97 = {number}",
        f"INSERT INTO fed.t SELECT id + {100_000 * number}, CONCAT(u, '-{number}'), v FROM fed.t WHERE id % 61 = 1",
    )


def require_equal_mirrors(ctx: StageContext, server: MariaDb) -> None:
    for table, columns in {"t": ["id", "u", "v"], "log": ["n", "what"]}.items():
        mirror = DeltaTable(LakePaths.of(ctx.replication).locate_mirror("fed", table)).to_pyarrow_table(columns=columns)
        assert Counter(tuple(row.values()) for row in mirror.to_pylist()) == Counter(
            rows(server, f"SELECT {', '.join(columns)} FROM fed.{table}")
        )


def run_and_read(ctx: StageContext, cluster: FeederSource) -> int:
    """Run the next window; the rows that the load has read then."""
    with suppress(SourceUnavailable):
        run_window(ctx)
    load = read_load(cluster)
    return int(load.get("by_table", {}).get("fed.t", {}).get("rows", 0)) if load.get("state") != "done" else 0


def build_replication(cluster: FeederSource, target: dict[str, Any]) -> Replication:
    return Replication.model_validate(
        {
            "name": "shop",
            "initial-commit-ts": "0",
            "source": {"pd-urls": [cluster.pd_url], "status-url": cluster.status_url},
            "lake": {"path": str(cluster.folder / "lake")},
            "target": target,
            "mirror": {"enabled": True},
        }
    )


def run_and_count(ctx: StageContext, target: MariaDb) -> int:
    """Run the next window, unless a process that was killed does not answer yet; the rows of the target then."""
    with suppress(SourceUnavailable):
        run_window(ctx)
    return len(contents(target, "fed").get("t", [])) if "fed" in target.list_databases() else 0


def run_and_compare(ctx: StageContext, server: MariaDb, target: MariaDb) -> bool:
    """Run the next window; whether the target is equal then."""
    run_window(ctx)
    return contents(target, "fed") == contents(server, "fed")
