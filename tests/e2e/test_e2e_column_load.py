"""A full load as columns: windows that have only its rows apply them from `mutation`, in any layout, after a death."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from deltalake import DeltaTable
from support.feeding import FedCluster, contents, mixed_transactions
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows

from binlake.lake.paths import LakePaths
from binlake.spark_jobs.finalize import stage as finalize
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.results import Bounds, StageResult
from binlake.spark_jobs.job.runner import run_stage, run_window
from binlake.window.derived import CompactManifest

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]

SMALL = {"max-bytes": 6000}
"""Windows of a few transactions."""


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDb]:
    with mariadb_in_memory(MariaDb.list_source_options()) as made:
        yield made


@pytest.fixture
def cluster(server: MariaDb, mariadb: MariaDb, tmp_path: Path) -> Iterator[FedCluster]:
    """A load of 3,000 rows of a table with two unique keys, and of 3,000 rows without a key, many of them equal."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) SELECT"
    execute(mariadb, "DROP DATABASE IF EXISTS fed")
    execute(
        server,
        "DROP DATABASE IF EXISTS fed",
        "CREATE DATABASE fed CHARACTER SET utf8mb4",
        "CREATE TABLE fed.t (id INT PRIMARY KEY, u VARCHAR(30) UNIQUE, v DOUBLE)",
        "CREATE TABLE fed.log (n INT, what VARCHAR(30))",
        "SET SESSION max_recursive_iterations = 20000",
        f"INSERT INTO fed.t {numbers} i, CONCAT('u', i), i / 7 FROM n",
        f"INSERT INTO fed.log {numbers} i % 5, IF(i % 9, 'base', NULL) FROM n",
    )
    snapshot = {"chunk-rows": 150, "form": "columns"}
    source = {"name": "shard-1", "host": server.host, "port": server.port, "snapshot": snapshot}
    with FedCluster(tmp_path, server, [source]) as made:
        made.start_feeder()
        yield made


def _no_spark() -> NoReturn:
    raise AssertionError("such small windows must not need Spark")


def run_all(cluster: FedCluster, **sections: Any) -> StageContext:
    """Run windows until everything published so far is applied."""
    ctx = StageContext(cluster.replication(**sections), "test", _no_spark)
    until = cluster.settle()
    while (ctx.windows.find_landed_ts() or 0) < until:
        run_window(ctx)
    return ctx


def list_base_windows(ctx: StageContext) -> list[Bounds]:
    """The windows of which compact left the rows in `mutation`; `change` has none of them."""
    events = ctx.windows.read_events(stage="compact", state="done", sealed=True)
    manifests = [CompactManifest.from_json(event["manifest"]) for event in events]
    found = [Bounds(one.lo, one.hi) for one in manifests if one.is_base]
    change = DeltaTable(ctx.paths.locate_table("change")).to_pyarrow_table(columns=["window"])
    assert not set(change["window"].to_pylist()) & {bounds.window for bounds in found}
    return found


def require_equal(ctx: StageContext, server: MariaDb, target: MariaDb) -> None:
    """Target, source and mirrors have the same rows."""
    assert contents(target, "fed") == contents(server, "fed")
    for table, columns in {"t": ["id", "u", "v"], "log": ["n", "what"]}.items():
        mirror = DeltaTable(LakePaths.of(ctx.replication).locate_mirror("fed", table)).to_pyarrow_table(columns=columns)
        found = Counter(tuple(row.values()) for row in mirror.to_pylist())
        assert found == Counter(rows(server, f"SELECT {', '.join(columns)} FROM fed.{table}"))


@pytest.mark.parametrize("mode", ["atomic", "parallel"])
def test_a_load_and_the_changes_after_it_are_equal(
    cluster: FedCluster, server: MariaDb, mariadb: MariaDb, target: dict[str, Any], mode: str
) -> None:
    # S4-02 R-34
    with server.connect() as link:
        mixed_transactions(link, "fed", 1, 30)
    cluster.follow(server)
    ctx = run_all(cluster, target={**target, "mode": mode}, mirror={"enabled": True}, window=SMALL)
    assert len(list_base_windows(ctx)) >= 3
    require_equal(ctx, server, mariadb)


def test_tables_that_may_be_shared_or_differ_take_the_usual_way(
    cluster: FedCluster, mariadb: MariaDb, target: dict[str, Any]
) -> None:
    routes = [{"schema-pattern": "fed", "target-schema": "elsewhere"}]
    execute(mariadb, "DROP DATABASE IF EXISTS elsewhere")
    ctx = run_all(cluster, target=target, window=SMALL, routes=routes)
    assert list_base_windows(ctx) == []
    assert rows(mariadb, "SELECT COUNT(*) FROM elsewhere.t") == [(3000,)]
    execute(mariadb, "DROP DATABASE elsewhere")


def test_mode_ordered_takes_its_own_way(
    cluster: FedCluster, server: MariaDb, mariadb: MariaDb, target: dict[str, Any]
) -> None:
    ctx = run_all(cluster, target={**target, "mode": "ordered"}, window=SMALL)
    assert list_base_windows(ctx) == []
    assert contents(mariadb, "fed") == contents(server, "fed")


class _Dies(Exception):
    pass


def test_stages_as_their_own_tasks_render_the_same_and_continue_an_open_window(
    cluster: FedCluster,
    server: MariaDb,
    mariadb: MariaDb,
    target: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # R-16 R-62: an open window is derived again by another process, and must come out as sealed
    sections = {"target": {**target, "mode": "parallel"}, "mirror": {"enabled": True}, "window": SMALL}
    until, deaths = cluster.settle(), 0
    while True:
        ctx = StageContext(cluster.replication(**sections), "test", _no_spark)
        planned = run_stage("plan", ctx)
        if planned.hi <= (ctx.windows.find_landed_ts() or 0) or (ctx.windows.find_landed_ts() or 0) >= until:
            break
        landed = run_stage("land", ctx, Bounds(planned.lo, planned.hi))
        bounds = Bounds(landed.lo, landed.hi)
        merged = run_stage("merge", ctx, bounds, given=landed.derived)
        # In one process, each stage is given what the one before it derived.
        together = _derive(ctx, bounds, given=merged.derived)
        [first] = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
        # Each in a process of its own.
        apart = _derive(StageContext(cluster.replication(**sections), "again", _no_spark), bounds)
        manifests = StageContext(cluster.replication(**sections), "x", _no_spark).windows
        assert {one.statement for one in manifests.read_apply_manifests(bounds.lo, bounds.hi)} == {first.statement}
        assert [one.rows for one in together] == [one.rows for one in apart]
        with monkeypatch.context() as patch:
            patch.setattr("binlake.target.apply.batches.BatchApplier.apply", _die)
            with suppress(_Dies):
                finalize.run(StageContext(cluster.replication(**sections), "dies", _no_spark), bounds)
                deaths -= 1
            deaths += 1
        fresh = StageContext(cluster.replication(**sections), "continues", _no_spark)
        _derive(fresh, bounds)
        assert run_stage("finalize", fresh, bounds).state in ("done", "already")
        run_stage("mirror", fresh, bounds)
    ctx = StageContext(cluster.replication(**sections), "test", _no_spark)
    assert deaths >= 3
    assert len(set(list_base_windows(ctx))) >= 3
    require_equal(ctx, server, mariadb)


def _die(*_: object) -> NoReturn:
    raise _Dies


def _derive(ctx: StageContext, bounds: Bounds, given: Any = None) -> list[StageResult]:
    compacted = run_stage("compact", ctx, bounds, given=given)
    passed = compacted.derived if given is not None else None
    return [compacted, run_stage("convert", ctx, bounds, given=passed)]
