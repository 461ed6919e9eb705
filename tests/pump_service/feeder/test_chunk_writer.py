"""Chunks are prewritten together as they are read, and stored once their last value is prewritten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from feeder_helpers import CountingClock, MemoryPumps

from binlake.mysqlbinlog.model import BinlogPosition
from binlake.mysqlbinlog.tablerows.ranges import Chunk
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.snapshot import chunkwriter
from binlake.pump_service.feeder.snapshot.chunkwriter import ChunkWriter
from binlake.pump_service.feeder.snapshot.loadstate import LoadState, SnapshotPosition
from binlake.pump_service.feeder.snapshot.reading import Value
from binlake.wire import binlog_pb2 as pb

A, B = ("d", "a"), ("d", "b")
POSITION = SnapshotPosition(BinlogPosition("bin.000001", 40, ""), "server-1")


class Loading:
    """A ChunkWriter over a journal and pumps in memory; a prewrite goes out with every 10 bytes."""

    def __init__(self, journal: FeederJournal, snapshots: int = 2) -> None:
        self.journal, self.pumps = journal, MemoryPumps()
        self.load = LoadState(journal, "s1")
        self.load.fit_tables({A: 7, B: 8})
        for _ in range(snapshots):
            journal.set_facts(self.load.start_snapshot(POSITION, 1))
        publisher = SourcePublisher(journal, self.pumps, CountingClock(100), threading.Event())
        self.writer = ChunkWriter(publisher, "s1", self.load, began_ms=1_700_000_000_000)

    def claim(self, table: tuple[str, str], high: str) -> Chunk:
        left = self.load.tables[table].ranges.find_next()
        assert left is not None
        self.load.tables[table].ranges.claim(left, high)
        return Chunk(left.low, high, "")

    def add(self, table: tuple[str, str], chunk: Chunk, value: bytes, *, rows: int = 1, is_last: bool = False) -> None:
        self.writer.add(Value(table, rows, value, chunk, is_last))

    def values(self) -> list[bytes]:
        return [prewrite.prewrite_value for prewrite in self.pumps.of_type(pb.Prewrite)]

    def read(self) -> dict[str, tuple[list[tuple[str, str, int]], int, int]]:
        """What the next process reads: ranges, rows and chunks of each table that has any."""
        tables = LoadState(self.journal, "s1").tables
        return {name: (table.ranges.store(), table.rows, table.chunks) for (_, name), table in tables.items()}


@pytest.fixture
def loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loading]:
    monkeypatch.setattr(chunkwriter, "_PREWRITE_BYTES", 10)
    with closing(FeederJournal(tmp_path)) as journal:
        yield Loading(journal)


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Loading]:
    """The writer of a load's first snapshot."""
    with closing(FeederJournal(tmp_path)) as journal:
        yield Loading(journal, snapshots=1)


def read_commits(loading: Loading) -> list[bytes]:
    values = {prewrite.start_ts: prewrite.prewrite_value for prewrite in loading.pumps.of_type(pb.Prewrite)}
    return [values[commit.start_ts] for commit in loading.pumps.of_type(pb.Commit)]


def test_a_chunk_of_the_first_snapshot_is_committed_with_its_record(first: Loading) -> None:
    whole, part = first.claim(A, "5"), first.claim(B, "")
    first.add(A, whole, b"a1")
    first.add(B, part, b"b1")
    first.writer.flush()
    assert read_commits(first) == []
    first.add(A, whole, b"a2", rows=4, is_last=True)
    first.writer.flush()
    assert read_commits(first) == [b"a1", b"a2"]
    assert first.read() == {"a": ([("", "5", 0), ("5", "", -1)], 5, 1)}
    assert LoadState(first.journal, "s1").read_batches() == {0: []}
    assert first.journal.read_positions()["s1"].position == POSITION.position
    # If the table must be read again, its name stays until the definitions have dropped it.
    again = LoadState(first.journal, "s1")
    again.read_again([A, B])
    assert LoadState(first.journal, "s1").outdated == [A]
    first.journal.set_facts(again.start_snapshot(POSITION, 1))
    assert LoadState(first.journal, "s1").outdated == []


def test_a_chunk_whose_table_may_have_moved_stays_open(first: Loading) -> None:
    chunk = first.claim(A, "")
    first.writer.add(Value(A, 1, b"a1", chunk, is_last=True, may_have_moved=True))
    first.writer.flush()
    assert (read_commits(first), first.journal.find_outcome(100)) == ([], -1)
    first.load.forget()
    assert LoadState(first.journal, "s1").outdated == []


def test_a_chunk_is_stored_only_once_all_of_it_is_prewritten(loading: Loading) -> None:
    first, other = loading.claim(A, "5"), loading.claim(B, "")
    loading.add(A, first, b"a1234", rows=2)
    loading.add(B, other, b"b123")
    assert loading.values() == []
    loading.add(A, first, b"!", rows=3)
    assert (loading.values(), loading.read()) == ([b"a1234", b"!", b"b123"], {})
    loading.add(A, first, b"a2", rows=4, is_last=True)
    assert loading.read() == {}
    loading.writer.flush()
    assert loading.values()[3:] == [b"a2"]
    assert loading.read() == {"a": ([("", "5", 1), ("5", "", -1)], 9, 1)}
    # Its batches are stored with it, those of the other table are open in this process.
    none, batches = LoadState(loading.journal, "s1").read_batches().values()
    assert none == []
    assert [(batch.first_start, batch.count) for batch in batches] == [(100, 2), (103, 1)]
    assert [loading.journal.find_outcome(start) for start in range(100, 105)] == [-1, -1, -1, -1, 0]
    # The next chunk of the table is separate.
    more = loading.claim(A, "")
    loading.add(A, more, b"0123456789", is_last=True)
    loading.add(B, other, b"0123456789", is_last=True)
    assert loading.read() == {"a": ([("", "", 1)], 10, 2), "b": ([("", "", 1)], 2, 1)}


def test_a_chunk_without_rows_is_stored_and_nothing_is_sent(loading: Loading) -> None:
    loading.add(A, loading.claim(A, ""), b"", rows=0, is_last=True)
    loading.writer.flush()
    assert (loading.values(), loading.read()) == ([], {"a": ([("", "", 1)], 0, 1)})
    loading.writer.flush()
    assert loading.read() == {"a": ([("", "", 1)], 0, 1)}


def test_bytes_are_counted_since_the_last_request(loading: Loading) -> None:
    chunk = loading.claim(A, "")
    counts = []
    for _ in range(8):
        loading.add(A, chunk, b"123")
        counts.append(len(loading.values()))
    assert counts == [0, 0, 0, 4, 4, 4, 4, 8]


def test_incomplete_chunks_are_rolled_back(loading: Loading) -> None:
    whole, part = loading.claim(A, ""), loading.claim(B, "")
    loading.add(A, whole, b"12345", is_last=True)
    loading.add(B, part, b"12345")
    assert [loading.journal.find_outcome(start) for start in (100, 101)] == [-1, -1]
    loading.writer.abandon()
    assert [loading.journal.find_outcome(start) for start in (100, 101)] == [-1, 0]


def test_transaction_ids_are_unique_across_snapshots(tmp_path: Path) -> None:
    with closing(FeederJournal(tmp_path)) as journal:
        loading = Loading(journal, snapshots=3)
        chunk = loading.claim(A, "")
        for _ in range(2):
            loading.add(A, chunk, b"1")
        loading.add(A, chunk, b"2", is_last=True)
        loading.writer.flush()
        keys = [prewrite.prewrite_key.decode() for prewrite in loading.pumps.of_type(pb.Prewrite)]
        assert [key.split("|", 1)[1] for key in keys] == [
            f"s1|snapshot-bin.000001:40-2-{number}|1700000000000" for number in (1, 2, 3)
        ]


def test_what_has_waited_for_long_is_prewritten(first: Loading, monkeypatch: pytest.MonkeyPatch) -> None:
    now = chunkwriter.time.monotonic()
    chunk = first.claim(A, "")
    first.add(A, chunk, b"1", is_last=True)
    first.writer.flush_if_due()
    assert read_commits(first) == []
    monkeypatch.setattr(chunkwriter.time, "monotonic", lambda: now + 3)
    first.writer.flush_if_due()
    assert read_commits(first) == [b"1"]
    first.add(A, Chunk("", "", ""), b"2")
    assert len(first.values()) == 1
