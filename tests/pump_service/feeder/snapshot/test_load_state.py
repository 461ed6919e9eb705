"""What the journal stores of an interrupted load, and how the next process continues it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from binlake.mysqlbinlog.model import BinlogPosition
from binlake.mysqlbinlog.tablerows.ranges import Chunk, KeyRange
from binlake.pump_service.feeder.journal import Batch, FeederJournal
from binlake.pump_service.feeder.snapshot import loadstate
from binlake.pump_service.feeder.snapshot.loadstate import (
    LoadState,
    SnapshotPosition,
    build_load_facts,
    read_load_record,
)
from binlake.pump_service.feeder.snapshot.reading import Value

A, B = ("d", "a"), ("d", "b")
FIRST = SnapshotPosition(BinlogPosition("bin.000001", 40, "0-1-9"), "server-1")
SECOND = SnapshotPosition(BinlogPosition("bin.000002", 4, ""), "server-2")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[FeederJournal]:
    with closing(FeederJournal(tmp_path)) as made:
        yield made


def start_load(
    journal: FeederJournal, tables: dict[tuple[str, str], int], position: SnapshotPosition = FIRST
) -> LoadState:
    load = LoadState(journal, "s1")
    load.fit_tables(tables)
    journal.set_facts(load.start_snapshot(position, 77))
    return load


def store_chunk(load: LoadState, table: tuple[str, str], low: str, high: str, first_start: int, rows: int = 3) -> None:
    """Mark the range (low, high] as read and prewritten, in one batch of two."""
    ranges = load.tables[table].ranges
    claimed = ranges.find_next()
    assert claimed is not None
    assert claimed.low == low
    ranges.claim(claimed, high)
    value = Value(table, 0, b"", Chunk(low, high, ""), is_last=True)
    batches = [Batch(first_start, ("k", "l"), ("p", "p"))]
    load.store_chunks([load.finish_chunk(value, rows, batches, is_visible=False)])


def test_a_load_continues_from_the_journal(journal: FeederJournal) -> None:
    load = start_load(journal, {A: 7, B: 8})
    store_chunk(load, A, "", "5", 100)
    store_chunk(load, A, "5", "", 110, rows=4)
    store_chunk(load, B, "", "'x'", 120)
    again = LoadState(journal, "s1")
    assert (again.from_ts, again.began, again.snapshots) == (77, load.began, [FIRST])
    assert {
        name: (load.table_id, load.rows, load.chunks, load.ranges.store()) for name, load in again.tables.items()
    } == {
        A: (7, 7, 2, [("", "", 0)]),
        B: (8, 3, 1, [("", "'x'", 0), ("'x'", "", -1)]),
    }
    assert not again.is_read
    assert read_load_record(journal, "s1") == {
        "state": "loading", "from_ts": "77", "began": load.began, "tables": 2, "rows": 10, "tables_done": 1, "bytes": 0,
        "snapshots": [{"position": ["bin.000001", 40, "0-1-9"], "server": "server-1"}],
    }  # fmt: skip
    # The next snapshot reads the rest.
    again.fit_tables({A: 7, B: 8})
    journal.set_facts(again.start_snapshot(SECOND, 90))
    store_chunk(again, B, "'x'", "", 130)
    assert again.is_read
    last = LoadState(journal, "s1")
    assert (last.is_read, last.snapshots, last.from_ts) == (True, [FIRST, SECOND], 90)
    assert last.tables[B].ranges.store() == [("", "'x'", 0), ("'x'", "", 1)]
    assert {number: [batch.first_start for batch in batches] for number, batches in last.read_batches().items()} == {
        0: [100, 110, 120], 1: [130],
    }  # fmt: skip


def test_a_snapshot_without_stored_chunks_has_no_batches(journal: FeederJournal) -> None:
    load = start_load(journal, {A: 7})
    store_chunk(load, A, "", "", 100)
    journal.set_facts(load.start_snapshot(SECOND, 78))
    assert [len(some) for some in LoadState(journal, "s1").read_batches().values()] == [1, 0]


def test_a_load_is_incomplete_before_all_tables_are_known_and_a_snapshot_was_taken(journal: FeederJournal) -> None:
    assert not LoadState(journal, "s1").is_read
    empty = start_load(journal, {})
    assert empty.is_read
    # One of two tables is read, and the other is not known yet.
    load = start_load(journal, {A: 7, B: 8})
    store_chunk(load, A, "", "", 100)
    again = LoadState(journal, "s1")
    assert (list(again.tables), again.is_read) == ([A], False)
    again.fit_tables({A: 7, B: 8})
    assert (sorted(again.tables), again.is_read) == ([A, B], False)


def test_chunks_of_a_table_that_was_replaced_are_rolled_back(journal: FeederJournal) -> None:
    load = start_load(journal, {A: 7, B: 8})
    store_chunk(load, A, "", "", 100)
    store_chunk(load, B, "", "'x'", 120)
    assert [journal.find_outcome(start) for start in (99, 100, 101, 120, 121, 122)] == [0, 0, 0, 0, 0, 0]
    for first in (100, 120):
        journal.mark_open(first, 2)
    again = LoadState(journal, "s1")
    again.fit_tables({A: 9, B: 8})
    assert (again.tables[A].table_id, again.tables[A].ranges.find_next()) == (9, KeyRange("", ""))
    assert again.tables[B].chunks == 1
    assert again.snapshots == [FIRST]
    assert [journal.find_outcome(start) for start in (100, 101, 120, 121)] == [0, 0, -1, -1]
    # Nothing of the first snapshot remains, so the next one counts as the first.
    again.fit_tables({A: 9})
    assert (list(again.tables), again.snapshots) == ([A], [])
    assert journal.find_outcome(120) == 0
    assert not journal.read_load_tables("s1")


def test_each_source_has_its_own_load_state(journal: FeederJournal) -> None:
    store_chunk(start_load(journal, {A: 7}), A, "", "", 100)
    other = LoadState(journal, "s2")
    assert (other.tables, other.snapshots, other.from_ts, other.read_batches()) == ({}, [], 0, {})


def test_a_forgotten_load_starts_again_with_a_new_start_time(
    journal: FeederJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loadstate.time, "time", lambda: 1000.5)
    load = start_load(journal, {A: 7})
    store_chunk(load, A, "", "", 100)
    load.forget()
    monkeypatch.setattr(loadstate.time, "time", lambda: 2000.5)
    again = LoadState(journal, "s1")
    assert (again.tables, again.snapshots, again.from_ts, again.began) == ({}, [], 77, 1000.5)
    assert not again.is_read
    # A finished load is not continued.
    journal.set_facts(
        build_load_facts("s1", {"state": "done", "rows": 5, "commit_ts": "9", "tables": 1, "from_ts": "3"})
    )
    assert read_load_record(journal, "s1")["rows"] == 5
    assert (LoadState(journal, "s1").from_ts, LoadState(journal, "s1").began) == (0, 2000.5)
    assert read_load_record(journal, "s3") == {}
