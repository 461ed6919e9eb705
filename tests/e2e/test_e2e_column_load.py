"""A full load as columns: target, source and mirrors are equal, and neither target nor mirrors look for keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
from deltalake import DeltaTable
from support.feeding import FedCluster, build_three_tables, contents, mixed_transactions
from support.killer import Killer
from support.mariadb import MariaDb, execute, mariadb_in_memory, rows
from test_e2e_window import toml

from binlake.lake.paths import LakePaths
from binlake.repair.rangerepair import BackfillProgress
from binlake.spark_jobs.commands.backfill import rebuild
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.shared.baserows import BaseBlock
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
    """A load of two tables with keys, and of one without a key that has equal rows; 600 rows each."""
    build_three_tables(server, mariadb, rows=600)
    snapshot = {"chunk-rows": 60, "form": "columns"}
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


def count_commits(ctx: StageContext, table: str, operation: str) -> int:
    """How often a mirror got rows by `operation`."""
    history = DeltaTable(LakePaths.of(ctx.replication).locate_mirror("fed", table)).history()
    return sum(one["operation"] == operation for one in history)


def read_manifests(ctx: StageContext) -> list[CompactManifest]:
    """What compact sealed for each window that has rows."""
    found = [event["manifest"] for event in ctx.windows.read_events(stage="compact", state="done", sealed=True)]
    return [one for one in map(CompactManifest.from_json, found) if one.rows]


def require_equal(ctx: StageContext, server: MariaDb, target: MariaDb) -> None:
    """Target, source and mirrors have the same rows."""
    assert contents(target, "fed") == contents(server, "fed")
    for table, columns in {"t": ["id", "u", "v"], "other": ["id", "v"], "log": ["n", "what"]}.items():
        mirror = DeltaTable(LakePaths.of(ctx.replication).locate_mirror("fed", table)).to_pyarrow_table(columns=columns)
        found = Counter(tuple(row.values()) for row in mirror.to_pylist())
        assert found == Counter(rows(server, f"SELECT {', '.join(columns)} FROM fed.{table}"))


@pytest.mark.parametrize("mode", ["atomic", pytest.param("parallel", marks=pytest.mark.soak)])
def test_a_load_and_the_changes_after_it_are_equal(
    cluster: FedCluster, server: MariaDb, mariadb: MariaDb, target: dict[str, Any], mode: str
) -> None:
    # S4-02 R-34
    sections = {"target": {**target, "mode": mode}, "mirror": {"enabled": True}, "window": SMALL}
    ctx = run_all(cluster, **sections)
    require_equal(ctx, server, mariadb)
    # The rows without a key are not their own net changes: some are equal.
    assert {one.base for one in read_manifests(ctx)} == {False, True}
    # One version is the empty mirror; the rows came in several windows.
    assert count_commits(ctx, "t", "MERGE") == count_commits(ctx, "other", "MERGE") == 0
    assert count_commits(ctx, "other", "WRITE") >= 3
    assert count_commits(ctx, "log", "MERGE") > 0
    with server.connect() as link:
        mixed_transactions(link, "fed", 2, 30)
    execute(server, "UPDATE fed.other SET v = v + 1 WHERE id % 3 = 0", "DELETE FROM fed.other WHERE id % 7 = 0")
    cluster.follow(server)
    require_equal(run_all(cluster, **sections), server, mariadb)
    assert count_commits(ctx, "other", "MERGE") > 0
    assert not read_manifests(ctx)[-1].base


def test_a_rebuild_of_a_window_of_blocks_finds_the_sealed_rows(
    cluster: FedCluster, target: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    #
    ctx = run_all(cluster, target=target, window=SMALL)
    first = next(one for one in read_manifests(ctx) if one.base)

    def run_rebuild(name: str) -> tuple[str, list[str]]:
        [result] = rebuild(ctx, BackfillProgress(ctx.windows, name, first.lo, first.hi), through="convert")
        return result.state, result.detail["changed"]

    assert run_rebuild("first") == run_rebuild("again") == ("same", [])
    monkeypatch.setattr(BaseBlock, "hash", 7)
    assert run_rebuild("other") == ("changed", ["change", "statement"])


def derive(cluster: FedCluster, **sections: Any) -> tuple[StageContext, Bounds, list[StageResult]]:
    """Land the next window and derive its statements, each stage with what the one before it hands on."""
    ctx = StageContext(cluster.replication(**sections), "test", _no_spark)
    results = [run_stage("plan", ctx)]
    for stage in ("land", "merge", "compact", "convert"):
        last = results[-1]
        results.append(run_stage(stage, ctx, Bounds(last.lo, last.hi), given=last.derived))
    return ctx, Bounds(results[-1].lo, results[-1].hi), results


PLACES = [("opened", 1), ("batch", 2), ("before_commit", 2), ("after_commit", 2)]
"""Where finalize is killed, each time in another window."""


@pytest.mark.parametrize("mode", ["atomic", pytest.param("parallel", marks=pytest.mark.soak)])
def test_windows_of_a_load_are_finished_by_other_processes(
    cluster: FedCluster, server: MariaDb, mariadb: MariaDb, target: dict[str, Any], mode: str, tmp_path: Path
) -> None:
    # S4-02 R-16 R-62: nothing of such a window is in the lake but `mutation` and digests
    sections = {"target": {**target, "mode": mode, "txn-batch": 40}, "mirror": {"enabled": True}, "window": SMALL}
    cluster.settle()
    config = tmp_path / "killed.toml"
    for number, place in enumerate(PLACES):
        while True:
            ctx, bounds, _ = derive(cluster, **sections)
            if read_manifests(ctx)[-1].base:
                break
            run_stage("finalize", ctx, bounds)
        values = ctx.replication.model_dump(mode="json", by_alias=True, exclude_none=True)
        config.write_text(toml(values), encoding="utf-8")
        with Killer("finalize_killer", config, bounds.lo, bounds.hi) as killer:
            killer.kill_at(*place)
        again = replace(ctx, run_id="again")
        if number % 2:
            assert run_stage("convert", again, bounds).state == "already"
        # In mode atomic, the second transaction applies the whole window.
        assert run_stage("finalize", again, bounds).state in ("done", "already")
    require_equal(run_all(cluster, **sections), server, mariadb)
