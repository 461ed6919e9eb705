"""Mode ordered from the lake to a real MariaDB: every change in commit order with DDL between, pinned and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lakehouse import rows_of
from pyspark.sql import SparkSession
from support.mariadb import MariaDb, rows
from support.windows import at
from test_sql_sink import Sink

from binlake.spark_jobs.job.context import Bounds
from binlake.spark_jobs.shared.sinks import read_sql_window, require_merged
from binlake.spark_jobs.shared.statements import read_statements
from binlake.spark_jobs.stages import finalize
from binlake.target import apply_window, read_checkpoint_ts
from binlake.target.apply import modes

pytestmark = [pytest.mark.spark, pytest.mark.mariadb]


class Crash(Exception):
    pass


def crash() -> None:
    raise Crash


OPTIONS: list[dict[str, Any]] = [
    {"safe-mode": "always", "worker-count": 3, "batch": 5},
    {"safe-mode": "never", "multiple-rows": True, "conflict-strategy": "flush"},
    {"safe-mode": "auto", "multiple-rows": False},
]
"""A replication's options change between windows."""


def test_target_equals_the_source_after_each_window_in_mode_ordered(
    spark: SparkSession, mariadb: MariaDb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S0-22, S3-20, R-16, R-36, R-62; six DDL on four tables in the second window, which is interrupted half-way
    monkeypatch.setattr(modes, "CHECKPOINT_S", 0.0)
    sink = Sink(spark, tmp_path, mariadb)
    words = []
    for number, bounds in enumerate(sink.windows):
        _configure(sink, {"mode": "ordered", **OPTIONS[number]})
        sink.lakehouse.land(bounds.lo, bounds.hi)
        compacted, converted = sink.derive(bounds)
        mutations = [
            r for r in rows_of(sink.ctx.paths.locate_table("mutation")) if bounds.lo < r["commit_ts"] <= bounds.hi
        ]
        assert (compacted.rows, converted.rows) == (0, len(mutations))
        # Schedulers that wait for a table are notified in any mode, even if a DDL is the only change.
        named = {(r["db"], r["table"]) for r in mutations} | _list_altered_tables(sink, bounds)
        assert compacted.detail["changed"] == sorted(named)
        if number == 1:
            _interrupt_apply(sink, bounds)
            before = _statements(sink)
            _configure(sink, {"mode": "parallel"})
            sink.derive(bounds)
            assert _statements(sink) == before
        applied = finalize.run(sink.ctx, bounds)
        assert applied.detail["modes"]["ordered"] >= 1
        assert "parallel" not in applied.detail["modes"] or number == 1
        assert sink.target() == sink.model(bounds.hi)
        assert read_checkpoint_ts(sink.ctx.replication, 7) == bounds.hi
        words.append(_words(sink, bounds))
    _configure(sink, {**OPTIONS[0], "multiple-rows": False, "conflict-strategy": "causality"})
    assert [result.state for result in sink.apply(sink.windows[0])] == ["done", "already", "already"]
    safe, plain, auto = words
    assert ("REPLACE" in safe, "REPLACE" in plain, "REPLACE" in auto) == (True, False, False)
    assert {"INSERT", "UPDATE"} & plain
    assert {"INSERT", "DELETE"} <= auto


def _configure(sink: Sink, options: dict[str, Any]) -> None:
    sink.lakehouse.config["target"].update(options)
    sink.ctx = sink.lakehouse.context()


def _words(sink: Sink, bounds: Bounds) -> set[str]:
    """The first word of each statement of a window, except its DDL."""
    found = [row for row in rows_of(sink.ctx.paths.locate_table("statement")) if row["window"] == bounds.window]
    return {sql.split()[0] for row in found if row["kind"] == "ordered" for sql in row["sql"]}


def _interrupt_apply(sink: Sink, bounds: Bounds) -> None:
    """Leave half of the window applied; meanwhile the configuration changes to another mode."""
    window = read_sql_window(sink.ctx, bounds, require_merged(sink.ctx, bounds.lo, bounds.hi))
    target = sink.ctx.replication.target
    assert target is not None
    manifest = sink.ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)[-1]
    with pytest.raises(Crash):
        apply_window(target, manifest, read_statements(sink.ctx, window, target), hook=at("batch", 3, crash))
    assert rows(sink.server, "SELECT checkPoint LIKE '%%true%%' FROM tidb_binlog.checkpoint") == [(0,)]


def _list_altered_tables(sink: Sink, bounds: Bounds) -> set[tuple[str, str]]:
    """Tables that a DDL of the window created, changed or removed."""
    found = [row for row in rows_of(sink.ctx.paths.locate_table("ddl")) if row["window"] == bounds.window]
    return {(db, name) for row in found for db, _, name in [text.partition(".") for text in row["tables"]]}


def _statements(sink: Sink) -> list[str]:
    return sorted(str(row) for row in rows_of(sink.ctx.paths.locate_table("statement")))
