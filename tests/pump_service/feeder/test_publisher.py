"""Which messages the pumps get, in which order, and after a crash at any point: each source transaction once (R-10)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from feeder_helpers import CountingClock, MemoryPumps, ddl, position, rows

from binlake.cluster.source.protocol import Absent, Committed, Locked, RolledBack, Status, read_status
from binlake.errors import Permanent, SourceUnavailable, Transient
from binlake.pump_service.feeder.journal import FeederJournal, LoadedChunk, ReadPosition
from binlake.pump_service.feeder.journalfiles import OpenBatches
from binlake.pump_service.feeder.publisher import (
    Outgoing,
    SourcePublisher,
    Stopped,
    UncommittedBatches,
    build_key,
    read_key,
)
from binlake.pump_service.feeder.status import JournalHistory, JournalTransactions
from binlake.pump_service.statusport import format_go_json
from binlake.wire import binlog_pb2 as pb

SOURCE = "shard-1"
_FAR = (1 << 63) - 1


class World:
    """A publisher over a journal on disk; `restart` is a kill -9 and a new process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = CountingClock()
        self.pumps = MemoryPumps(clock=self.clock)
        self.stopped = threading.Event()
        self._open()

    def _open(self) -> None:
        self.journal = FeederJournal(self.folder)
        self.publisher = SourcePublisher(self.journal, self.pumps, self.clock, self.stopped)

    def restart(self) -> None:
        # close() only adds a note that saves work; after a crash the result is the same without it
        self.journal.close()
        self._open()

    def status(self, prewrite: pb.Binlog) -> Status:
        answer = JournalTransactions(self.journal, frozenset([SOURCE])).answer(prewrite.prewrite_key, 0)
        return read_status(format_go_json(answer), prewrite.start_ts)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "feeder")
    yield made
    made.journal.close()


def test_commit_ts_is_fetched_after_the_prewrite_is_acked(world: World) -> None:
    world.publisher.publish(SOURCE, rows(1, 3), position(3))
    world.publisher.publish(SOURCE, rows(4, 2), position(5))
    prewrites, commits = world.pumps.of_type(pb.Prewrite), world.pumps.of_type(pb.Commit)
    assert [prewrite.prewrite_value for prewrite in prewrites] == [b"value-%d" % n for n in range(1, 6)]
    assert [commit.start_ts for commit in commits] == [prewrite.start_ts for prewrite in prewrites]
    assert [commit.prewrite_key for commit in commits] == [prewrite.prewrite_key for prewrite in prewrites]
    # commit_ts increases in the source's order, and each was fetched after the ack of its prewrite
    assert [commit.commit_ts for commit in commits] == sorted(commit.commit_ts for commit in commits)
    assert commits[0].commit_ts > world.pumps.clock_at_ack[0]
    assert commits[3].commit_ts > world.pumps.clock_at_ack[1]
    assert world.pumps.sent_to == [f"pump{prewrite.start_ts % 2}" for prewrite in prewrites]
    assert [world.status(prewrite) for prewrite in prewrites] == [Committed(commit.commit_ts) for commit in commits]
    assert world.journal.read_positions() == {SOURCE: ReadPosition(position(5), "0-1-5", 1005, commits[-1].commit_ts)}


def test_the_key_holds_the_sources_identity_and_time(world: World) -> None:
    #
    world.publisher.publish(SOURCE, rows(7, 1), position(7))
    (prewrite,) = world.pumps.of_type(pb.Prewrite)
    assert prewrite.prewrite_key == b"t" + bytes(8) + b"_r" + prewrite.start_ts.to_bytes(8) + b"|shard-1|0-1-7|1007"
    assert read_key(prewrite.prewrite_key) == (prewrite.start_ts, "shard-1|0-1-7|1007")
    assert read_key(prewrite.prewrite_key[:19]) is None
    assert read_key(b"t" * 30) is None


@pytest.mark.parametrize("failing", ["clock", "pumps"])
def test_publishing_waits_for_pd_and_pumps(world: World, failing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []

    def wait(_: float) -> bool:
        seen.append(dict(world.publisher.blocked))
        return False

    monkeypatch.setattr(world.stopped, "wait", wait)
    getattr(world, failing).failures = 3
    world.publisher.publish(SOURCE, rows(1, 2), position(2))
    assert len(seen) == world.publisher.retries.total() == 3
    assert all(SOURCE in message for message in seen)
    assert not world.publisher.blocked
    assert len(world.pumps.of_type(pb.Prewrite)) == len(world.pumps.of_type(pb.Commit)) == 2


def test_stopped_while_waiting_commits_nothing(world: World) -> None:
    world.pumps.failures = 1
    world.stopped.set()
    with pytest.raises(Stopped):
        world.publisher.publish(SOURCE, rows(1, 2), position(2))
    assert not world.journal.read_positions()
    assert not world.pumps.got


def test_a_transaction_not_in_the_journal_is_rolled_back_and_published_again(world: World) -> None:
    # S4-49
    uncommitted = UncommittedBatches(SOURCE)
    world.publisher.prewrite(uncommitted, rows(1, 2))
    prewrites = world.pumps.of_type(pb.Prewrite)
    assert [world.status(prewrite) for prewrite in prewrites] == [Locked(), Locked()]
    world.restart()
    assert [world.status(prewrite) for prewrite in prewrites] == [RolledBack(), RolledBack()]
    assert world.publisher.resend_commits() == 0
    assert not world.journal.read_positions()
    world.publisher.publish(SOURCE, rows(1, 2), position(2))
    assert [commit.start_ts for commit in world.pumps.of_type(pb.Commit)] == [
        prewrite.start_ts for prewrite in world.pumps.of_type(pb.Prewrite)[2:]
    ]


@pytest.mark.long
def test_uncommitted_batches_of_a_killed_process_are_rolled_back_at_every_pump(world: World) -> None:
    # S4-49 S0-51
    world.publisher.publish(SOURCE, rows(1, 2), position(2))
    world.publisher.prewrite(UncommittedBatches(SOURCE), rows(3, 3))
    left = [prewrite.start_ts for prewrite in world.pumps.of_type(pb.Prewrite)[2:]]
    with (world.folder / "open").open("ab") as file:
        file.write(b"half a note")
    world.restart()
    world.pumps.failures = 2
    assert world.publisher.roll_back_previous() == 3
    sent = [(rollback.start_ts, rollback.commit_ts) for rollback in world.pumps.of_type(pb.Rollback)]
    assert sent == [(start_ts, 0) for start_ts in left for _ in range(2)]
    assert world.pumps.sent_to[-6:] == ["pump0", "pump1"] * 3
    world.publisher.publish(SOURCE, rows(3, 3), position(5))
    world.restart()
    assert world.publisher.roll_back_previous() == 0


def test_the_file_of_open_batches_stays_small_and_lists_all_open_ones(tmp_path: Path) -> None:
    batches = OpenBatches(tmp_path / "open")
    batches.add(7, 3)
    for number in range(10, 20_000):
        batches.add(number, 1)
        batches.remove(number)
    assert (tmp_path / "open").stat().st_size < 100_000
    batches.close()
    again = OpenBatches(tmp_path / "open")
    assert (7, 3) in again.from_previous
    again.add(1, 1)
    again.forget_previous()
    again.close()
    last = OpenBatches(tmp_path / "open")
    assert last.from_previous == [(1, 1)]
    last.close()


def test_commits_in_the_journal_are_sent_again_after_a_kill(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # S4-49
    def crash(*_: object) -> str:
        raise RuntimeError("kill -9")

    monkeypatch.setattr(world.pumps, "send_commit", crash)
    with pytest.raises(RuntimeError):
        world.publisher.publish(SOURCE, [*rows(1, 2), ddl(3, 77, "CREATE TABLE t (a INT)")], position(3))
    monkeypatch.undo()
    world.restart()
    prewrites = world.pumps.of_type(pb.Prewrite)
    assert world.journal.read_positions()[SOURCE].position == position(3)
    assert world.publisher.resend_commits() == 3
    commits = world.pumps.of_type(pb.Commit)
    assert [commit.start_ts for commit in commits] == [prewrite.start_ts for prewrite in prewrites]
    assert [world.status(prewrite) for prewrite in prewrites] == [Committed(commit.commit_ts) for commit in commits]
    assert (commits[2].ddl_query, commits[2].ddl_job_id) == (b"CREATE TABLE t (a INT)", 77)
    # once they are stored, the next process sends nothing
    for commit in commits:
        world.publisher.on_stored(commit.start_ts)
    assert world.publisher.unsent == 0
    world.restart()
    assert world.publisher.resend_commits() == 0
    assert [world.status(prewrite) for prewrite in prewrites] == [Committed(commit.commit_ts) for commit in commits]


def test_a_ddl_is_published_with_its_job(world: World) -> None:
    # S0-15
    for number in (1, 2, 3):
        world.publisher.publish(
            SOURCE, [ddl(number, 100 + number, f"CREATE TABLE t{number} (a INT)")], position(number)
        )
    prewrites, commits = world.pumps.of_type(pb.Prewrite), world.pumps.of_type(pb.Commit)
    assert [(prewrite.ddl_query, prewrite.ddl_job_id, prewrite.ddl_schema_state) for prewrite in prewrites] == [
        (b"CREATE TABLE t%d (a INT)" % n, 100 + n, 5) for n in (1, 2, 3)
    ]
    history = JournalHistory(world.journal)
    assert [job["id"] for job in history.list_finished_jobs(0)] == [101, 102, 103]
    assert [job["id"] for job in history.list_finished_jobs(0, 102, 1)] == [102]
    assert [job["id"] for job in history.list_finished_jobs(0, 102)] == [102, 101]
    for job, prewrite, commit in zip(history.list_finished_jobs(0), prewrites, commits, strict=True):
        assert job["start_ts"] == prewrite.start_ts
        assert job["binlog"]["FinishedTS"] > commit.commit_ts


def test_prewritten_transactions_are_committed_together_or_not_at_all(world: World) -> None:
    #
    uncommitted, dropped = UncommittedBatches(SOURCE), UncommittedBatches(SOURCE)
    for number in (1, 4):
        world.publisher.prewrite(uncommitted, rows(number, 3))
        world.publisher.prewrite(dropped, rows(number + 10, 1))
    world.publisher.abandon(dropped)
    last = world.publisher.commit(uncommitted, position(99), {"snapshot": "done"})
    commits = world.pumps.of_type(pb.Commit)
    assert [read_key(commit.prewrite_key)[1].split("|")[1] for commit in commits] == [f"0-1-{n}" for n in range(1, 7)]  # type: ignore[index]
    assert [commit.commit_ts for commit in commits] == list(range(commits[0].commit_ts, last + 1))
    assert world.journal.read_fact("snapshot") == "done"
    assert world.journal.read_positions()[SOURCE].position == position(99)
    gone = [
        prewrite
        for prewrite in world.pumps.of_type(pb.Prewrite)
        if prewrite.start_ts not in {c.start_ts for c in commits}
    ]
    assert [world.status(prewrite) for prewrite in gone] == [RolledBack(), RolledBack()]


def test_an_unknown_transaction_is_absent(world: World) -> None:
    foreign = pb.Binlog(start_ts=5, prewrite_key=build_key(5, "other|0-1-1|5"))
    assert world.status(foreign) == Absent()
    assert world.status(pb.Binlog(start_ts=5, prewrite_key=b"t\x80row")) == Absent()
    assert world.status(pb.Binlog(start_ts=_FAR, prewrite_key=build_key(_FAR, f"{SOURCE}|0-1-1|5"))) == Absent()


def test_old_answers_are_forgotten_but_never_an_unsent_commit(world: World) -> None:
    for number in (1, 3, 5):
        world.publisher.publish(SOURCE, rows(number, 2), position(number + 1))
    prewrites, commits = world.pumps.of_type(pb.Prewrite), world.pumps.of_type(pb.Commit)
    for commit in commits[:2]:
        world.publisher.on_stored(commit.start_ts)
    assert world.journal.forget_outcomes(1 << 60) == 1
    assert [world.status(prewrite) for prewrite in prewrites] == [
        Absent(), Absent(), *(Committed(commit.commit_ts) for commit in commits[2:])
    ]  # fmt: skip
    assert world.journal.forget_outcomes(1 << 60) == 0


def test_chunks_of_a_load_stay_undecided_until_all_are_committed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # S4-24: one request has several chunks; each is stored and dropped by itself
    monkeypatch.setattr("binlake.pump_service.feeder.publisher._MOST_COMMITS", 4)
    chunks = world.publisher.prewrite(UncommittedBatches(SOURCE), rows(1, 6), [1, 3, 2])
    assert [chunk.count for chunk in chunks] == [1, 3, 2]
    world.journal.store_chunks(
        [LoadedChunk((SOURCE, "d", f"t{n}"), f"body {n}", n % 2, [chunk]) for n, chunk in enumerate(chunks)]
    )
    world.publisher.prewrite(UncommittedBatches(SOURCE), rows(7, 1))  # in no complete chunk
    world.restart()
    prewrites = world.pumps.of_type(pb.Prewrite)
    assert [world.status(prewrite) for prewrite in prewrites] == [Locked()] * 6 + [RolledBack()]
    assert world.journal.forget_outcomes(_FAR) == 0
    assert world.journal.read_load_tables(SOURCE) == {("d", f"t{n}"): f"body {n}" for n in range(3)}
    world.journal.drop_chunks(SOURCE, [("d", "t1")])
    assert [world.status(prewrite) for prewrite in prewrites[1:4]] == [RolledBack()] * 3
    load_batches = list(world.journal.read_load_batches(SOURCE))
    assert load_batches == [(0, chunks[0]), (0, chunks[2])]
    uncommitted = UncommittedBatches(SOURCE, [batch for _, batch in load_batches])
    world.publisher.prewrite(uncommitted, rows(8, 3))
    last = world.publisher.commit(uncommitted, position(10), {"loaded": "yes"}, is_load=True)
    commits = world.pumps.of_type(pb.Commit)
    assert [commit.start_ts for commit in commits] == [
        prewrite.start_ts for prewrite in (prewrites[0], *prewrites[4:6])
    ] + [prewrite.start_ts for prewrite in world.pumps.of_type(pb.Prewrite)[-3:]]
    assert [commit.commit_ts for commit in commits] == sorted({commit.commit_ts for commit in commits})
    assert world.journal.read_positions()[SOURCE] == ReadPosition(position(10), "0-1-10", 1010, last)
    assert world.journal.read_load_tables(SOURCE) == {}
    world.restart()
    assert [world.status(prewrites[0]), world.status(prewrites[4])] == [
        Committed(commits[0].commit_ts), Committed(commits[1].commit_ts)
    ]  # fmt: skip


def test_a_second_process_on_the_folder_is_refused(world: World) -> None:
    with pytest.raises(Permanent, match="another process holds"):
        FeederJournal(world.folder)


def test_a_journal_of_another_version_is_refused(tmp_path: Path) -> None:
    journal = FeederJournal(tmp_path)
    journal.set_facts({"format": "99"})
    journal.close()
    for _ in range(2):  # the lock is free again
        with pytest.raises(Permanent, match="another version"):
            FeederJournal(tmp_path)


def test_a_journal_that_cannot_be_written_stops_the_publisher(world: World) -> None:
    world.journal._db.execute("PRAGMA query_only = ON")
    with pytest.raises(Transient, match="journal fails"):
        world.publisher.publish(SOURCE, rows(1, 1), position(1))
    assert not world.pumps.of_type(pb.Commit)
    world.journal._db.execute("PRAGMA query_only = OFF")


def test_many_threads_publish_for_their_sources(tmp_path: Path) -> None:
    clock = threading.Lock()
    world = World(tmp_path)

    def fetch(count: int) -> int:
        with clock:
            return int(world.clock(count))

    publisher = SourcePublisher(world.journal, world.pumps, fetch, world.stopped)

    def run(source: str) -> None:
        for number in range(1, 21, 2):
            publisher.publish(source, rows(number, 2), position(number + 1))

    threads = [threading.Thread(target=run, args=(f"s{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {source: read_position.last_id for source, read_position in world.journal.read_positions().items()} == {
        f"s{n}": "0-1-20" for n in range(4)
    }
    commits = {commit.start_ts: commit.commit_ts for commit in world.pumps.of_type(pb.Commit)}
    assert len(set(commits.values())) == len(commits) == 80
    for n in range(4):
        own = [
            commits[prewrite.start_ts]
            for prewrite in world.pumps.of_type(pb.Prewrite)
            if read_key(prewrite.prewrite_key)[1].startswith(f"s{n}|")  # type: ignore[index]
        ]
        assert own == sorted(own)
    world.journal.close()


def test_prewriting_nothing_sends_nothing_and_a_stop_reports_the_unavailable_pd(world: World) -> None:
    uncommitted = UncommittedBatches(SOURCE)
    world.publisher.prewrite(uncommitted, [])
    assert not uncommitted.batches
    assert not world.pumps.got
    world.clock.failures = 1
    world.stopped.set()
    with pytest.raises(Stopped) as caught:
        world.publisher.publish(SOURCE, [Outgoing("x", 0)], position(1))
    assert isinstance(caught.value.__cause__, SourceUnavailable)
