"""A pull reads all pumps concurrently and in step, in parts of bounded size."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from binlake.cluster.pumpclient import PumpReader, RangeSize
from binlake.config import Replication
from binlake.errors import SourceUnavailable
from binlake.spark_jobs.engine.engine import LocalEngine
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.lake import ensure_tables
from binlake.spark_jobs.land import pulling, pump_source
from binlake.spark_jobs.land.binlogfiles import LargeFiles
from binlake.spark_jobs.land.pulled import sort_rows
from binlake.spark_jobs.land.pulling import PulledPart, pull_parts, pull_window
from binlake.spark_jobs.land.pump_source import ARROW_SCHEMA, PumpPull, build_proof, pull_batches
from binlake.wire import build
from binlake.wire.blocks import BinlogBlock, BinlogPart, build_block

HI = 1000


def batch(*commit_ts: int, size: int = 1000) -> pa.RecordBatch:
    row = dict.fromkeys(ARROW_SCHEMA.names) | {"chunk": 0, "kind": "dml", "schema_version": 1, "payload": b"x" * size}
    return pa.RecordBatch.from_pylist([row | {"commit_ts": ts, "pump": "p"} for ts in commit_ts], schema=ARROW_SCHEMA)


@dataclass
class Pumps:
    """Stands for PumpPull: what each pump returns."""

    streams: list[Iterator[pa.RecordBatch]]
    lo: int = 0
    hi: int = HI

    @property
    def pumps(self) -> list[Any]:
        return [(f"p{number}", "host:1") for number in range(len(self.streams))]

    def pull_pump(self, place: int, _files: object) -> Iterator[pa.RecordBatch]:
        return self.streams[place]


def pull(*streams: Iterator[pa.RecordBatch], most: int = 1 << 40) -> PulledPart:
    """The first part."""
    with closing(pull_parts(cast("PumpPull", Pumps(list(streams))), most, LargeFiles(""))) as parts:
        return next(parts)


def with_final_proof(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return iter([*batches, build_proof("p", HI)])


def endless(seen: list[int], first: int = 1, step: int = 2) -> Iterator[pa.RecordBatch]:
    for ts in itertools.count(first, step):
        seen.append(ts)
        yield batch(ts)


def failing() -> Iterator[pa.RecordBatch]:
    yield batch(1)
    raise SourceUnavailable("gone", where={"pump": "p2"})


def list_commits(part: PulledPart) -> list[int]:
    own = part.rows.filter(pc.not_equal(part.rows["kind"], "proof"))
    return sorted(own["commit_ts"].to_pylist())


def read_proofs(part: PulledPart) -> dict[str, int]:
    return {row["pump"]: row["commit_ts"] for row in part.rows.to_pylist() if row["kind"] == "proof"}


def test_parts_of_all_pumps_are_merged_and_proved() -> None:
    found = pull(with_final_proof(batch(1), batch(3)), with_final_proof(batch(2)))
    assert (found.lo, found.upto, list_commits(found)) == (0, HI, [1, 2, 3])
    assert read_proofs(found) == {"p0": HI, "p1": HI}
    none = pull()
    assert (none.rows.num_rows, none.upto) == (0, HI)


def test_a_part_ends_at_its_bytes_where_every_pump_has_passed() -> None:
    ahead, behind = list[int](), list[int]()
    found = pull(endless(ahead), endless(behind, 20, 20), most=50_000)
    assert found.upto < HI
    assert list_commits(found) == sorted([*range(1, found.upto + 1, 2), *range(20, found.upto + 1, 20)])
    assert 49_000 <= sum(map(len, found.rows["payload"].to_pylist())) <= 50_000
    # In step: a pump that is ahead waits, so no pump is read much beyond the part's end.
    assert max(ahead) <= found.upto + 6
    assert max(behind) <= found.upto + 60
    assert min(read_proofs(found).values()) >= found.upto


def test_parts_follow_each_other_without_a_gap_and_hold_each_row_once() -> None:
    streams = with_final_proof(*map(batch, range(1, 60, 2))), with_final_proof(*map(batch, range(2, 60, 7)))
    parts = list(pull_parts(cast("PumpPull", Pumps(list(streams))), 5_000, LargeFiles("")))
    assert len(parts) > 5
    assert [part.lo for part in parts] == [0, *(part.upto for part in parts[:-1])]
    assert parts[-1].upto == HI
    for part in parts:
        assert all(part.lo < ts <= part.upto for ts in list_commits(part))
        assert min(read_proofs(part).values()) >= part.upto
    assert [ts for part in parts for ts in list_commits(part)] == sorted([*range(1, 60, 2), *range(2, 60, 7)])


def test_a_part_is_gathered_in_sorted_steps_up_to_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # U-06: to sort rows is to copy them, so few are sorted at a time.
    sizes: list[int] = []
    monkeypatch.setattr(pulling, "SORTED_BYTES", 10_000)
    monkeypatch.setattr(pulling, "sort_rows", lambda rows: sizes.append(rows.num_rows) or sort_rows(rows))
    found = pull(endless([]), endless([], 20, 20), most=50_000)
    assert 45_000 < sum(map(len, found.rows["payload"].to_pylist())) <= 50_000
    assert (len(sizes), max(sizes)) == (5, 10)
    own = found.rows.filter(pc.not_equal(found.rows["kind"], "proof"))["commit_ts"].to_pylist()
    assert own == sorted([*range(1, found.upto + 1, 2), *range(20, found.upto + 1, 20)])
    assert min(read_proofs(found).values()) >= found.upto


def test_chunks_that_arrive_in_order_are_not_copied() -> None:
    # U-06
    chunks = [batch(5, size=60).set_column(2, "chunk", pa.array([chunk], pa.int32())) for chunk in range(3)]
    rows = pa.Table.from_batches([batch(3), *chunks])
    assert sort_rows(rows) is rows
    turned = sort_rows(pa.Table.from_batches([*reversed(chunks), batch(3)]))
    assert turned["commit_ts"].to_pylist() == [3, 5, 5, 5]
    assert turned["chunk"].to_pylist() == [0, 0, 1, 2]


def test_large_transaction_stays_whole_and_may_fill_a_part() -> None:
    def rows(*of: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        for ts, chunk in of:
            yield batch(ts, size=60).set_column(2, "chunk", pa.array([chunk], pa.int32()))
        yield build_proof("p", HI)

    found = pull(rows((5, 0), (5, 1), (5, 2), (8, 0)), rows((5, 0), (7, 0)), most=100)
    assert found.upto == 5
    assert sorted(row["chunk"] for row in found.rows.to_pylist() if row["commit_ts"] == 5) == [0, 0, 1, 2]
    # A part that reaches the limit exactly is not cut earlier.
    assert pull(rows((1, 0), (2, 0), (3, 0)), most=120).upto == 2
    assert pull(rows((1, 0), (2, 0), (3, 0)), most=119).upto == 1
    assert pull(rows((1, 0), (2, 0), (3, 0)), most=181).upto == HI


def test_a_pump_that_ends_early_proves_no_more_than_it_delivered() -> None:
    early = iter([batch(1), build_proof("p", 7)])
    found = pull(with_final_proof(batch(2), batch(9)), early)
    assert found.upto == HI
    assert read_proofs(found) == {"p0": HI, "p1": 7}


def context(folder: Path, driver_bytes: int) -> StageContext:
    raw = {"name": "r", "lake": {"path": str(folder)}, "window": {"driver-bytes": driver_bytes}}
    ctx = StageContext(Replication.model_validate(raw), "test", lambda: pytest.fail("no Spark is needed"))
    ensure_tables(ctx.paths)
    return ctx


@pytest.mark.parametrize("driver_bytes", [50_000, 60_000])
def test_window_within_the_drivers_limit_needs_no_spark(tmp_path: Path, driver_bytes: int) -> None:
    # Both pumps are read beyond the end that both have passed, so more than the window's bytes is in memory.
    pumps = cast("PumpPull", Pumps([endless([]), endless([], 20, 20)]))
    pulled = pull_window(context(tmp_path, driver_bytes), pumps, 50_000)
    assert 49 <= pulled.sum_stored().landed.dml <= 50
    assert pulled.hi < HI


class Elsewhere(LocalEngine):
    """Stands for Spark; counts its tasks."""

    def __init__(self) -> None:
        super().__init__(held_bytes=0)
        self.ran = 0

    def run(self, task: Any, inputs: Sequence[Any]) -> list[Any]:
        self.ran += len(inputs)
        return super().run(task, inputs)


class Measured(Pumps):
    """Pumps that tell how much they have; transactions at 1 to 199, in turns."""

    told: tuple[RangeSize | None, ...] = ()

    def measure_pump(self, place: int, part_bytes: int) -> RangeSize | None:
        assert part_bytes == (16 << 20) // 2
        return self.told[place]

    def pull_pump(self, place: int, _files: object) -> Iterator[pa.RecordBatch]:
        own = range(1 + place, 200, 2)
        return with_final_proof(*(batch(ts) for ts in own if self.lo < ts <= self.hi))


@pytest.mark.parametrize(
    ("has_spark", "size", "tasks"), [(True, 15_001, 3), (True, 15_000, 0), (False, 15_001, 0), (True, None, 0)]
)
def test_auto_pulls_a_backlog_on_a_named_spark_as_one_window(
    tmp_path: Path, has_spark: bool, size: int | None, tasks: int
) -> None:  # 34
    told = (RangeSize(size, ()), RangeSize(15_000, (60, 150))) if size is not None else (None, RangeSize(1, ()))
    pumps = Measured([iter(()), iter(())])
    pumps.told = told
    ctx, engine = replace(context(tmp_path, 30_000), has_spark=has_spark), Elsewhere()
    vars(ctx)["spark_engine"] = engine
    # The pieces of this process are no limit for Spark.
    pulled = pull_window(ctx, cast("PumpPull", pumps), 25_000)
    assert engine.ran == tasks
    assert (pulled.hi == HI) is bool(tasks)
    assert pulled.sum_stored().landed.dml == (199 if tasks else 25)
    if tasks:
        assert [one.bounds.hi for one in pulled.ranges] == [60, 150, HI]


@pytest.mark.parametrize(("large_on_spark", "tasks"), [(True, 8), (False, 0)])
def test_rest_beyond_the_drivers_limit_is_pulled_by_other_tasks_if_there_is_a_spark(
    tmp_path: Path, large_on_spark: bool, tasks: int
) -> None:  # 34
    class Restarted(Pumps):
        def pull_pump(self, place: int, _files: object) -> Iterator[pa.RecordBatch]:
            own = range(1 + place, 200, 2)
            return with_final_proof(*(batch(ts) for ts in own if self.lo < ts <= self.hi))

    ctx, engine = replace(context(tmp_path, 20_000), large_on_spark=large_on_spark), Elsewhere()
    vars(ctx)["spark_engine"] = engine
    pulled = pull_window(ctx, cast("PumpPull", Restarted([iter(()), iter(())])), 0)
    assert engine.ran == tasks
    assert (pulled.ranges[0].bounds.lo, pulled.hi) == (0, HI)
    assert [one.bounds.lo for one in pulled.ranges[1:]] == [one.bounds.hi for one in pulled.ranges[:-1]]
    stored = pulled.sum_stored()
    assert stored.landed.dml == 199
    survey = pulled.survey()
    assert min(survey[pump].proof for pump in ("p0", "p1")) >= HI
    read = [ts for rows in stored.rows for one in rows.read(["commit_ts"]) for ts in one.column(0).to_pylist()]
    assert sorted(read) == list(range(1, 200))


def test_failing_pump_stops_the_others_and_is_named() -> None:
    with pytest.raises(SourceUnavailable, match="pump=p2"):
        pull(endless([]), failing())


class Stream:
    """Stands for PumpReader."""

    def __init__(self, *sent: BinlogBlock | BinlogPart) -> None:
        self._sent = sent

    def pull_parts(self, lo: int, hi: int) -> Iterator[BinlogBlock | BinlogPart]:
        del lo, hi
        yield from self._sent


def batches_of(*sent: BinlogBlock | BinlogPart, files: LargeFiles | None = None) -> list[pa.RecordBatch]:
    return list(pull_batches("p", cast("PumpReader", Stream(*sent)), 5, 20, files or LargeFiles("")))


def test_blocks_become_rows_without_fakes_and_later_transactions() -> None:
    usual = build.build_commit(build.build_prewrite(6, b"key", b"\x08\x07"), 7)
    usual.prewrite_value = b"\x08\x07"
    ddl = build.build_commit(
        build.build_prewrite(9, b"k", ddl_query=b"create table \xff", ddl_job_id=300, ddl_schema_state=6), 10
    )
    payloads = [usual.SerializeToString(), b"", ddl.SerializeToString(), b"\xff\xff", b"behind"]
    first = build_block([7, 8, 10], [6, 8, 9], payloads[:3])
    rows = pa.Table.from_batches(batches_of(first, build_block([12, 21], [11, 20], payloads[3:]))).to_pylist()
    names = ("commit_ts", "start_ts", "kind", "schema_version", "job_id", "schema_state", "query", "payload", "content")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (7, 6, "dml", 7, 0, 0, None, payloads[0], None),
        (10, 9, "ddl", 0, 300, 6, "create table �", payloads[2], None),
        (12, 11, "dml", 0, 0, 0, None, b"\xff\xff", None),
        (21, 21, "proof", 0, 0, 0, None, b"", None),
    ]
    assert {(row["pump"], row["chunk"]) for row in rows} == {("p", 0)}


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_source, "BATCH_BYTES", 100)
    monkeypatch.setattr(pump_source, "BATCH_ROWS", 5)
    blocks = [
        build_block([ts], [ts - 1], [b"x" * size]) for ts, size in zip(range(6, 19), [60, 60, *[1] * 11], strict=True)
    ]
    assert [one.num_rows for one in batches_of(*blocks, build_block([20], [20], [b""]))] == [2, 5, 5, 1, 1]
    assert np.all(np.diff(pa.Table.from_batches(batches_of(*blocks))["commit_ts"].to_numpy()) >= 0)
