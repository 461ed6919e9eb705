"""The power may fail at any operation: afterwards every acked binlog is stored once, and the watermark is correct.

MISSION S0-48, invariant 1. The disk is `faulty_disk`; repeat a case with the seed that hypothesis prints.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from faulty_disk import Disk, open_on
from hypothesis import given, settings
from hypothesis import strategies as st
from pump_helpers import commit, plain_rule, prewrite, rollback, settled

from binlake.errors import BinlakeError
from binlake.pump_service.pump.follower import LogFollower
from binlake.pump_service.pump.heads import parse_entry
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.sorter import EntryKind, SorterEntry
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions, _encode_end
from binlake.pump_service.pump.vlog import ValueLog
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog

OPTIONS = StorageOptions(segment_bytes=700, index_queue=6)
DOUBTING = replace(OPTIONS, trust_rollbacks=False)


@dataclass
class World:
    """What the writers did, over all runs of the pump: one clock, a commit_ts after the ack of its P."""

    clock: int = 0
    sent: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    open: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    gc_ts: int = 0

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def write(self, storage: PumpStorage, *binlogs: Binlog) -> None:
        """Send all at once, then wait for the answers."""
        answers = []
        for binlog in binlogs:
            payload = binlog.SerializeToString()
            self.sent.add(payload)
            answers.append(storage.append(payload))
            answers[-1].add_done_callback(lambda done, payload=payload: done.exception() or self.acked.add(payload))
        for answer in answers:
            answer.result(10)

    def step(self, storage: PumpStorage, action: int) -> None:
        if action < 5:
            starts = [self.tick() for _ in range(action + 1)]
            self.write(storage, *(prewrite(start, b"v" * (start * 37 % 150)) for start in starts))
            self.open += starts
        elif action < 9 and self.open:
            first, self.open = self.open[: action - 4], self.open[action - 4 :]
            self.write(storage, *(commit(start, self.tick()) for start in first))
        elif action == 9 and self.open:
            self.write(storage, rollback(self.open.pop()))
        elif action == 12:
            proofs = {_encode_end(entry.start_ts, None): entry.start_ts for entry in storage.list_doubted_prewrites()}
            for proof, start in list(proofs.items())[:1]:
                if proof not in self.sent:  # the follower may not have processed it yet
                    self.sent.add(proof)
                    storage.end(start, None)
                    self.acked.add(proof)
        elif action == 10:
            self.write(storage, build.build_fake(self.tick()))
        elif action == 11 and storage.watermark > self.gc_ts + 1:
            self.gc_ts = (self.gc_ts + storage.watermark) // 2
            storage.collect(self.gc_ts, self.gc_ts)


@dataclass(frozen=True)
class Facts:
    """What the pump had acked or shown to anyone when the power failed."""

    acked: set[bytes]
    watermark: int
    gc_ts: int


def check(storage: PumpStorage, world: World, facts: Facts, *, trust: bool = True) -> None:
    """Check the result of the recovery."""
    records = list(storage._log.scan_from(Pointer(0, 0)))
    entries = [parse_entry(place, payload) for place, payload in records]
    counts = Counter(payload for _, payload in records)
    gc_ts = storage.index.gc_ts
    assert gc_ts >= facts.gc_ts
    assert counts.keys() <= world.sent, "no binlog is invented"
    assert set(counts.values()) <= {1}, "each binlog is stored once"
    for payload in facts.acked - counts.keys():
        lost = parse_entry(Pointer(0, 0), payload)
        assert max(lost.start_ts, lost.commit_ts) <= gc_ts, f"acked and lost: {lost}"
    check_watermark(storage, entries, facts, plain_rule(entries, trust_rollbacks=trust))
    ended = {entry.start_ts: entry.commit_ts for entry in entries if entry.kind is EntryKind.COMMIT}
    # At or below gcTS, a P that ended without a C is useless: an interrupted collection may have removed its key.
    ends = (EntryKind.PROVEN_ROLLBACK, EntryKind.ROLLBACK) if trust else (EntryKind.PROVEN_ROLLBACK,)
    ended = {entry.start_ts: entry.start_ts for entry in entries if entry.kind in ends} | ended
    for entry in entries:
        until = ended.get(entry.start_ts, gc_ts + 1) if entry.kind is EntryKind.PREWRITE else entry.commit_ts
        if entry.kind not in (EntryKind.ROLLBACK, EntryKind.PROVEN_ROLLBACK) and until > gc_ts:
            ts = entry.start_ts if entry.kind is EntryKind.PREWRITE else entry.commit_ts
            assert storage.index.find_pointer(ts) == entry.pointer
    shown = (EntryKind.COMMIT, EntryKind.FAKE)
    expected = [(one.commit_ts, one.start_ts) for one in entries if one.kind in shown]
    assert [(ts, start) for start, ts, _ in settled(storage, gc_ts)] == sorted(
        one for one in expected if gc_ts < one[0] <= storage.watermark
    )


def check_watermark(storage: PumpStorage, entries: Sequence[SorterEntry], facts: Facts, plain: int) -> None:
    assert storage.watermark >= facts.watermark, "a watermark that was shown does not decrease"
    assert storage.watermark >= plain
    if not storage.index.gc_ts:
        assert storage.watermark == plain
        assert storage.count_unmatched()[0] == len({one.start_ts for one in storage.list_waiting_prewrites()})
        reported = {one.start_ts for one in entries if one.kind is EntryKind.ROLLBACK}
        assert {one.start_ts for one in storage.list_doubted_prewrites()} == reported & {
            one.start_ts for one in storage.list_waiting_prewrites()
        }
    assert (storage.counters.late_commits, storage.counters.early_commits) == (0, 0)


class Ticks:
    """A clock that advances each time it is read."""

    def __init__(self) -> None:
        self.monotonic = itertools.count(1).__next__


@pytest.fixture(autouse=True, scope="module")
def often() -> Iterator[None]:
    """Sync a batch, and move the head, every few batches, as would happen over hours."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("binlake.pump_service.pump.follower.time", Ticks())
        patch.setattr("binlake.pump_service.pump.follower._PACE_S", 0)
        patch.setattr("binlake.pump_service.pump.follower._SYNC_S", 9)
        patch.setattr("binlake.pump_service.pump.follower._DUMP_SHARE", 0)
        yield


lives = st.lists(st.tuples(st.lists(st.integers(0, 12), max_size=25), st.integers(0, 150)), min_size=1, max_size=3)


@pytest.mark.long
@given(lives, st.integers(0, 2**32), st.booleans())
@settings(max_examples=int(os.environ.get("BINLAKE_POWER_EXAMPLES", "40")), deadline=None)
def test_no_acked_binlog_is_lost_if_the_power_fails_at_any_operation(
    tmp_path_factory: pytest.TempPathFactory, found: Sequence[tuple[list[int], int]], seed: int, trust: bool
) -> None:
    # S0-48; R-07: doubted and proved rollbacks are still known after the recovery.
    options = OPTIONS if trust else DOUBTING
    chance, world, path = random.Random(seed), World(), tmp_path_factory.mktemp("power")
    for steps, crash_at in found:
        disk = live(world, path, steps, crash_at, chance, options)
        path = tmp_path_factory.mktemp("power")
        facts = disk.restore(path)
        storage = PumpStorage(path, options)
        try:
            check(storage, world, facts, trust=trust)
            ended = {entry.start_ts for entry in storage.list_doubted_prewrites()}
            world.open = sorted({entry.start_ts for entry in storage.list_waiting_prewrites()} - ended)
        finally:
            storage.close()
        world.acked, world.gc_ts = set(facts.acked), storage.index.gc_ts


def live(
    world: World,
    path: Path,
    steps: Sequence[int],
    crash_at: int,
    chance: random.Random,
    options: StorageOptions = OPTIONS,
) -> Disk:
    """One run of a pump; the power fails at operation `crash_at`, or at the end if that comes first."""
    running: list[PumpStorage] = []

    def facts() -> Facts:
        watermark, gc_ts = (running[0].watermark, running[0].index.gc_ts) if running else (0, 0)
        return Facts(set(world.acked), watermark, gc_ts)

    disk = Disk(path, crash_at, chance, facts)
    running.append(open_on(disk, options))
    for action in steps:
        if disk.left is None:
            world.step(running[0], action)
    if chance.random() < 0.5:
        running[0].close()  # a clean stop; the power fails afterwards
        disk.crash()
    else:
        disk.crash()
        running[0].close()
    return disk


def test_the_faulty_disk_loses_unsynced_data(tmp_path: Path) -> None:
    # Shows that the test above can fail: on the same disk, a pump that does not sync loses acked binlogs.
    lost = 0
    for seed in range(10):
        world, path = World(), tmp_path / f"{seed}"
        disk = Disk(path, 10**9, random.Random(seed), lambda world=world: Facts(set(world.acked), 0, 0))
        path.mkdir()
        storage = open_on(disk, StorageOptions(sync_log=False))
        for action in (4, 8, 10):
            world.step(storage, action)
        disk.crash()
        storage.close()
        facts = disk.restore(tmp_path / f"{seed}-left")
        log = ValueLog(tmp_path / f"{seed}-left" / "value")
        lost += len(facts.acked - {payload for _, payload in log.scan_from(Pointer(0, 0))})
        log.close()
    assert lost > 0


@pytest.mark.long
@pytest.mark.parametrize("mutant", ["head", "mark"])
def test_a_wrong_order_of_writes_is_detected(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, mutant: str
) -> None:
    # Two rules broken on purpose: the head covers unsynced entries; files are removed before gcTS is durable.
    if mutant == "head":
        monkeypatch.setattr(LogFollower, "_index_batch", _take_and_move_head)
    else:
        monkeypatch.setattr(PumpStorage, "collect", _collect_then_mark)
    with pytest.raises((AssertionError, BinlakeError)):
        _many_lives(tmp_path_factory)


def _many_lives(tmp_path_factory: pytest.TempPathFactory) -> None:
    # Whether a run shows the fault depends on the order of threads: mostly one of 60 does, on a busy machine a later
    # one.
    chance, until = random.Random(1), time.monotonic() + 300
    while time.monotonic() < until:
        world, path = World(), tmp_path_factory.mktemp("mutant")
        steps = [chance.choice((4, 8, 8, 10, 11)) for _ in range(25)]
        disk = live(world, path, steps, chance.randint(20, 120), chance)
        folder = tmp_path_factory.mktemp("mutant")
        facts = disk.restore(folder)
        storage = PumpStorage(folder, OPTIONS)
        try:
            check(storage, world, facts)
        finally:
            storage.close()


def _take_and_move_head(self: LogFollower, batch: list[SorterEntry]) -> bool:
    taken = _TAKE(self, batch)
    if batch:
        self._save_checkpoint()
    return taken


def _collect_then_mark(self: PumpStorage, gc_ts: int, bound: int) -> None:
    self._log.remove([fid for fid, max_ts in self._log.list_old_files() if max_ts <= bound])
    self.index.set_gc_ts(gc_ts)


_TAKE = LogFollower._index_batch
