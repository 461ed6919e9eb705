"""compact and convert give the same rows whatever their tasks are, in any mode; a small window needs no Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from history import shop
from lakehouse import Lakehouse, Source, rows_of
from support.engines import HostileEngine
from support.mariadb import MariaDb, execute

from binlake.lake.mutations import read_rows
from binlake.lake.tables import MUTATION
from binlake.spark_jobs.engine.rows import MemoryRows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.shared import sinks
from binlake.spark_jobs.shared.sinks import read_sql_window, require_merged
from binlake.spark_jobs.shared.statements import read_statements
from binlake.spark_jobs.stages import compact, convert
from binlake.target import apply_window

pytestmark = pytest.mark.mariadb

ROUTES = [{"schema-pattern": "shop", "target-schema": "shop2"}]


@pytest.fixture
def lake(mariadb: MariaDb, tmp_path: Path) -> Callable[..., tuple[Lakehouse, Bounds]]:
    """Six DDL on four tables, keyed and not, in the second window."""

    def made(target: dict[str, Any], **config: Any) -> tuple[Lakehouse, Bounds]:
        execute(mariadb, *(f"DROP DATABASE IF EXISTS {name}" for name in ("shop", "shop2", "tidb_binlog")))
        server = {"host": "127.0.0.1", "port": mariadb.port, "user": mariadb.user, "password": mariadb.password}
        config["target"] = {"db-type": "mariadb", **server, **target}
        history = shop()
        found = Lakehouse(None, tmp_path, Source.of_workload(history.workload), config)
        found.land(0, history.cuts[-1])
        return found, Bounds(0, history.cuts[-1])

    return made


def _without_spark(lakehouse: Lakehouse) -> StageContext:
    return replace(lakehouse.context(), make_spark=lambda: pytest.fail("no Spark is needed"))


def _changes(ctx: StageContext) -> list[str]:
    rows = rows_of(ctx.paths.locate_table("change"))
    for row in rows:
        row |= {name: sorted(row[name] or ()) for name in ("before", "after")}
    return sorted(map(str, rows))


@pytest.mark.parametrize(
    ("target", "config"),
    [
        pytest.param({"mode": "atomic"}, {}, marks=pytest.mark.soak),
        pytest.param({"mode": "parallel", "impossible-changes": "last"}, {}, marks=pytest.mark.soak),
        ({"mode": "auto"}, {"routes": ROUTES}),
        pytest.param({"mode": "ordered"}, {}, marks=pytest.mark.soak),
    ],
    ids=["atomic", "parallel", "auto with routes", "ordered"],
)
def test_any_tasks_write_the_same_changes(
    lake: Callable[..., tuple[Lakehouse, Bounds]], target: dict[str, Any], config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    lakehouse, bounds = lake(target, **config)
    here = _without_spark(lakehouse)
    done = compact.run(here, bounds)
    found = _changes(here)
    assert (len(found) > 10) == (target["mode"] != "ordered")
    convert.run(here, bounds)
    [sealed] = here.windows.read_apply_manifests(bounds.lo, bounds.hi)
    monkeypatch.setattr(StageContext, "choose_engine", lambda *_: HostileEngine(Random(2)))
    again = _without_spark(lakehouse)
    by_tasks = compact.run(again, bounds)
    assert _changes(again) == found
    assert (by_tasks.rows, by_tasks.detail) == (done.rows, done.detail)
    # The statements too, from rows that compact handed over and from those of the lake.
    for ctx, given in ((again, by_tasks.derived), (_without_spark(lakehouse), None)):
        assert convert.run(ctx, bounds, given).state == "already"
        assert ctx.windows.read_apply_manifests(bounds.lo, bounds.hi) == [sealed]


def test_rows_from_merge_are_not_read_again_and_changes_are_handed_over(
    lake: Callable[..., tuple[Lakehouse, Bounds]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lakehouse, bounds = lake({"mode": "atomic"}, lake={"path": str(tmp_path), "keep": ["change"]})
    first, second = _without_spark(lakehouse), _without_spark(lakehouse)
    compact.run(first, bounds)
    read = _changes(first)
    rows = read_rows(first.paths, MUTATION, bounds.lo, bounds.hi, MUTATION.list_column_names())
    states = first.schemas.read_state_at(bounds.lo), first.schemas.read_state_at(bounds.hi)
    merged = MergedWindow(bounds, require_merged(first, bounds.lo, bounds.hi), (MemoryRows(rows),), states)
    monkeypatch.setattr(sinks, "list_history_rows", lambda *_: pytest.fail("the rows must not be read again"))
    handed = compact.run(second, bounds, merged).derived.net
    assert _changes(second) == read
    rows_of_groups = [batch.num_rows for _, own in handed.groups for rows in own for batch in rows.read(["key"])]
    assert sum(rows_of_groups) == len(read)


def _die(step: str) -> None:
    if step == "opened":
        raise ConnectionAbortedError("power cut")


def test_window_held_open_by_the_target_is_compared_without_spark(
    lake: Callable[..., tuple[Lakehouse, Bounds]],
) -> None:
    lakehouse, bounds = lake({"mode": "atomic"})
    ctx = lakehouse.context()
    compact.run(ctx, bounds)
    convert.run(ctx, bounds)
    [sealed] = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    window = read_sql_window(ctx, bounds, require_merged(ctx, bounds.lo, bounds.hi))
    target = ctx.replication.require_sql_target()
    with pytest.raises(ConnectionAbortedError):
        apply_window(target, sealed, read_statements(ctx, window, target), hook=_die)
    before = _changes(ctx)
    again = compact.run(_without_spark(lakehouse), bounds)
    assert again.rows == len(before)
    assert _changes(ctx) == before
