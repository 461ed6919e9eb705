"""Where a job is dear, land's tasks also decode what they pull; merge uses it if it would decode the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable
from support.engines import HostileEngine
from support.live import LiveSource
from support.workload import integer, text

from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.decoding import MergeTask
from binlake.spark_jobs.job.stagerun import run_stage

pytestmark = pytest.mark.e2e
Make = Callable[..., StageContext]


class Dear(LocalEngine):
    """Stands for Spark: tasks hold nothing, and each is done once. Names the tasks that ran."""

    fuses = True

    def __init__(self) -> None:
        super().__init__(held_bytes=0)
        self.ran: list[str] = []

    def run(self, task: Any, inputs: Sequence[Any]) -> list[Any]:
        self.ran += [type(task).__name__] * len(inputs)
        return super().run(task, inputs)


def land(ctx: StageContext, chain: StageContext) -> Any:
    """land's result as the runner passes it on."""
    plan = run_stage("plan", ctx)
    assert plan.state == "ready", plan
    return run_stage("land", chain, Bounds(plan.lo, plan.hi))


def rows(ctx: StageContext, table: str) -> list[dict[str, Any]]:
    found = DeltaTable(ctx.paths.locate_table(table)).to_pyarrow_table().to_pylist()
    return sorted(found, key=lambda row: (row["commit_ts"], row.get("seq", 0)))


def list_files(ctx: StageContext, table: str) -> tuple[set[str], set[str]]:
    """(files of the table, files that are there)."""
    place = ctx.paths.locate_table(table)
    return set(map(unquote, DeltaTable(place).file_uris())), {str(path) for path in Path(place).rglob("*.parquet")}


def write_rows(source: LiveSource, first: int) -> None:
    for number in range(first, first + 20):
        source.workload.begin().insert("d", "t", id=number, name=f"n{number}").commit()
    source.workload.begin().update("d", "t", {"id": first, "name": f"n{first}"}, name="other").commit()


def begin(source: LiveSource, make: Make, monkeypatch: pytest.MonkeyPatch, engine: Any) -> StageContext:
    """A lake whose first window, with the DDL, is merged."""
    monkeypatch.setattr(StageContext, "spark_engine", property(lambda _: engine))
    monkeypatch.setattr(StageContext, "describe_engine", lambda _: {})
    source.workload.create_database("d")
    source.workload.create_table("d", "t", [integer("id"), text("name")], ["id"])
    source.settle()
    ctx = make(window={"driver-bytes": 0})
    landed = land(ctx, ctx.begin_chain())
    # The schema at lo was not known yet.
    assert landed.derived.decoded is None
    run_stage("merge", ctx.begin_chain(), Bounds(landed.lo, landed.hi), given=landed.derived)
    return ctx


@pytest.mark.parametrize("hostile", [False, True], ids=["once", "by hostile tasks"])
def test_merge_takes_what_land_has_decoded_and_no_task(
    source: LiveSource, context: Make, monkeypatch: pytest.MonkeyPatch, *, hostile: bool
) -> None:  # 34
    engine: Any = HostileEngine(Random(5)) if hostile else Dear()
    ctx = begin(source, context, monkeypatch, engine)
    write_rows(source, 1)
    source.settle()
    chain = ctx.begin_chain()
    landed = land(ctx, chain)
    bounds = Bounds(landed.lo, landed.hi)
    assert landed.derived.decoded is not None
    with monkeypatch.context() as patch:
        patch.setattr(MergeTask, "__call__", lambda *_: pytest.fail("merge need not decode"))
        merged = run_stage("merge", chain, bounds, given=landed.derived)
    assert merged.rows == 21
    ahead = rows(ctx, "mutation")
    handed = [row for part in merged.derived.rows for batch in part.read(["commit_ts"]) for row in batch.to_pylist()]
    assert len(handed) == 21
    assert run_stage("merge", ctx, bounds).rows == 21
    assert rows(ctx, "mutation") == ahead


def test_what_was_decoded_with_another_schema_or_other_rules_is_deleted(
    source: LiveSource, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:  # 34, R-19
    ctx = begin(source, context, monkeypatch, engine := Dear())
    # A DDL between the rows.
    write_rows(source, 1)
    source.workload.add_column("d", "t", integer("more"))
    source.workload.begin().insert("d", "t", id=90, name="x", more=1).commit()
    source.settle()
    chain = ctx.begin_chain()
    landed = land(ctx, chain)
    assert landed.derived.decoded is None
    in_table, there = list_files(ctx, "mutation")
    assert there == in_table
    assert run_stage("merge", chain, Bounds(landed.lo, landed.hi), given=landed.derived).rows == 22
    assert dict(rows(ctx, "mutation")[-1]["after"])["more"] == "1"

    # The configuration changes before merge.
    write_rows(source, 200)
    source.settle()
    chain = ctx.begin_chain()
    landed = land(ctx, chain)
    assert landed.derived.decoded is not None
    nothing = chain.replication.filter.model_copy(update={"ignore_schemas": ("d",)})
    changed = replace(chain, replication=chain.replication.model_copy(update={"filter": nothing}))
    engine.ran.clear()
    assert run_stage("merge", changed, Bounds(landed.lo, landed.hi), given=landed.derived).rows == 0
    assert "MergeTask" in engine.ran
    assert list_files(ctx, "mutation")[0] == list_files(ctx, "mutation")[1]


def test_a_stage_alone_decodes_nothing(
    source: LiveSource, context: Make, monkeypatch: pytest.MonkeyPatch
) -> None:  # 34
    ctx = begin(source, context, monkeypatch, Dear())
    write_rows(source, 1)
    source.settle()
    assert land(ctx, ctx).derived.decoded is None
    in_table, there = list_files(ctx, "mutation")
    assert there == in_table
