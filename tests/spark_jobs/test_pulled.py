"""The driver's own pull reads all pumps concurrently and in step, within a window's bytes and the driver's memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from binlake.cluster.pumpclient import PumpReader
from binlake.errors import SourceUnavailable
from binlake.wire import build
from binlake.wire.blocks import Block, build_block
from spark_jobs.job.context import StageContext
from spark_jobs.job.results import Bounds
from spark_jobs.land import pump_source
from spark_jobs.land.pulled import InMemory, Pulled
from spark_jobs.land.pulling import Part, pull_here, pull_window
from spark_jobs.land.pump_source import ARROW_SCHEMA, PumpPull, build_proof, digest_content, pull_batches

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

    def pull_pump(self, place: int) -> Iterator[pa.RecordBatch]:
        return self.streams[place]


def pull(*streams: Iterator[pa.RecordBatch], room: int = 1 << 30, most: int = 0) -> Part:
    return pull_here(cast("PumpPull", Pumps(list(streams))), room, most)


def with_final_proof(*batches: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return iter([*batches, build_proof("p", HI)])


def endless(seen: list[int], first: int = 1, step: int = 2) -> Iterator[pa.RecordBatch]:
    for ts in itertools.count(first, step):
        seen.append(ts)
        yield batch(ts)


def failing() -> Iterator[pa.RecordBatch]:
    yield batch(1)
    raise SourceUnavailable("gone", where={"pump": "p2"})


def list_commits(part: Part) -> list[int]:
    found = Pulled(InMemory(part.rows)).select_transactions(Bounds(0, part.upto))
    assert isinstance(found, pa.Table)
    return found["commit_ts"].to_pylist()


def test_parts_of_all_pumps_are_merged_in_order() -> None:
    found = pull(with_final_proof(batch(1), batch(3)), with_final_proof(batch(2)))
    assert (found.upto, found.full, list_commits(found)) == (HI, False, [1, 2, 3])
    none = pull()
    assert (none.rows.num_rows, none.upto) == (0, HI)


def test_window_ends_at_its_bytes_where_every_pump_has_passed() -> None:
    ahead, behind = list[int](), list[int]()
    found = pull(endless(ahead), endless(behind, 20, 20), most=50_000)
    assert found.upto < HI
    assert list_commits(found) == sorted([*range(1, found.upto + 1, 2), *range(20, found.upto + 1, 20)])
    assert 49_000 <= sum(map(len, found.rows["payload"].to_pylist()[: len(list_commits(found))])) <= 50_000
    # In step: a pump that is ahead waits, so no pump is read much beyond the window's end.
    assert max(ahead) <= found.upto + 6
    assert max(behind) <= found.upto + 60
    proofs = Pulled(InMemory(found.rows)).read_proofs()
    assert min(proofs["p0"], proofs["p1"]) >= found.upto


def test_large_transaction_stays_whole_and_may_fill_a_window() -> None:
    def rows(*of: tuple[int, int]) -> Iterator[pa.RecordBatch]:
        for ts, chunk in of:
            yield batch(ts, size=60).set_column(2, "chunk", pa.array([chunk], pa.int32()))
        yield build_proof("p", HI)

    found = pull(rows((5, 0), (5, 1), (5, 2), (8, 0)), rows((5, 0), (7, 0)), most=100)
    assert (found.upto, found.full) == (5, False)
    assert [row["chunk"] for row in found.rows.to_pylist() if row["commit_ts"] == 5] == [0, 1, 2, 0]
    # A window that reaches the limit exactly is not cut earlier.
    assert pull(rows((1, 0), (2, 0), (3, 0)), most=120).upto == 2
    assert pull(rows((1, 0), (2, 0), (3, 0)), most=119).upto == 1
    assert pull(rows((1, 0), (2, 0), (3, 0)), most=181).upto == HI


@pytest.mark.parametrize("driver_bytes", [50_000, 60_000])
def test_window_within_the_drivers_limit_needs_no_spark(driver_bytes: int) -> None:
    # Both pumps are read beyond the end that both have passed, so more than the window's bytes is in memory.
    ctx = cast("StageContext", SimpleNamespace(driver_bytes=driver_bytes))
    pumps = cast("PumpPull", Pumps([endless([]), endless([], 20, 20)]))
    rows, hi = pull_window(ctx, pumps, 50_000)
    found = rows.select_transactions(Bounds(0, hi))
    assert isinstance(found, pa.Table)
    assert 49 <= found.num_rows <= 50


def test_rest_beyond_the_memory_limit_is_left_to_the_workers() -> None:
    found = pull(endless([]), with_final_proof(batch(4)), room=20_000)
    assert found.full
    assert list_commits(found) == sorted([*range(1, found.upto + 1, 2), 4])
    assert found.upto >= 36


def test_failing_pump_stops_the_others_and_is_named() -> None:
    with pytest.raises(SourceUnavailable, match="pump=p2"):
        pull(endless([]), failing())


class Stream:
    """Stands for PumpReader."""

    def __init__(self, *blocks: Block) -> None:
        self._blocks = blocks

    def pull_blocks(self, lo: int, hi: int) -> Iterator[Block]:
        del lo, hi
        yield from self._blocks


def batches_of(*blocks: Block, share: int | None = None) -> list[pa.RecordBatch]:
    return list(pull_batches("p", cast("PumpReader", Stream(*blocks)), 5, 20, share))


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


def test_pull_ends_after_its_share_with_a_proof_of_its_progress() -> None:
    blocks = [build_block([ts], [ts - 1], [b"x" * 50]) for ts in range(6, 16)]
    rows = pa.Table.from_batches(batches_of(*blocks, share=120)).to_pylist()
    assert [(row["commit_ts"], row["kind"]) for row in rows] == [(6, "dml"), (7, "dml"), (8, "dml"), (8, "proof")]


def test_large_transaction_is_cut_into_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_source, "CHUNK_BYTES", 10)
    large = bytes(range(35))
    found = batches_of(
        build_block([6], [5], [b"s"]), build_block([7, 8], [6, 7], [large, b"t"]), build_block([21], [21], [b""])
    )
    assert [one.num_rows for one in found] == [1] * 7
    table = pa.Table.from_batches(found)
    assert table["chunk"].to_pylist() == [0, 0, 1, 2, 3, 0, 0]
    assert b"".join(table["payload"].to_pylist()) == b"s" + large + b"t"
    assert table["content"].to_pylist() == [None, *[digest_content(large)] * 4, None, None]
    assert table["kind"].to_pylist()[-1] == "proof"


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump_source, "BATCH_BYTES", 100)
    monkeypatch.setattr(pump_source, "BATCH_ROWS", 5)
    blocks = [
        build_block([ts], [ts - 1], [b"x" * size]) for ts, size in zip(range(6, 19), [60, 60, *[1] * 11], strict=True)
    ]
    assert [one.num_rows for one in batches_of(*blocks, build_block([20], [20], [b""]))] == [2, 5, 5, 1, 1]
    assert np.all(np.diff(pa.Table.from_batches(batches_of(*blocks))["commit_ts"].to_numpy()) >= 0)
