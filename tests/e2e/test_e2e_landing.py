"""plan, land and merge with live pumps: complete, once, immutable, in order, each row decoded with its schema."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq
import pytest
import structlog
from deltalake import DeltaTable
from support.live import LiveSource
from support.workload import integer, text

from binlake.audit.audit import Audit
from binlake.errors import CheckpointConflict, ImmutableWindow, IncompleteWindow, LostRange
from binlake.spark_jobs.job.context import Bounds, StageContext, StageResult
from binlake.spark_jobs.job.lake import ensure_tables
from binlake.spark_jobs.job.results import CUT
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.land.ddljobs import WindowJobs
from binlake.spark_jobs.stages import land as land_stage
from binlake.window.manifest import WindowManifest

pytestmark = pytest.mark.spark


def land(ctx: StageContext) -> StageResult:
    plan = run_stage("plan", ctx)
    assert plan.state == "ready", plan
    return run_stage("land", ctx, Bounds(plan.lo, plan.hi))


def window(ctx: StageContext) -> Bounds:
    landed = land(ctx)
    bounds = Bounds(landed.lo, landed.hi)
    run_stage("merge", ctx, bounds)
    return bounds


def rows(ctx: StageContext, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(ctx.paths.locate_table(table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["commit_ts"], row.get("seq", 0)))


def count_ordered_files(ctx: StageContext, table: str, place: list[str]) -> int:
    """The number of files of the table; asserts that rows are ordered by `place` in each, so that readers can skip
    groups.
    """
    files = DeltaTable(ctx.paths.locate_table(table)).file_uris()
    for file in files:
        stored = pq.read_table(unquote(file), columns=place, partitioning=None)
        assert stored.equals(stored.sort_by([(name, "ascending") for name in place]))
    return len(files)


def bank(source: LiveSource) -> None:
    source.workload.create_database("d")
    source.workload.create_table("d", "t", [integer("id"), text("name")], ["id"])


def test_articles_transaction_becomes_six_mutations_of_one_commit(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # S0-15 S0-18 S0-19 S0-21 S1-01
    bank(source)
    txn = source.workload.begin()
    txn.insert("d", "t", id=1, name="a").insert("d", "t", id=2, name="b")
    txn.update("d", "t", {"id": 1, "name": "a"}, name="c").update("d", "t", {"id": 2, "name": "b"}, name="d")
    txn.delete("d", "t", id=2, name="d").insert("d", "t", id=2, name="c")
    commit_ts = txn.commit()
    source.settle()
    ctx = context()
    window(ctx)
    found = rows(ctx, "mutation")
    assert [(m["commit_ts"], m["seq"], m["op"]) for m in found] == [
        (commit_ts, n, op) for n, op in enumerate(("insert", "insert", "update", "update", "delete", "insert"))
    ]
    assert dict(found[2]["before"])["name"] == "a"
    assert dict(found[2]["after"])["name"] == "c"
    binlog = rows(ctx, "binlog")
    assert [row["kind"] for row in binlog] == ["ddl", "ddl", "dml"]
    jobs = {row["job_id"] for row in DeltaTable(ctx.paths.locate_table("schema_change")).to_pyarrow_table().to_pylist()}
    assert jobs == {row["job_id"] for row in binlog if row["kind"] == "ddl"}


def test_windows_have_no_gaps_and_nothing_is_landed_twice(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # S0-02 S0-12 S0-17 S0-63 C-06
    bank(source)
    ctx, expected = context(), []
    for number in range(3):
        open_first = source.workload.begin().insert("d", "t", id=100 + number, name="late")
        prewritten = open_first.prewrite()
        expected.append(source.workload.begin().insert("d", "t", id=number, name="x").commit())
        source.workload.begin().insert("d", "t", id=50 + number, name="gone").rollback()
        expected.append(open_first.commit(prewritten))
        source.settle()
        window(ctx)
    assert [m["commit_ts"] for m in rows(ctx, "mutation")] == sorted(expected)
    for table, last in (("binlog", "chunk"), ("mutation", "seq")):
        assert count_ordered_files(ctx, table, ["commit_ts", "start_ts", last]) >= 3
    landed = ctx.windows.list_landed()
    assert len(landed) == 3
    assert all(before[1] == after[0] for before, after in itertools.pairwise(landed))


def test_landed_window_is_immutable_when_the_pumps_are_gone(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # R-03 R-24
    bank(source)
    source.workload.begin().insert("d", "t", id=1, name="x").commit()
    source.settle()
    ctx = context()
    first = window(ctx)
    before = {table: rows(ctx, table) for table in ("binlog", "mutation", "ddl")}
    for pump in list(source.pumps):
        source.stop_pump(pump)
        shutil.rmtree(source.folder / pump)
    # PD is unreachable too, and the sealing run died right afterwards: a landed window needs no source.
    gone = ctx.replication.source.model_copy(update={"pd_urls": ("http://127.0.0.1:1",), "timeout_s": 0.5})
    ctx = replace(ctx, replication=ctx.replication.model_copy(update={"source": gone}))
    for _ in range(2):
        assert run_stage("land", ctx, first).state == "already"
        run_stage("merge", ctx, first)
    assert {table: rows(ctx, table) for table in before} == before


def test_window_whose_rows_changed_after_landing_is_refused(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:
    bank(source)
    source.settle()
    ctx = context()
    landed = land(ctx)
    DeltaTable(ctx.paths.locate_table("binlog")).update(updates={"payload": "X'00'"}, predicate="kind = 'ddl'")
    with pytest.raises(ImmutableWindow, match="landed rows differ from the sealed ones"):
        run_stage("land", ctx, Bounds(landed.lo, landed.hi))


def test_stopped_pump_blocks_and_is_named_until_it_is_back(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # S0-56 R-05 R-35
    bank(source)
    source.settle()
    ctx = context()
    window(ctx)
    source.stop_pump("pump2")
    source.reconnect()
    source.workload.begin().insert("d", "t", id=1, name="x").commit()
    plan = run_stage("plan", ctx)
    assert (plan.state, plan.blocked_by) == ("blocked", "pump2")
    assert "unreachable" in plan.detail["reason"]
    assert ctx.windows.read_events()[-1]["blocked_by"] == "pump2"
    source.start_pump("pump2")
    source.settle()
    assert rows(ctx, "mutation") == []
    window(ctx)
    assert [dict(m["after"])["id"] for m in rows(ctx, "mutation")] == ["1"]


def test_deleted_registry_key_and_wiped_disk_are_detected(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # R-05 R-06
    source.settle()
    ctx = context()
    land(ctx)
    source.stop_pump("pump2")
    source._etcd.delete(b"/tidb-binlog/v1/pumps/pump2")
    assert "pump2" in run_stage("plan", ctx).detail["reason"]
    assert "vanished" in run_stage("plan", ctx).detail["reason"]
    source.start_pump("pump2", folder="another-disk")
    source.settle()
    assert "has another data directory" in run_stage("plan", ctx).detail["reason"]


def test_closing_pumps_learn_the_lakes_position(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:
    source.settle()
    ctx = context()
    landed = land(ctx)
    (consumer,) = source.registry.list_drainers()
    assert (consumer.node_id, consumer.state, consumer.max_commit_ts) == ("binlake-live", "paused", landed.hi)
    # A pump answers binlogctl for the replication, which has no process.
    assert consumer.host == min(pump.host for pump in source.registry.list_pumps())
    # PD was unreachable right after the seal: plan tells the pump, because nothing lands while a closing pump blocks.
    source.registry.put_drainer(replace(consumer, max_commit_ts=landed.lo))
    run_stage("plan", ctx)
    assert source.registry.list_drainers() == [consumer]
    # Moved ahead by another hand: a closing pump must not go offline with binlogs that have not landed.
    source.registry.put_drainer(replace(consumer, max_commit_ts=landed.hi + 1))
    run_stage("plan", ctx)
    assert source.registry.list_drainers() == [consumer]


def test_hi_is_lowered_to_just_before_a_ddl_whose_job_is_not_in_the_history(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:
    bank(source)
    source.workload.begin().insert("d", "t", id=1, name="x").commit()
    added = source.workload.add_column("d", "t", integer("c", default="7"))
    hidden = source.workload.jobs.pop()
    source.workload.begin().insert("d", "t", id=2, name="y", c=8).commit()
    source.settle()
    ctx = context()
    first = window(ctx)
    assert first.hi == added - 1
    with pytest.raises(IncompleteWindow, match=f"DDL job {hidden['id']}"):
        land(ctx)
    source.workload.jobs.append(hidden)
    window(ctx)
    found = [dict(m["after"]) for m in rows(ctx, "mutation")]
    assert found == [{"id": "1", "name": "x"}, {"id": "2", "name": "y", "c": "8"}]


def test_window_with_ddl_inside_decodes_each_row_with_the_schema_at_its_position(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # S0-60 S0-64 R-19
    bank(source)
    source.workload.begin().insert("d", "t", id=1, name="x").commit()
    source.workload.add_column("d", "t", integer("c", default="7"))
    source.workload.begin().insert("d", "t", id=2, name="y", c=8).commit()
    source.settle()
    ctx = context()
    bounds = window(ctx)
    assert [sorted(dict(m["after"])) for m in rows(ctx, "mutation")] == [["id", "name"], ["c", "id", "name"]]
    ddls = [d for d in rows(ctx, "ddl") if d["decision"] == "apply"]
    assert [(d["segment"], d["window"]) for d in ddls] == [(n, bounds.window) for n in (1, 2, 3)]
    inserted = [m["commit_ts"] for m in rows(ctx, "mutation")]
    assert inserted[0] < ddls[2]["commit_ts"] < inserted[1]
    assert json.loads(ddls[2]["after"])["tables"][0]["info"]["cols"][-1]["name"]["O"] == "c"


def test_initial_commit_ts_is_exclusive_and_minus_one_means_now(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # S0-62
    bank(source)
    first = source.workload.begin().insert("d", "t", id=1, name="x").commit()
    second = source.workload.begin().insert("d", "t", id=2, name="y").commit()
    source.settle()
    ctx = context(**{"initial-commit-ts": str(first)})
    window(ctx)
    assert [m["commit_ts"] for m in rows(ctx, "mutation")] == [second]
    now = context(name="other", **{"initial-commit-ts": "-1"})
    before = source.pd.fetch_ts()
    run_stage("plan", now)
    start = now.windows.start_ts()
    assert start is not None
    assert start > before
    run_stage("plan", now)
    assert now.windows.start_ts() == start


def test_landed_window_can_be_requested_again_but_no_other_range_below(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # C-04
    source.settle()
    ctx = context()
    landed = land(ctx)
    again = run_stage("plan", context(stop_ts=landed.hi), start_ts=landed.lo)
    assert (again.state, again.lo, again.hi) == ("ready", landed.lo, landed.hi)
    with pytest.raises(CheckpointConflict, match="no landed window"):
        run_stage("plan", context(stop_ts=landed.hi - 1), start_ts=landed.lo)
    with pytest.raises(CheckpointConflict, match="would leave a gap"):
        run_stage("plan", ctx, start_ts=landed.hi + 1)


def test_ignored_transactions_leave_no_row_and_are_reported(
    source: LiveSource, context: Callable[..., StageContext]
) -> None:  # U-12
    bank(source)
    skipped = source.workload.begin().insert("d", "t", id=1, name="x").commit()
    kept = source.workload.begin().insert("d", "t", id=2, name="y").commit()
    source.settle()
    ctx = context(filter={"ignore-txn-commit-ts": [str(skipped)]})
    window(ctx)
    assert [m["commit_ts"] for m in rows(ctx, "mutation")] == [kept]
    merged = ctx.windows.read_events()[-1]
    assert json.loads(merged["detail"])["skipped_commit_ts"] == [str(skipped)]
    run_stage("merge", ctx, Bounds(merged["lo"], merged["hi"]))
    # U-12: reported once, with the run's id, and an audit of the transaction shows it.
    (told,) = ctx.windows.read_events(stage="skip")
    assert (told["lo"], told["hi"], told["run_id"]) == (skipped - 1, skipped, ctx.run_id)
    found, other = (Audit(ctx.paths, ctx.rules).find_transaction(ts) for ts in (skipped, kept))
    assert found is not None
    assert other is not None
    assert found.remark == "left out by filter.ignore-txn-commit-ts"
    assert ("skip" in {p.stage for p in found.passages}, other.remark) == (True, "")


@pytest.mark.parametrize(
    ("driver_bytes", "rows_written"), [(64 << 20, 20), (300, 6), pytest.param(0, 9, marks=pytest.mark.soak)]
)
def test_window_ends_at_its_size_limit_and_the_next_continues_after_it(
    source: LiveSource, context: Callable[..., StageContext], driver_bytes: int, rows_written: int
) -> None:  # S0-02 R-48
    # By the driver; by Spark after what fits into the driver's memory; by Spark alone, which takes seconds per window.
    bank(source)
    commits = [source.workload.begin().insert("d", "t", id=n, name="x" * 100).commit() for n in range(rows_written)]
    source.settle()
    ctx = replace(context(window={"max-bytes": 900, "driver-bytes": driver_bytes}), large_on_spark=True)
    plan = run_stage("plan", ctx)
    found = [run_stage("land", ctx, Bounds(plan.lo, plan.hi))]
    while found[-1].detail.get(CUT):
        assert found[-1].hi < plan.hi
        found.append(run_stage("land", ctx, Bounds(found[-1].hi, plan.hi)))
    assert len(found) > rows_written // 6
    assert [one.lo for one in found] == [plan.lo, *(one.hi for one in found[:-1])]
    assert found[-1].hi == plan.hi
    assert [row["commit_ts"] for row in rows(ctx, "binlog") if row["kind"] == "dml"] == commits
    manifests = ctx.windows.read_manifests(plan.lo, plan.hi)
    assert [manifest.bytes <= 1500 for manifest in manifests] == [True] * len(found)
    assert all(proof.proof_ts >= one.hi for one in manifests for proof in one.members)
    assert run_stage("land", ctx, Bounds(found[0].lo, found[0].hi)).state == "already"
    assert run_stage("merge", ctx, Bounds(found[-1].lo, found[-1].hi)).state == "done"


def test_window_extends_beyond_its_size_limit_to_include_a_ddl_that_its_rows_need(
    source: LiveSource, context: Callable[..., StageContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    bank(source)
    for number in range(10):
        source.workload.begin().insert("d", "t", id=number, name="x" * 100).commit()
    source.settle()
    asked, fetched = list[int](), land_stage.fetch_jobs

    def fetch_jobs(ctx: StageContext, tidb: Any, pulled: Any, parts: Any, bounds: Bounds) -> WindowJobs:
        asked.append(bounds.hi)
        if len(asked) == 1:
            raise IncompleteWindow("rows were written with the schema of a DDL whose binlog is not there yet")
        return fetched(ctx, tidb, pulled, parts, bounds)

    monkeypatch.setattr(land_stage, "fetch_jobs", fetch_jobs)
    ctx = context(window={"max-bytes": 500})
    plan = run_stage("plan", ctx)
    landed = run_stage("land", ctx, Bounds(plan.lo, plan.hi))
    assert asked[0] < asked[1] == landed.hi == plan.hi
    assert CUT not in landed.detail


def test_window_sealed_by_an_older_version_is_not_verified(context: Callable[..., StageContext]) -> None:
    old = WindowManifest("demo", 1, 5, 9, "", (), 3, 0, 0, 100, 1, "0" * 64)
    ctx = context()
    ensure_tables(ctx.paths)
    with structlog.testing.capture_logs() as logs:
        land_stage._verify(ctx, old)
    assert [entry["log_level"] for entry in logs] == ["warning"]
    with pytest.raises(ImmutableWindow, match="landed rows differ from the sealed ones"):
        land_stage._verify(ctx, replace(old, digest="2:" + old.digest))


@pytest.mark.parametrize("table", ["binlog", "schema_change"])
def test_nothing_is_landed_behind_a_lost_commit(
    source: LiveSource, context: Callable[..., StageContext], table: str
) -> None:
    bank(source)
    source.workload.begin().insert("d", "t", id=1, name="x").commit()
    source.settle()
    ctx = context()
    window(ctx)
    path = ctx.paths.locate_table(table)
    file = Path(path) / "_delta_log" / f"{DeltaTable(path).version():020}.json"
    content = file.read_bytes()
    source.workload.begin().insert("d", "t", id=2, name="y").commit()
    source.settle()
    for damage in (Path.unlink, Path.touch):
        damage(file)
        with pytest.raises(LostRange, match=f"`{table}`"):
            land(ctx)
    file.write_bytes(content)
    window(ctx)
    assert [dict(row["after"])["name"] for row in rows(ctx, "mutation")] == ["x", "y"]
