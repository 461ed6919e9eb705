"""A source removed from the configuration does not block the others: its uncommitted batches are rolled back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from feeder_helpers import CountingClock, MemoryPumps, position, rows

from binlake.cluster.source.protocol import Absent, Committed, Locked, RolledBack, Status, read_status
from binlake.pump_service.feeder.journal import FeederJournal, LoadedChunk, ReadPosition
from binlake.pump_service.feeder.publisher import SourcePublisher, UncommittedBatches
from binlake.pump_service.feeder.snapshot.loadstate import build_load_facts, read_load_record, read_outdated_tables
from binlake.pump_service.feeder.sources import FLAVOR, describe_removed, list_known_sources, roll_back_removed_loads
from binlake.pump_service.feeder.status import JournalTransactions
from binlake.pump_service.statusport import format_go_json
from binlake.wire import binlog_pb2 as pb

LOADED, OTHER = "shard-2", "shard-1"
TABLE = (LOADED, "d", "t")
BODY = '{"table_id": 7, "rows": 3, "chunks": 1, "done": false, "ranges": []}'


class World:
    """A feeder's journal and publisher, with a load of `LOADED` in the middle; `restart` is a kill -9 and a new process
    of a feeder that reads `OTHER`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock, self.pumps = CountingClock(), MemoryPumps()
        self._open()
        self.journal.set_facts({FLAVOR + source: "mariadb" for source in (OTHER, LOADED)})
        self.publisher.publish(OTHER, rows(1, 1), position(1))
        definitions = UncommittedBatches(LOADED)
        self.publisher.prewrite(definitions, rows(2, 1))
        self.publisher.commit(definitions, position(2), build_load_facts(LOADED, {"state": "loading", "tables": 1}))
        for first in (3, 6):
            batches = self.publisher.prewrite(UncommittedBatches(LOADED), rows(first, 3))
            self.journal.store_chunks([LoadedChunk(TABLE, BODY, 0, batches)])
        self.chunks = self.pumps.of_type(pb.Prewrite)[2:]

    def _open(self) -> None:
        self.journal = FeederJournal(self.folder)
        self.publisher = SourcePublisher(self.journal, self.pumps, self.clock, threading.Event())

    def restart(self) -> None:
        # close() only adds a note that saves work; after a crash the result is the same without it
        self.journal.close()
        self._open()

    def ask(self, prewrites: list[pb.Binlog], *named: str) -> set[Status]:
        """The answers of a feeder that reads `named`."""
        transactions = JournalTransactions(self.journal, list_known_sources(self.journal).union(named))
        answers = [(transactions.answer(prewrite.prewrite_key, 0), prewrite.start_ts) for prewrite in prewrites]
        return {read_status(format_go_json(answer), start_ts) for answer, start_ts in answers}

    def rolled_back(self) -> list[int]:
        return [rollback.start_ts for rollback in self.pumps.of_type(pb.Rollback)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "feeder")
    yield made
    made.journal.close()


def test_the_load_of_a_removed_source_is_rolled_back_at_the_pumps_once(world: World) -> None:  # S4-24 R-34
    last = world.journal.read_last_commit_ts()
    world.restart()
    assert world.ask(world.chunks) == {Locked()}
    roll_back_removed_loads(world.journal, [OTHER])
    assert world.publisher.roll_back_previous() == 6
    # Each of the two pumps gets each rollback once.
    assert world.rolled_back() == [chunk.start_ts for chunk in world.chunks for _ in range(2)]
    assert world.ask(world.chunks) == {RolledBack()}
    assert describe_removed(world.journal, [OTHER]) == [
        {
            "source": LOADED,
            "state": "removed",
            "load": {"state": "rolled back", "rows": 3, "tables": 1, "tables_done": 0},
        }
    ]
    # It is loaded again when it returns, and the registry still recognises the folder as the newest one.
    assert (read_load_record(world.journal, LOADED), set(world.journal.read_positions())) == ({}, {OTHER})
    assert world.journal.read_load_tables(LOADED) == {}
    assert world.journal.read_last_commit_ts() == last
    world.restart()
    roll_back_removed_loads(world.journal, [OTHER])
    assert world.publisher.roll_back_previous() == 0
    assert world.journal.read_last_commit_ts() == last
    assert describe_removed(world.journal, [OTHER, LOADED]) == []


def test_tables_with_visible_rows_are_created_again_when_the_source_returns(world: World) -> None:
    shown = LoadedChunk((LOADED, "d", "shown"), BODY.replace("}", ', "visible": true}'), 0, ())
    world.journal.store_chunks([shown])
    world.restart()
    roll_back_removed_loads(world.journal, [OTHER])
    world.restart()
    assert read_outdated_tables(world.journal, LOADED) == [("d", "shown")]


def test_after_a_kill_the_next_process_sends_the_rollbacks(world: World) -> None:
    world.restart()
    roll_back_removed_loads(world.journal, [OTHER])
    world.restart()
    roll_back_removed_loads(world.journal, [OTHER])
    assert world.ask(world.chunks) == {RolledBack()}
    assert world.publisher.roll_back_previous() == 6


def test_prewrites_that_a_power_cut_left_are_rolled_back_too(world: World) -> None:
    world.journal.close()
    (world.folder / "open").write_bytes(b"")  # the file of notes next to the journal is not synced
    world._open()
    roll_back_removed_loads(world.journal, [OTHER])
    assert world.publisher.roll_back_previous() == 6


def test_the_load_of_a_configured_source_continues(world: World) -> None:
    world.restart()
    roll_back_removed_loads(world.journal, [OTHER, LOADED])
    assert world.publisher.roll_back_previous() == 0
    assert world.ask(world.chunks) == {Locked()}
    assert read_load_record(world.journal, LOADED)["state"] == "loading"


def test_a_removed_source_past_its_load_is_answered_for_and_keeps_its_position(world: World) -> None:
    world.publisher.publish(OTHER, rows(9, 2), position(10))
    world.publisher.prewrite(UncommittedBatches(OTHER), rows(11, 2))
    prewrites = world.pumps.of_type(pb.Prewrite)[-4:]
    positions = world.journal.read_positions()
    world.restart()
    roll_back_removed_loads(world.journal, [LOADED])
    assert world.publisher.roll_back_previous() == 2
    commits = world.pumps.of_type(pb.Commit)[-2:]
    assert world.ask(prewrites[:2]) == {Committed(commit.commit_ts) for commit in commits}
    assert world.ask(prewrites[2:]) == {RolledBack()}
    assert world.journal.read_positions() == positions
    assert world.publisher.resend_commits() == 4
    (shown,) = describe_removed(world.journal, [LOADED])
    assert (shown["source"], shown["state"], shown["last_id"]) == (OTHER, "removed", "0-1-10")


def test_a_source_that_is_not_in_the_journal_belongs_to_another_feeder(world: World) -> None:
    stranger = SourcePublisher(world.journal, world.pumps, world.clock, threading.Event())
    stranger.prewrite(UncommittedBatches("shard-3"), rows(1, 1))
    assert world.ask(world.pumps.of_type(pb.Prewrite)[-1:]) == {Absent()}
    assert world.ask(world.pumps.of_type(pb.Prewrite)[-1:], "shard-3") == {Locked()}


def test_the_greatest_commit_ts_of_removed_sources_is_kept(world: World) -> None:
    world.journal.set_facts(build_load_facts(OTHER, {"state": "loading"}))
    world.journal.set_position(OTHER, ReadPosition(position(1), commit_ts=1))
    last = world.journal.read_last_commit_ts()
    for named in ([OTHER], []):
        roll_back_removed_loads(world.journal, named)
        assert world.journal.read_last_commit_ts() == last
    assert world.journal.read_positions() == {}
