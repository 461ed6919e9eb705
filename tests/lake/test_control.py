"""The lake's control tables: the window log is gapless, members are remembered, history is read by range."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from binlake.config.model import LakeSection, Replication
from binlake.errors import ImmutableWindow, LeaseHeld
from binlake.lake.control import COMPACT_EVERY, ControlTable
from binlake.lake.lock import hold_lake_lock
from binlake.lake.members import MemberTable
from binlake.lake.paths import LakePaths
from binlake.lake.tables import Column, LakeTable
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.window.manifest import ApplyManifest, MemberProof, WindowManifest
from binlake.window.membership import RememberedMember


@pytest.fixture
def paths(tmp_path: Path) -> LakePaths:
    return LakePaths.of(Replication(name="r", lake=LakeSection(path=str(tmp_path))))


def manifest(lo: int, hi: int) -> WindowManifest:
    proof = MemberProof("p1", "u1", "online", 0, hi + 1, 3)
    return WindowManifest("r", 6791641053252586769, lo, hi, "c", (proof,), 2, 1, 0, 100, 7, "d")


def land_event(lo: int, hi: int) -> WindowEvent:
    return WindowEvent("land", lo, hi, "done", 3, 0.5, "run", manifest=manifest(lo, hi).to_json())


def test_window_is_landed_once_its_manifest_is_sealed(paths: LakePaths) -> None:
    log = WindowLog(paths)
    assert log.find_landed_ts() is None
    log.record(land_event(5, 9))
    log.record(land_event(9, 12))
    assert (log.list_landed(), log.find_landed_ts()) == ([(5, 9), (9, 12)], 12)
    assert log.read_manifest(5, 9) == manifest(5, 9)
    assert log.read_manifest(5, 8) is None


def test_windows_with_gaps_or_overlaps_are_an_error(paths: LakePaths) -> None:  # C-06
    log = WindowLog(paths)
    log.record(land_event(5, 9))
    log.record(land_event(10, 12))
    with pytest.raises(ImmutableWindow, match="one ends at 9, the next starts at 10"):
        log.list_landed()


def test_manifests_keep_64_bit_values_as_text() -> None:
    text = manifest(470614429184294912, 470614429184294913).to_json()
    assert '"hi":"470614429184294913"' in text
    assert WindowManifest.from_json(text).hi == 470614429184294913
    apply = ApplyManifest("r", "sql", 1, 2, 3, "c", "always", "d", "ch", "st", 1, 4, 9, ("2-3",))
    assert ApplyManifest.from_json(apply.to_json()) == apply
    assert apply.compute_digest() == ApplyManifest.from_json(apply.to_json()).compute_digest()


@pytest.mark.long
def test_table_with_an_older_versions_comments_is_extended(tmp_path: Path) -> None:  # a lake outlives a version's words
    first, second = (Column("n", "BIGINT", comment) for comment in ("a number", "a whole number"))
    place = str(tmp_path / "t")
    ControlTable(place, LakeTable("t", "numbers", (first,), ())).append([{"n": 1}])
    table = ControlTable(place, LakeTable("t", "more numbers", (second,), ()))
    for number in range(2, COMPACT_EVERY + 3):
        table.append([{"n": number}])
    table.tidy()
    assert sorted(row["n"] for row in table.read_rows()) == list(range(1, COMPACT_EVERY + 3))
    table.replace([{"n": 7}])
    assert table.read_rows() == [{"n": 7}]


def test_start_is_fixed_once(paths: LakePaths) -> None:  # S0-62
    log = WindowLog(paths)
    assert log.start_ts() is None
    log.record(WindowEvent("start", 5, 5, "done"))
    assert log.start_ts() == 5


def test_newest_row_of_a_member_counts(paths: LakePaths) -> None:
    members = MemberTable(paths)
    members.remember([RememberedMember("p1", "u1", "online", 5, 4), RememberedMember("p2", "u2", "online", 5, 4)])
    members.remember([RememberedMember("p1", "u1", "paused", 9, 9)])
    assert {key: value.state for key, value in members.read_all().items()} == {"p1": "paused", "p2": "online"}


@pytest.mark.long
def test_compacted_control_table_loses_nothing(tmp_path: Path) -> None:
    table = ControlTable(str(tmp_path / "t"), LakeTable("t", "numbers", (Column("n", "BIGINT", "a number"),), ()))
    for number in range(COMPACT_EVERY + 3):
        table.append([{"n": number}])
    assert sorted(row["n"] for row in table.read_rows()) == list(range(COMPACT_EVERY + 3))


def _hold(paths: LakePaths, held: object, done: object) -> None:
    with hold_lake_lock(paths, "landing"):
        held.set()  # type: ignore[attr-defined]
        done.wait(500)  # type: ignore[attr-defined]


@pytest.mark.long
def test_second_writer_waits_and_names_the_holder_of_the_lake(paths: LakePaths) -> None:
    context = multiprocessing.get_context("spawn")
    held, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(paths, held, done))
    holder.start()
    try:
        assert held.wait(120)
        with pytest.raises(LeaseHeld, match=f"pid {holder.pid}"), hold_lake_lock(paths, "landing", wait_s=0.2):
            pass
        holder.kill()
        holder.join()
        with hold_lake_lock(paths, "landing", wait_s=60):
            pass
    finally:
        holder.kill()
