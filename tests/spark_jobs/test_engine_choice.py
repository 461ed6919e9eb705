"""`window.engine` says what runs the stages; a run on Spark is named on its pages and counted in the stage's event."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import mul
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from binlake.config import Replication
from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.engine.spark import SparkEngine, find_pages
from binlake.spark_jobs.job.context import PIECE_BYTES, StageContext
from binlake.spark_jobs.job.results import Bounds


class _Made(Exception):
    """A session was asked for."""


def _build_session() -> Any:
    raise _Made


def _context(folder: Path, *, in_pieces: bool = True, **window: Any) -> StageContext:
    raw = {"name": "r", "lake": {"path": str(folder)}, "window": window}
    return StageContext(Replication.model_validate(raw), "test", _build_session, in_pieces=in_pieces)


@pytest.mark.parametrize(("engine", "size"), [("auto", 100), ("local", 101), ("local", 1 << 40)])
def test_this_process_runs_small_windows_and_with_local_all(tmp_path: Path, engine: str, size: int) -> None:
    ctx = _context(tmp_path, engine=engine, **{"driver-bytes": 100})
    assert isinstance(ctx.choose_engine(size), LocalEngine)
    assert ctx.describe_engine() == {}


@pytest.mark.parametrize(("engine", "size"), [("auto", 101), ("spark", 1)])
def test_spark_runs_large_windows_and_with_spark_all(tmp_path: Path, engine: str, size: int) -> None:
    ctx = _context(tmp_path, engine=engine, **{"driver-bytes": 100})
    with pytest.raises(_Made):
        replace(ctx, has_spark=True).choose_engine(size)
    with pytest.raises(_Made):
        replace(ctx, large_on_spark=True).choose_engine(size)


def test_without_a_named_spark_this_process_runs_a_transaction_of_any_size(tmp_path: Path) -> None:  # 34
    ctx = _context(tmp_path, engine="auto", **{"driver-bytes": 100})
    assert isinstance(ctx.choose_engine(1 << 40), LocalEngine)
    assert ctx.describe_engine() == {}
    for way in (_context(tmp_path, engine="spark"), _context(tmp_path, engine="auto", **{"driver-bytes": 0})):
        with pytest.raises(_Made):
            way.choose_engine(1)


@pytest.mark.parametrize(
    ("engine", "in_pieces", "most"),
    [("auto", True, PIECE_BYTES), ("local", True, PIECE_BYTES), ("spark", True, 0), ("auto", False, 0)],
)
def test_a_backlog_is_one_window_on_spark_and_pieces_here(
    tmp_path: Path, engine: str, in_pieces: bool, most: int
) -> None:
    assert _context(tmp_path, in_pieces=in_pieces, engine=engine).most_bytes == most
    limited = _context(tmp_path, in_pieces=in_pieces, engine=engine, **{"max-bytes": 7})
    assert limited.most_bytes == 7


@pytest.mark.spark
def test_jobs_have_the_name_of_replication_stage_and_window(spark: SparkSession, tmp_path: Path) -> None:
    label = _context(tmp_path).begin_stage("merge", Bounds(3, 9)).label
    assert label == "r merge 3-9"
    engine = SparkEngine(spark, label)
    assert engine.run(partial(mul, 2), [1, 2, 3]) == [2, 4, 6]
    assert engine.run(partial(mul, 2), []) == []
    assert engine.describe() == {"engine": "spark", "spark_jobs": 1, "spark_tasks": 3}
    tracker = spark.sparkContext.statusTracker()
    assert tracker.getJobIdsForGroup(label)


class _Remote:
    """A session on a Connect server with these settings."""

    def __init__(self, **settings: str) -> None:
        self.conf = {f"spark.{name.replace('_', '.')}": value for name, value in settings.items()}


@pytest.mark.parametrize(
    ("settings", "pages"),
    [
        ({"ui_enabled": "true", "driver_host": "spark", "ui_port": "4040"}, "http://spark:4040"),
        ({"ui_enabled": "false", "driver_host": "spark", "ui_port": "4040"}, ""),
        # Spark takes any port, or the next free one, and does not tell which.
        ({"ui_enabled": "true", "driver_host": "spark", "ui_port": "0"}, ""),
        ({"ui_enabled": "true", "driver_host": "spark"}, ""),
    ],
)
def test_sparks_pages_are_named_if_they_are_known(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], pages: str
) -> None:  # 34
    monkeypatch.setattr("binlake.spark_jobs.engine.spark.is_remote", lambda: True)
    session: Any = _Remote(**settings)
    find_pages.cache_clear()
    assert find_pages(session) == pages
    assert SparkEngine(session, "label").describe().get("spark_pages", "") == pages
    find_pages.cache_clear()
