"""compact, convert and finalize on real servers: exact after each window, repeatable, and pinned when started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from lakehouse import rows_of
from pyspark.sql import SparkSession
from sqlsink import Sink
from support.mariadb import MariaDb, execute, rows

from binlake.errors import CheckpointConflict, ConfigError, Drift, ImmutableWindow, Permanent
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.job.stagerun import run_stage
from binlake.spark_jobs.shared.sinks import read_sql_window, require_merged
from binlake.spark_jobs.shared.statements import read_statements
from binlake.spark_jobs.stages import convert, finalize, merge
from binlake.target import apply_window, read_checkpoint_ts

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]


def test_target_equals_the_source_after_each_window_and_reruns_change_nothing(
    spark: SparkSession, server: MariaDb, tmp_path: Path
) -> None:
    # S4-36 (the checkpoint), R-01, R-16, R-17; six DDL on four tables in the second window
    sink = Sink(spark, tmp_path, server)
    for bounds in sink.windows:
        sink.lakehouse.land(bounds.lo, bounds.hi)
        states = [result.state for result in sink.apply(bounds)]
        assert states == ["done", "done", "done"]
        assert sink.target() == sink.model(bounds.hi)
        assert read_checkpoint_ts(sink.ctx.replication, 7) == bounds.hi

    before = _list_derived(sink)
    for bounds in (sink.windows[1], sink.windows[0]):
        assert [result.state for result in sink.apply(bounds)] == ["done", "already", "already"]
    assert _list_derived(sink) == before
    assert sink.target() == sink.model(sink.windows[-1].hi)


def test_parallel_and_auto_give_the_same_tables_and_report_their_mode(
    spark: SparkSession, server: MariaDb, tmp_path: Path
) -> None:
    # S3-01, S4-37, S4-42: the first window in safe mode, the next ones not; a rerun derives the sealed form
    options = {"mode": "parallel", "worker-count": 3, "txn-batch": 2, "safe-mode": "auto"}
    sink = Sink(spark, tmp_path, server, **options)
    stop, bounds = sink.windows[0], Bounds(0, sink.windows[-1].hi)
    sink.lakehouse.land(0, bounds.hi)
    sink.lakehouse.config["window"] = {"stop-at": [str(stop.hi)]}
    sink.ctx = sink.lakehouse.context()
    first, second = sink.apply(bounds)[-1], sink.apply(bounds)[-1]
    assert (first.hi, second.hi) == (stop.hi, bounds.hi)
    assert set(first.detail["modes"]) == set(second.detail["modes"]) == {"parallel"}
    assert sink.target() == sink.model(bounds.hi)
    found = rows_of(sink.ctx.paths.locate_table("statement"))
    kinds = {window: {r["kind"] for r in found if r["window"] == window} for window in {r["window"] for r in found}}
    assert "upsert" not in kinds[stop.window]
    assert "upsert" in kinds[Bounds(stop.hi, bounds.hi).window]
    before = _list_derived(sink)
    convert.run(sink.ctx, stop)
    assert _list_derived(sink) == before


def _list_derived(sink: Sink) -> list[Any]:
    found = []
    for table in ("change", "statement"):
        data = rows_of(sink.ctx.paths.locate_table(table))
        found.append(sorted(({k: str(v) for k, v in row.items()} for row in data), key=str))
    return found


def test_sink_that_is_behind_takes_several_landed_windows_as_one(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path
) -> None:
    # DESIGN 2: a sink that is behind may take several landed windows as one; their DDL are numbered consecutively.
    sink = Sink(spark, tmp_path, mariadb)
    for bounds in sink.windows:
        sink.lakehouse.land(bounds.lo, bounds.hi)
    results = sink.apply(sink.windows[-1])
    assert {(r.lo, r.hi) for r in results} == {(0, sink.windows[-1].hi)}
    assert sink.target() == sink.model(sink.windows[-1].hi)
    assert results[0].detail["segments"] == 10
    # A rerun for a landed window inside derives the same window again; the target is unchanged.
    assert {(r.lo, r.hi) for r in sink.derive(sink.windows[0])} == {(0, sink.windows[-1].hi)}


def test_windows_of_the_sink_end_at_stop_points(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    sink = Sink(spark, tmp_path, mariadb)
    stop = sink.history.states[30][0]
    sink.lakehouse.config["window"] = {"stop-at": [str(stop)]}
    sink.ctx = sink.lakehouse.context()
    first = sink.windows[0]
    sink.lakehouse.land(first.lo, first.hi)
    assert [r.hi for r in sink.apply(first)] == [stop] * 3
    assert sink.target() == sink.model(stop)
    assert [r.hi for r in sink.apply(first)] == [first.hi] * 3
    assert sink.target() == sink.model(first.hi)


def test_statement_changed_in_the_lake_is_not_executed(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    # S3-08, R-62
    sink = Sink(spark, tmp_path, mariadb)
    first = sink.windows[0]
    sink.lakehouse.land(first.lo, first.hi)
    sink.derive(first)
    path = sink.ctx.paths.locate_table("statement")
    spark.sql(f"UPDATE delta.`{path}` SET sql = transform(sql, s -> replace(s, 'item 3', 'item X')) WHERE phase = 2")
    # A separate task reads the statements from the lake; the process that rendered them still has the sealed ones.
    with pytest.raises(ImmutableWindow, match="differs from the one that was derived"):
        finalize.run(sink.lakehouse.context("another task"), first)
    assert read_checkpoint_ts(sink.ctx.replication, 7) in (None, sink.history.states[1][0])


def test_target_with_other_definitions_is_refused(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    #
    sink = Sink(spark, tmp_path, mariadb)
    first, second = sink.windows[:2]
    sink.lakehouse.land(first.lo, first.hi)
    sink.apply(first)
    sink.lakehouse.land(second.lo, second.hi)
    execute(mariadb, "ALTER TABLE shop.item ADD UNIQUE KEY more (name)")
    with pytest.raises(Drift, match="item"):
        sink.derive(second)
    assert read_checkpoint_ts(sink.ctx.replication, 7) == first.hi


def test_window_without_a_manifest_is_not_applied(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    sink = Sink(spark, tmp_path, mariadb)
    first = sink.windows[0]
    sink.lakehouse.land(first.lo, first.hi)
    with pytest.raises(CheckpointConflict, match="no sealed manifest"):
        finalize.run(sink.ctx, first)


def test_sealed_but_unopened_window_can_be_derived_differently(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path
) -> None:
    # another target, or a restore to an earlier time, cuts the window differently; the new derivation replaces
    # the old. S4-46 U-15
    sink = Sink(spark, tmp_path, mariadb)
    first, second = sink.windows[:2]
    for bounds in (first, second):
        sink.lakehouse.land(bounds.lo, bounds.hi)
    assert [(r.lo, r.hi) for r in sink.derive(second)] == [(0, second.hi)] * 2
    assert [(r.lo, r.hi) for r in sink.derive(first)] == [(0, first.hi)] * 2
    assert {row["phase"] for row in _rows_of(sink, "statement", first)} == {0, 2}

    transactions = [str(b.commit_ts) for b in sink.lakehouse.source.binlogs if not b.ddl_query]
    sink.lakehouse.config["filter"] = {"ignore-txn-commit-ts": transactions}
    sink.ctx = sink.lakehouse.context()
    merge.run(sink.ctx, first)
    assert [r.rows for r in sink.derive(first)] == [0, 0]
    assert _rows_of(sink, "change", first) == []
    assert {row["phase"] for row in _rows_of(sink, "statement", first)} == {0}

    created = _rows_of(sink, "ddl", first)[-1]
    _inject(sink, created["commit_ts"])
    _replace(sink, created["commit_ts"])
    merged = merge.run(sink.ctx, first).detail
    assert (merged["ddl_replaced"], merged["ddl_injected"]) == 2 * ([str(created["commit_ts"])],)
    assert ["shop", "own"] in [list(name) for name in sink.derive(first)[0].detail["changed"]]
    before, own = (row for row in _rows_of(sink, "statement", first) if row["kind"] in ("replaced", "injected"))
    assert (before["kind"], before["sql"]) == ("injected", ["USE `shop`", "DROP TABLE IF EXISTS shop.mine"])
    assert (own["kind"], own["sql"]) == ("replaced", ["USE `shop`", "CREATE TABLE own (id INT)"])
    put, now = _rows_of(sink, "ddl", first)[-2:]
    assert (put["decision"], put["query"], put["tables"]) == ("injected", "", ["shop.mine"])
    assert (now["decision"], now["query"], now["after"]) == ("replaced", created["query"], created["after"])
    _replace(sink, created["commit_ts"] + 1)
    with pytest.raises(ConfigError, match="at which no DDL would run"):
        merge.run(sink.ctx, first)


def _replace(sink: Sink, commit_ts: int) -> None:
    sql = "CREATE TABLE own (id INT)"
    sink.lakehouse.config["ddl-replacement"] = [{"commit-ts": str(commit_ts), "sql": sql}]
    sink.ctx = sink.lakehouse.context()


def _inject(sink: Sink, commit_ts: int) -> None:
    sql = "DROP TABLE IF EXISTS shop.mine"
    sink.lakehouse.config["ddl-injection"] = [{"commit-ts": str(commit_ts), "sql": sql, "db": "shop"}]
    sink.ctx = sink.lakehouse.context()


def _rows_of(sink: Sink, table: str, bounds: Bounds) -> list[dict[str, Any]]:
    return [row for row in rows_of(sink.ctx.paths.locate_table(table)) if row["window"] == bounds.window]


def _die(step: str) -> None:
    if step == "opened":
        raise ConnectionAbortedError("power cut")


def test_window_held_open_by_the_target_stays_as_sealed(spark: SparkSession, mariadb: MariaDb, tmp_path: Path) -> None:
    #
    sink = Sink(spark, tmp_path, mariadb)
    first, second = sink.windows[:2]
    sink.lakehouse.land(first.lo, first.hi)
    sink.derive(first)
    target = sink.ctx.replication.target
    assert target is not None
    [opened] = sink.ctx.windows.read_apply_manifests(first.lo, first.hi)
    window = read_sql_window(sink.ctx, first, require_merged(sink.ctx, first.lo, first.hi))
    with pytest.raises(ConnectionAbortedError):
        apply_window(target, opened, read_statements(sink.ctx, window, target), hook=_die)
    sink.lakehouse.land(second.lo, second.hi)
    before = _versions(sink)

    # Another configuration, and a target that was sealed for meanwhile, do not affect the open window.
    sink.lakehouse.config["target"]["txn-batch"] = 7
    sink.ctx = sink.lakehouse.context()
    other = replace(opened, definitions="of another target")
    sink.ctx.windows.record(WindowEvent("convert", first.lo, first.hi, "done", sink="sql", manifest=other.to_json()))
    assert [(r.lo, r.hi) for r in sink.derive(second)] == [(0, first.hi)] * 2
    assert _versions(sink) == before

    created = _rows_of(sink, "ddl", first)[-1]
    _replace(sink, created["commit_ts"])
    merge.run(sink.ctx, first)
    with pytest.raises(CheckpointConflict, match=rf"another statement for a DDL.*commit_ts={created['commit_ts']}"):
        sink.derive(second)
    assert _versions(sink) == before
    del sink.lakehouse.config["ddl-replacement"]
    # The target's statements stay, although rows would be cut differently now.
    _inject(sink, created["commit_ts"] + 1)
    merge.run(sink.ctx, second)
    assert [event["state"] for event in sink.ctx.windows.read_events(stage="injection")] == ["late"]
    merge.run(sink.ctx, first)
    with pytest.raises(CheckpointConflict, match="with segments that differ"):
        sink.derive(second)
    with pytest.raises(CheckpointConflict, match="with segments that differ"):
        finalize.run(sink.ctx, first)
    del sink.lakehouse.config["ddl-injection"]
    sink.ctx = sink.lakehouse.context()
    merge.run(sink.ctx, first)

    path = sink.ctx.paths.locate_table("statement")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE phase = 2")
    with pytest.raises(ImmutableWindow, match="`statement` would differ from what was sealed"):
        sink.derive(second)
    assert {row["phase"] for row in _rows_of(sink, "statement", first)} == {0}
    del sink.lakehouse.config["target"]["txn-batch"]
    sink.ctx = sink.lakehouse.context()
    assert [r.state for r in sink.apply(second)] == ["done", "already", "done"]
    assert sink.target() == sink.model(first.hi)


def _versions(sink: Sink) -> list[int]:
    return [DeltaTable(sink.ctx.paths.locate_table(name)).version() for name in ("change", "statement")]


def test_oversized_transaction_or_packet_is_refused_before_sealing(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path
) -> None:
    #
    sink = Sink(spark, tmp_path, mariadb, **{"max-segment-rows": 30})
    first = sink.windows[0]
    sink.lakehouse.land(first.lo, first.hi)
    with pytest.raises(Permanent, match=r"above the limit of 30: too many.*max-segment-rows.*stop-at"):
        sink.derive(first)
    sink.lakehouse.config["target"]["max-segment-rows"] = 1000
    sink.ctx = sink.lakehouse.context()
    [(packet,)] = rows(mariadb, "SELECT @@GLOBAL.max_allowed_packet")
    execute(mariadb, "SET GLOBAL max_allowed_packet = 1024")
    try:
        with pytest.raises(Permanent, match=r"packets of 1024 bytes.*table=shop\.(item|log) key="):
            run_stage("convert", sink.ctx, first)
    finally:
        execute(mariadb, f"SET GLOBAL max_allowed_packet = {packet}")
    assert rows_of(sink.ctx.paths.locate_table("statement")) == []
    assert sink.ctx.windows.read_apply_manifests(first.lo, first.hi) == []
    assert read_checkpoint_ts(sink.ctx.replication, 7) is None
