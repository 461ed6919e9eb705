"""A transaction that passes in parts gives the rows, statements and digests of one that every step holds whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from support.engines import HostileEngine
from support.live import LiveSource
from support.mariadb import MariaDb, execute, rows
from support.workload import integer, text

from binlake.lake.opentable import load_table
from binlake.pump_service.pump import batches, pull
from binlake.rows.codec import largerows
from binlake.spark_jobs.engine import engine
from binlake.spark_jobs.job import decoding
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.runner import run_window
from binlake.spark_jobs.land import binlogfiles, pump_source
from binlake.spark_jobs.stages import mirror

pytestmark = [pytest.mark.mariadb, pytest.mark.e2e]
Make = Callable[..., StageContext]
ROWS = 600


def write_transaction(source: LiveSource) -> int:
    """Two tables, and one transaction with all kinds of changes in both; returns the commit_ts after it."""
    w, draw = source.workload, Random(7)
    w.create_database("d")
    w.create_table("d", "t", [integer("id"), text("v", 4000)], ["id"])
    w.create_table("d", "u", [integer("id"), text("v", 4000)], ["id"])
    before = w.begin()
    for number in range(200):
        before.insert("d", "t", id=number, v="old")
    before.commit()
    large = w.begin()
    for number in range(ROWS):
        for table in ("t", "u"):
            value = "x" * draw.choice([0, 10, 200, 3000 if number % 50 == 0 else 20])
            large.insert("d", table, id=1000 + number, v=value)
            if number % 3 == 0:
                large.update("d", table, {"id": str(1000 + number), "v": value}, v=f"new{number}")
            if number % 7 == 0 and number % 3:
                large.delete("d", table, id=1000 + number, v=value)
        if number < 200:
            large.delete("d", "t", id=number, v="old")
    large.commit()
    return source.settle()


def pass_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few KiB be large, in pumps and windows."""
    monkeypatch.setattr(pull, "_CACHE_BYTES", 66_000)
    monkeypatch.setattr(batches, "PART_BYTES", 5_000)
    for module in (binlogfiles, pump_source):
        monkeypatch.setattr(module, "LARGE_BYTES", 20_000)
        monkeypatch.setattr(module, "CHUNK_BYTES", 8_000)
    for module in (engine, mirror):
        monkeypatch.setattr(module, "LARGE_WINDOW_BYTES", 20_000)
    monkeypatch.setattr(engine, "_LARGE_HELD_BYTES", 0)
    monkeypatch.setattr(engine, "_LARGE_TASK_BYTES", 10_000)
    monkeypatch.setattr(mirror, "LARGE_CHUNK_BYTES", 20_000)
    monkeypatch.setattr(largerows, "MOST_ROWS", 50)
    monkeypatch.setattr(decoding, "PIECE_BYTES", 3_000)


def read_mutations(ctx: StageContext) -> list[str]:
    table = load_table(ctx.paths.locate_table("mutation")).to_pyarrow_table()
    return [str(row) for row in table.sort_by([("commit_ts", "ascending"), ("seq", "ascending")]).to_pylist()]


def read_mirror(ctx: StageContext) -> list[str]:
    return sorted(str(row) for row in load_table(ctx.paths.locate_mirror("d", "t")).to_pyarrow_table().to_pylist())


@pytest.mark.parametrize("is_hostile", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["here", "elsewhere"])
def test_both_ways_give_the_same(
    source: LiveSource, context: Make, target: dict[str, Any], empty_mariadb: MariaDb, tmp_path: Path, is_hostile: bool
) -> None:  # S0-07, R-27, R-30
    end = write_transaction(source)

    def run(name: str, **more: Any) -> StageContext:
        section = {**target, "checkpoint-schema": f"cp_{name}", **more}
        lake = {"path": str(tmp_path / name)}
        ctx = context(end, target=section, lake=lake, mirror={"enabled": True}, window={"engine": "local"})
        run_window(ctx)
        return ctx

    def read_target() -> list[tuple[Any, ...]]:
        return [row for table in ("t", "u") for row in rows(empty_mariadb, f"SELECT id, v FROM d.{table} ORDER BY id")]

    whole = run("whole")
    held = read_target()
    assert len(held) == 2 * (ROWS - sum(n % 7 == 0 and n % 3 != 0 for n in range(ROWS)))
    [landed] = [whole.windows.read_manifest(*one) for one in whole.windows.list_landed()]
    execute(empty_mariadb, "DROP DATABASE d")
    with pytest.MonkeyPatch.context() as patch:
        pass_in_parts(patch)
        if is_hostile:
            # As on Spark: tasks work on copies, in any order, and some run twice.
            patch.setattr(StageContext, "choose_engine", lambda *_: HostileEngine(Random(4)))
        # A segment above the limits of mode auto goes by its policy: in batches.
        parts = run("parts", mode="auto", **{"max-segment-rows": 500})
    assert read_target() == held
    [again] = [parts.windows.read_manifest(*one) for one in parts.windows.list_landed()]
    assert landed is not None
    assert again is not None
    assert (landed.chunks, landed.bytes, landed.hi) == (0, again.bytes, again.hi)
    assert again.chunks > 10
    assert read_mutations(parts) == read_mutations(whole)
    assert read_mirror(parts) == read_mirror(whole)
    [one], [two] = (ctx.windows.read_apply_manifests(landed.lo, landed.hi) for ctx in (whole, parts))
    assert (one.change, one.statement, one.rows) == (two.change, two.statement, two.rows)
    assert rows(empty_mariadb, "SELECT MIN(atomic) FROM cp_whole.binlake_ledger") == [(1,)]
    assert rows(empty_mariadb, "SELECT MIN(atomic) FROM cp_parts.binlake_ledger") == [(0,)]
