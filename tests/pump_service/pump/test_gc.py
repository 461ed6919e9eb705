"""Collection: by age, never past a registered consumer unless forced, never the P of a C that stays (hazards R-26)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pump_helpers import commit, prewrite, pulled, reach, settled, store, until

from binlake import tso
from binlake.cluster.placement import NodeStatus
from binlake.errors import LostRange, SourceUnavailable, Transient
from binlake.pump_service.pump.retention import Collector, GcRule, decide
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.window.membership import Probe, gather_members
from binlake.wire import build

DAY = 86400


def consumer(node_id: str, state: str, max_commit_ts: int) -> NodeStatus:
    return NodeStatus(node_id, "", state, max_commit_ts=max_commit_ts)


def at(days: float) -> int:
    """The TSO of a day."""
    return tso.compose(int(days * DAY * 1000))


WEEK = GcRule()


def test_binlogs_are_collected_after_seven_days() -> None:
    assert decide(WEEK, at(100), 0, at(100), []).gc_ts == at(93)
    assert decide(GcRule(keep_s=0), at(100), 5, at(100), []).gc_ts == 5  # 0 = never
    assert decide(GcRule(keep_s=8 * 3600), at(1), 0, at(1), []).gc_ts == at(1) - tso.compose(8 * 3600 * 1000)


def test_what_was_committed_before_the_pump_existed_is_not_lost_here(tmp_path: Path) -> None:
    """A first start with a replication from ts 0: the first collection, an hour later, has nothing to collect."""
    assert decide(WEEK, at(100), 0, at(100), [], at(99)) == (0, (), ())
    assert decide(WEEK, at(100), at(5), at(100), [], None).gc_ts == at(5)
    storage = filled(tmp_path, [99, 99.5])
    cluster = Cluster(at(100))
    assert Collector(storage, cluster, cluster).run().gc_ts == 0
    pump = NodeStatus("pump1", "host", "online", max_commit_ts=storage.watermark)
    probe = Probe("uuid", storage.watermark, storage.index.gc_ts)
    (member,) = gather_members([pump], {}, 0, lambda _: probe)
    assert member.problem == ""
    assert [ts for _, ts, _ in settled(storage, 0)] == [at(99) + 1, at(99.5) + 1, at(99.5) + 2]
    cluster.now = at(106.25)  # the first transaction is a week old now: it is collected, and so lost to a late reader
    assert Collector(storage, cluster, cluster).run().gc_ts == at(99.25)
    with pytest.raises(LostRange):
        pulled(storage, 1, after_ts=0)
    storage.close()


def test_gc_ts_never_decreases_and_never_reaches_the_watermark() -> None:
    assert decide(WEEK, at(100), at(95), at(100), []).gc_ts == at(95)
    assert decide(WEEK, at(100), 0, at(50), []).gc_ts == at(50) - 1
    assert decide(WEEK, at(100), 0, 0, []).gc_ts == 0


@pytest.mark.parametrize("state", ["online", "paused", "pausing", "closing"])
def test_a_slow_consumer_holds_the_collection_back_and_is_named(state: str) -> None:
    # paused for eight days with gc = 7.
    nodes = [consumer("sync", state, at(92)), consumer("audit", "online", at(99)), consumer("gone", "offline", at(1))]
    decision = decide(WEEK, at(100), 0, at(100), nodes)
    assert (decision.gc_ts, decision.held_by, decision.losing) == (at(92) - 1, (("sync", at(92)),), ())


def test_a_forced_collection_names_the_consumers_that_lose_data() -> None:
    # the hard cap.
    nodes = [consumer("sync", "paused", at(60)), consumer("audit", "paused", at(88))]
    rule = GcRule(force_after_s=30 * DAY)
    assert decide(rule, at(100), 0, at(100), nodes)[:1] == (at(70),)
    assert decide(rule, at(100), 0, at(100), nodes).losing == (("sync", at(60)),)
    assert decide(rule, at(89), 0, at(89), nodes).losing == ()


@pytest.mark.parametrize("position", [at(92), at(93), at(93) + 1, at(93) - 1])
def test_a_consumer_that_held_the_collection_back_can_plan_its_next_window(tmp_path: Path, position: int) -> None:
    # the collector is tested together with the planner's check of the pump.
    storage = filled(tmp_path, range(90, 100))
    cluster = Cluster(at(100), [consumer("sync", "paused", position)])
    collected = Collector(storage, cluster, cluster).run()
    assert collected.gc_ts == min(position - 1, at(93))
    assert ("held back" in collected.problem) is (position <= at(93))
    pump = NodeStatus("pump1", "host", "online", max_commit_ts=storage.watermark)
    probe = Probe("uuid", storage.watermark, storage.index.gc_ts)
    (member,) = gather_members([pump], {}, position, lambda _: probe)
    assert member.problem == ""
    storage.close()


nodes = st.lists(
    st.builds(
        consumer, st.sampled_from("abc"), st.sampled_from(["online", "paused", "offline"]), st.integers(0, at(120))
    ),
    max_size=4,
)


@given(st.integers(0, at(120)), st.integers(0, at(110)), st.integers(0, at(120)), nodes)
@settings(deadline=None)
def test_no_registered_consumer_loses_data_unless_forced(
    now: int, gc_ts: int, watermark: int, consumers: list[NodeStatus]
) -> None:
    #
    decision = decide(WEEK, now, gc_ts, watermark, consumers)
    assert decision.gc_ts >= gc_ts
    if decision.gc_ts > gc_ts:
        assert decision.gc_ts <= now - at(7)
        assert decision.gc_ts < watermark
        assert all(one.max_commit_ts > decision.gc_ts for one in consumers if one.state != "offline")
        assert decision.losing == ()


@dataclass
class Cluster:
    """Registry and clock."""

    now: int
    consumers: list[NodeStatus] = field(default_factory=list)
    down: bool = False

    def list_drainers(self) -> Sequence[NodeStatus]:
        if self.down:
            raise SourceUnavailable("PD does not answer")
        return self.consumers

    def fetch_ts(self, count: int = 1) -> int:
        assert count == 1
        return self.now


SMALL = StorageOptions(segment_bytes=300)


def filled(path: Path, days: Sequence[float]) -> PumpStorage:
    """One transaction a day, each in its own file."""
    storage = PumpStorage(path, SMALL)
    for day in days:
        store(storage, prewrite(at(day), b"x" * 300), commit(at(day), at(day) + 1))
    store(storage, build.build_fake(at(days[-1]) + 2))
    reach(storage, at(days[-1]) + 2)
    return storage


def files(storage: PumpStorage) -> int:
    return len(list((storage.directory.path / "value").iterdir()))


def test_collected_files_and_keys_are_removed_and_a_pull_names_the_lost_range(tmp_path: Path) -> None:
    #
    storage = filled(tmp_path, range(90, 100))
    before = files(storage)
    collector = Collector(storage, Cluster(at(100)), Cluster(at(100)))
    collected = collector.run()
    assert (collected.gc_ts, collected.problem) == (at(93), "")
    assert collected.removed.files >= 3
    assert files(storage) == before - collected.removed.files
    assert storage.index.find_pointer(at(90)) is storage.index.find_pointer(at(90) + 1) is None
    with pytest.raises(LostRange, match=rf"\({at(91)}, {at(93)}\] is lost"):
        pulled(storage, 1, after_ts=at(91))
    assert [ts for _, ts, _ in settled(storage, at(93))] == [*(at(day) + 1 for day in range(93, 100)), at(99) + 2]
    assert collector.run().removed == (0, 0)
    storage.close()


def test_a_consumer_holds_files_back_until_it_moves_or_is_offline(tmp_path: Path) -> None:
    #
    storage = filled(tmp_path, range(90, 100))
    cluster = Cluster(at(100), [consumer("sync", "paused", at(90) - 1)])
    collector = Collector(storage, cluster, cluster)
    collected = collector.run()
    assert (collected.gc_ts, collected.removed.files) == (0, 0)  # nothing is older than what the consumer needs
    assert "held back" in collector.problem
    assert "sync" in collector.problem
    assert len(settled(storage, at(90) - 1)) == 11
    cluster.consumers = [consumer("sync", "offline", at(90) - 1)]
    assert collector.run().removed.files >= 3
    assert collector.problem == ""
    storage.close()


def test_without_a_registry_nothing_is_collected(tmp_path: Path) -> None:
    storage = filled(tmp_path, range(90, 100))
    cluster = Cluster(at(100), down=True)
    with pytest.raises(SourceUnavailable):
        Collector(storage, cluster, cluster).run()
    assert storage.index.gc_ts == 0
    storage.close()


def test_the_prewrite_of_a_commit_that_stays_is_not_collected(tmp_path: Path) -> None:
    # a transaction of ten days; the original collects its P and then skips its C.
    storage = filled(tmp_path, range(70, 76))
    store(storage, prewrite(at(80), b"x" * 400), build.build_fake(at(80) + 1), prewrite(at(81), b"y" * 400))
    for day in range(82, 100):
        store(storage, prewrite(at(day), b"z" * 400), commit(at(day), at(day) + 1))
    store(storage, commit(at(80), at(98) + 5), build.build_fake(at(99) + 2))
    until(lambda: storage.count_unmatched() == (1, at(81)), "80 is matched, 81 waits")
    cluster = Cluster(at(105))
    removed = storage.collect(at(90), at(90))
    assert removed.files > 0
    assert storage.index.find_pointer(at(80)) is not None
    store(storage, commit(at(81), at(99) + 9))
    reach(storage, at(99) + 9)
    transactions = settled(storage, at(90))
    assert [(start, ts) for start, ts, _ in transactions if start in (at(80), at(81))] == [
        (at(80), at(98) + 5),
        (at(81), at(99) + 9),
    ]
    store(storage, build.build_fake(at(105)), build.build_fake(at(105) + 1))
    reach(storage, at(105) + 1)
    cluster.now = at(113)
    Collector(storage, cluster, cluster).run()
    assert storage.index.find_pointer(at(80)) is None
    storage.close()


def test_gc_ts_is_durable_before_the_first_file_is_removed_and_survives_a_lost_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a crash in the middle of a collection, and the loss of the index afterwards.
    storage = filled(tmp_path, range(90, 100))

    def crash(_: object) -> None:
        assert (storage.directory.recall("gcts"), storage.index.gc_ts) == (str(at(93)), at(93))
        raise OSError(5, "the pump crashes here")

    before = files(storage)
    with monkeypatch.context() as broken:
        broken.setattr(storage._log, "remove", crash)
        with pytest.raises(OSError, match="crashes here"):
            storage.collect(at(93), at(93))
    assert files(storage) == before
    with pytest.raises(LostRange):
        pulled(storage, 1, after_ts=at(92))
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    storage = PumpStorage(tmp_path, SMALL)
    assert storage.index.gc_ts == at(93)
    removed = storage.collect(at(93), at(93))  # the collection continues where it was interrupted
    assert removed.files >= 3
    assert removed.keys >= 3
    assert len(settled(storage, at(93))) == 8
    storage.close()


def test_only_one_collection_runs_at_a_time(tmp_path: Path) -> None:
    storage = filled(tmp_path, range(90, 95))

    class Reentrant(Cluster):
        def list_drainers(self) -> Sequence[NodeStatus]:
            with pytest.raises(Transient, match="running"):
                collector.run()
            return []

    cluster = Reentrant(at(100))
    collector = Collector(storage, cluster, cluster)
    assert collector.run().gc_ts == at(93)
    storage.close()


def test_a_pull_during_collections_gets_everything_or_an_error(tmp_path: Path) -> None:
    # never a silent gap.
    storage = filled(tmp_path, [90 + n / 10 for n in range(100)])
    expected = [at(90 + n / 10) + 1 for n in range(100)]
    for gc_day in range(90, 99):
        seen = []
        try:
            for entity in settled(storage, at(90) if gc_day == 90 else at(gc_day)):
                seen.append(entity[1])
                storage.collect(at(gc_day + 1), at(gc_day + 1))
        except LostRange:
            pass
        start = at(90) if gc_day == 90 else at(gc_day)
        full = [ts for ts in expected if ts > start]
        assert seen[: len(full)] == full[: len(seen)]
    storage.close()
