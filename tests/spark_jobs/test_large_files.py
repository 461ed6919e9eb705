"""A large transaction is written while it is pulled: the same rows, counts and digests as if it were held (S0-14)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

from binlake.cluster.pumpclient import PumpReader
from binlake.rows.codec.envelopes import parse_binlog
from binlake.spark_jobs.engine.engine import Keeper
from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.land import binlogfiles, pump_source
from binlake.spark_jobs.land.binlogfiles import LargeFiles, PullStopped, WrittenTransaction, measure_landed
from binlake.spark_jobs.land.pulled import BINLOG_ARROW, Pulled, digest_pulled
from binlake.spark_jobs.land.pulling import PullTask
from binlake.spark_jobs.land.pump_source import PumpPull, build_proof, digest_content, pull_batches
from binlake.wire import binlog_pb2 as pb
from binlake.wire import blocks, build
from binlake.wire.blocks import BinlogBlock, BinlogPart, build_block, cut_into_parts

CHUNK, LARGE, PART = 1000, 4000, 370
HI = 20


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (binlogfiles, pump_source):
        monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK)
        monkeypatch.setattr(module, "LARGE_BYTES", LARGE)
    monkeypatch.setattr(blocks, "PART_BYTES", PART)


def encode(commit_ts: int, rows: int, tables: int = 1, key: bytes = b"key", version: int = 7) -> bytes:
    """A complete C with `rows` rows of 90 bytes in each of `tables` tables."""
    row = bytes(range(90))
    mutations = [
        pb.TableMutation(table_id=100 + table, inserted_rows=[row] * rows, sequence=[pb.Insert] * rows)
        for table in range(tables)
    ]
    value = pb.PrewriteValue(schema_version=version, mutations=mutations).SerializeToString()
    prewrite = build.build_prewrite(commit_ts - 1, key, value)
    binlog = build.build_commit(prewrite, commit_ts)
    binlog.prewrite_value = value
    return binlog.SerializeToString()


class Stream:
    """Stands for PumpReader."""

    def __init__(self, *sent: BinlogBlock | BinlogPart) -> None:
        self._sent = sent

    def pull_parts(self, lo: int, hi: int) -> Iterator[BinlogBlock | BinlogPart]:
        del lo, hi
        yield from self._sent


def send(*binlogs: tuple[int, bytes], parts: bool = True) -> list[BinlogBlock | BinlogPart]:
    """What a pump sends: large ones in parts if it knows them."""
    sent: list[BinlogBlock | BinlogPart] = []
    for commit_ts, payload in binlogs:
        block = build_block([commit_ts], [commit_ts - 1], [payload])
        sent += cut_into_parts(block) if parts and len(payload) > LARGE // 2 else [block]
    return sent


def pull(files: LargeFiles, *binlogs: tuple[int, bytes], pump: str = "p", parts: bool = True) -> list[pa.RecordBatch]:
    sent = send(*binlogs, parts=parts)
    return list(pull_batches(pump, cast("PumpReader", Stream(*sent)), 0, HI, files))


def digest(files: LargeFiles, folder: Path, *batches: pa.RecordBatch) -> Pulled:
    rows = pa.Table.from_batches([*batches, build_proof("p", HI)])
    return Pulled([digest_pulled(rows, Bounds(0, HI), str(folder), Keeper(0), None, files)], str(folder))


def read(pulled: Pulled) -> pa.Table:
    names = [name for name in BINLOG_ARROW.names if name != "commit_date"]
    batches = [batch for rows in pulled.sum_stored().rows for batch in rows.read(names)]
    table = pa.Table.from_batches(batches).sort_by([("commit_ts", "ascending"), ("chunk", "ascending")])
    return cast("pa.Table", table)


BINLOGS = ((3, b"\xff\xff"), (5, encode(5, 60)), (6, encode(6, 3)), (7, encode(7, 25)), (9, encode(9, 40, tables=9)))
"""Damaged and small; large; small; sent in parts, but not large; large, with borders of tables all over the chunks."""


@pytest.mark.parametrize("parts", [True, False], ids=["in parts", "in blocks"])
def test_rows_counts_and_digests_are_those_of_a_pull_that_holds_all(tmp_path: Path, *, parts: bool) -> None:
    with LargeFiles(str(tmp_path)) as files:
        batches = pull(files, *BINLOGS, parts=parts)
        heads = pa.Table.from_batches(batches)
        assert [size for size in heads["written"].to_pylist() if size] == [len(BINLOGS[1][1]), len(BINLOGS[4][1])]
        assert heads["content"].to_pylist()[1] == digest_content(BINLOGS[1][1])
        assert heads["content"].to_pylist()[4] == digest_content(BINLOGS[4][1])
        pulled = digest(files, tmp_path, *batches)
    found = read(pulled)
    by_commit: dict[int, bytes] = {}
    for row in found.to_pylist():
        assert row["start_ts"] == row["commit_ts"] - 1
        assert row["schema_version"] == (0 if row["commit_ts"] == 3 else 7)
        by_commit[row["commit_ts"]] = by_commit.get(row["commit_ts"], b"") + row["payload"]
    assert by_commit == dict(BINLOGS)
    sizes = [len(row["payload"]) for row in found.to_pylist() if row["commit_ts"] == 5]
    assert sizes[:-1] == [CHUNK] * (len(sizes) - 1)
    stored = pulled.sum_stored()
    whole = measure_landed(found)
    assert (stored.landed.digest, stored.landed.bytes) == (whole.digest, whole.bytes)
    assert (stored.landed.dml, stored.landed.chunks) == (5, found.num_rows - 5)
    assert pulled.ranges[0].bytes == sum(len(payload) for _, payload in BINLOGS)
    assert pulled.survey()["p"].entities == 5
    assert [pulled.find_first_row(since, 7) for since in (0, 4, 6, 8)] == [5, 5, 6, 9]


def test_one_copy_of_two_pumps_stays_and_a_conflict_is_found(tmp_path: Path) -> None:
    with LargeFiles(str(tmp_path)) as files:
        batches = [*pull(files, (5, encode(5, 60)), pump="b"), *pull(files, (5, encode(5, 60, key=b"other")), pump="a")]
        pulled = digest(files, tmp_path, *batches)
    assert pulled.find_conflict() is None
    assert set(read(pulled)["pump"].to_pylist()) == {"a"}
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    with LargeFiles(str(tmp_path)) as files:
        batches = [*pull(files, (5, encode(5, 60)), pump="b"), *pull(files, (5, encode(5, 61)), pump="a")]
        assert digest(files, tmp_path, *batches).find_conflict() == 5


@pytest.mark.parametrize(
    "change",
    [
        lambda binlog: binlog.__setattr__("ddl_job_id", 9),
        lambda binlog: binlog.__setattr__("ddl_schema_state", 5),
        lambda binlog: binlog.__setattr__("ddl_query", b"create table t (a int)"),
        lambda binlog: binlog.__setattr__("prewrite_value", binlog.prewrite_value + b"\x12\x7f"),
        lambda binlog: binlog.__setattr__("prewrite_value", b"\x12\x00" * 3000),
        lambda binlog: binlog.ClearField("ddl_schema_state"),
        lambda binlog: binlog.ClearField("start_ts"),
        lambda binlog: binlog.MergeFromString(b"\xb0\x06\x01"),
    ],
)
def test_unusual_binlogs_take_the_way_of_all_others(tmp_path: Path, change: object) -> None:
    binlog = pb.Binlog.FromString(encode(5, 60))
    change(binlog)  # type: ignore[operator]
    payload = binlog.SerializeToString()
    with LargeFiles(str(tmp_path)) as files:
        found = pa.Table.from_batches(pull(files, (5, payload)))
        assert b"".join(found["payload"].to_pylist()[:-1]) == payload
        assert found["written"].null_count == found.num_rows
        assert set(found["content"].to_pylist()[:-1]) == {digest_content(payload)}
        assert set(found["job_id"].to_pylist()[:-1]) == {binlog.ddl_job_id}
        assert set(found["schema_version"].to_pylist()[:-1]) == {parse_binlog(payload)[1] or 0}
        read(digest(files, tmp_path, *pull(files, (5, payload))))
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_what_no_range_takes_is_deleted_and_what_is_cut_off_too(tmp_path: Path) -> None:
    with LargeFiles(str(tmp_path)) as files:
        pulled = digest(files, tmp_path, *pull(files, *BINLOGS))
        pull(files, (5, encode(5, 60)), pump="q")
    cut = pulled.cut(8, Keeper(0))
    assert read(cut)["commit_ts"].to_pylist()[-1] == 7
    assert isinstance(cut.ranges[0].large[0], WrittenTransaction)
    pulled.discard(cut)
    files_left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")}
    assert files_left == {part.path for part in cut.sum_stored().parts}
    cut.discard()
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_writer_ends_when_the_pull_does(tmp_path: Path) -> None:
    with LargeFiles(str(tmp_path)) as files:
        files.stop()
        with pytest.raises(PullStopped):
            pull(files, (5, encode(5, 60)))
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_large_one_behind_the_window_is_not_pulled(tmp_path: Path) -> None:
    first = send((21, encode(21, 60)))[0]
    with LargeFiles(str(tmp_path)) as files:
        [proof] = pull_batches("p", cast("PumpReader", Stream(first)), 0, HI, files)
    assert (proof["kind"].to_pylist(), proof["commit_ts"].to_pylist()) == (["proof"], [21])


def test_a_window_ends_at_its_bytes_of_large_ones(tmp_path: Path) -> None:
    class Pump(PumpPull):
        def pull_pump(self, place: int, files: LargeFiles) -> Iterator[pa.RecordBatch]:
            del place
            sent = send(*((ts, encode(ts, 60)) for ts in range(3, 12)))
            return pull_batches("p", cast("PumpReader", Stream(*sent)), self.lo, self.hi, files)

    pump = Pump((("p", "host:1"),), 1, 0, HI, 1.0)
    [first, *_] = ranges = PullTask(pump, str(tmp_path), Keeper(0), 8000)(Bounds(0, HI))
    assert first.bounds.hi == 3
    assert sum(one.bytes for one in ranges) < 3 * len(encode(3, 60))
    left = {part.path for part in Pulled(ranges, str(tmp_path)).sum_stored().parts}
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.parquet")} == left


def test_memory_does_not_grow_with_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binlogfiles, "CHUNK_BYTES", 100_000)
    monkeypatch.setattr(blocks, "PART_BYTES", 50_000)
    payload = encode(5, 40_000)
    sent = iter([replace_data(part) for part in send((5, payload))])

    class Reader(Stream):
        def pull_parts(self, lo: int, hi: int) -> Iterator[BinlogBlock | BinlogPart]:
            del lo, hi
            for part in sent:
                in_arrow.append(pa.total_allocated_bytes())
                # As from a socket: each part has bytes of its own.
                yield part._replace(data=memoryview(bytes(part.data)))

    in_arrow: list[int] = []
    with LargeFiles(str(tmp_path)) as files:
        tracemalloc.start()
        list(pull_batches("p", cast("PumpReader", Reader()), 0, HI, files))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(payload) > 3_600_000
    assert peak < 1_000_000
    assert max(in_arrow) - in_arrow[0] < 1_000_000


def replace_data(part: BinlogBlock | BinlogPart) -> BinlogPart:
    assert isinstance(part, BinlogPart)
    return part
