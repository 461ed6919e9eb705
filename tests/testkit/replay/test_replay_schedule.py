"""The order in which a replay writes, and the bound below which it holds the clock."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_capture import write_capture

from binlake import tso
from binlake.errors import WireError
from binlake.pump_service.statusport import PrewrittenTransaction
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes
from binlake.testkit.replay.replayer import ReplaySchedule, ReplayStep
from binlake.wire import binlog_pb2 as pb

CAPTURES = Path(__file__).parents[2] / "captures"


@st.composite
def arrivals(draw: st.DrawFn) -> list[ReplayStep]:
    """Transactions whose P, C and R arrive as from a real TiDB: P before its commit_ts exists, C any time after."""
    count = draw(st.integers(1, 12))
    steps: list[tuple[int, int, int]] = []
    open_: list[int] = []
    clock = 10
    for start in range(count):
        steps.append((pb.Prewrite, start, 0))
        open_.append(start)
        for _ in range(draw(st.integers(0, len(open_)))):
            start_ts = open_.pop(draw(st.integers(0, len(open_) - 1)))
            clock += 1
            kind = draw(st.sampled_from([pb.Commit, pb.Commit, pb.Rollback]))
            steps.append((kind, start_ts, clock if kind == pb.Commit else 0))
    return _delay_commits(draw, steps)


def _delay_commits(draw: st.DrawFn, steps: list[tuple[int, int, int]]) -> list[ReplayStep]:
    """Delay some C, so that they arrive later than they happened."""
    order = [(n + draw(st.integers(0, 6)) * (kind != pb.Prewrite), n) for n, (kind, _, _) in enumerate(steps)]
    found, prewrites = [], 0
    for index, (_, n) in enumerate(sorted(order)):
        kind, start, commit = steps[n]
        prewrites += kind == pb.Prewrite
        needs = 0 if kind == pb.Prewrite else prewrites
        found.append(ReplayStep(index, kind, start, commit, needs, commit))
    return found


@given(steps=arrivals(), data=st.data())
def test_bound_is_the_least_unacked_commit_ts_for_any_order_of_acks(
    steps: list[ReplayStep], data: st.DataObject
) -> None:
    schedule = ReplaySchedule(steps)
    waiting, last = list(steps), 0
    while waiting:
        assert schedule.compute_bound() == min(
            (step.commit_ts for step in waiting if step.commit_ts), default=tso.MAX_TS
        )
        assert schedule.compute_bound() >= last, "the bound never decreases"
        last = schedule.compute_bound()
        allowed = [step for step in waiting if schedule.may_write(step)]
        assert allowed, "at least one step may always be written"
        done = data.draw(st.sampled_from(allowed))
        waiting.remove(done)
        schedule.ack(done)


@given(steps=arrivals(), data=st.data())
def test_no_commit_is_written_before_a_prewrite_that_commits_below_it(
    steps: list[ReplayStep], data: st.DataObject
) -> None:
    # otherwise a commit_ts would be logged before a P whose own commit_ts is smaller.
    schedule = ReplaySchedule(steps)
    commits = {step.start_ts: step.commit_ts for step in steps if step.commit_ts}
    waiting = list(steps)
    while waiting:
        done = data.draw(st.sampled_from([step for step in waiting if schedule.may_write(step)]))
        if done.commit_ts:
            late = [s for s in waiting if s.is_prewrite and commits.get(s.start_ts, tso.MAX_TS) <= done.commit_ts]
            assert not late
        waiting.remove(done)
        schedule.ack(done)


@pytest.mark.parametrize("name", ["bank", "keys", "shard"])
def test_the_schedule_of_a_capture(name: str) -> None:
    capture = Capture(CAPTURES / name)
    schedule = ReplaySchedule.of(capture, Outcomes.of(capture))
    counts = capture.meta["counts"]
    assert len(schedule.steps) == capture.meta["binlogs"]
    assert schedule.transactions == counts["C"] + counts["DDL_C"]
    assert schedule.first_bound == min(step.commit_ts for step in schedule.steps if step.commit_ts)


def test_an_orphan_holds_the_clock_until_its_prewrite_is_acked() -> None:
    capture_steps = [
        ReplayStep(0, pb.Prewrite, 3, 0, 0, 7),
        ReplayStep(1, pb.Prewrite, 4, 0, 0, 0),
        ReplayStep(2, pb.Commit, 4, 9, 2, 9),
    ]
    schedule = ReplaySchedule(capture_steps)
    assert schedule.compute_bound() == 7
    schedule.ack(capture_steps[1])
    assert schedule.compute_bound() == 7
    assert not schedule.may_write(capture_steps[2])
    schedule.ack(capture_steps[0])
    assert schedule.compute_bound() == 9
    assert schedule.may_write(capture_steps[2])


P, C, R = pb.Prewrite, pb.Commit, pb.Rollback


def test_outcomes_of_orphans_come_from_outcomes_json_then_from_decoded_rows(tmp_path: Path) -> None:
    binlogs = [(P, 1, 0), (P, 2, 0), (P, 3, 0), (P, 4, 0), (C, 4, 20)]
    outcomes = [{"start_ts": "1", "commit_ts": "11"}]
    decoded = [{"start_ts": "2", "commit_ts": "12"}, {"start_ts": "4", "commit_ts": "20"}]
    capture = write_capture(tmp_path, binlogs, outcomes=outcomes, decoded=decoded)
    found = Outcomes.of(capture)
    assert [found.by_start[n].commit_ts for n in (1, 2, 3, 4)] == [11, 12, 0, 20]
    assert [found.look_up_orphan_commit_ts(n) for n in (1, 2, 3, 4)] == [11, 12, 0, 0]
    assert [step.holds for step in ReplaySchedule.of(capture, found).steps] == [11, 12, 0, 0, 20]


def test_a_commit_without_its_prewrite_is_refused(tmp_path: Path) -> None:
    capture = write_capture(tmp_path, [(C, 1, 5), (P, 1, 0)])
    with pytest.raises(WireError, match=r"before its prewrite.*binlog=0"):
        ReplaySchedule.of(capture, Outcomes([]))


def test_damage_is_reported_with_its_binlog(tmp_path: Path) -> None:
    capture = write_capture(tmp_path, [(P, 1, 0)], tail=b"\x02\x00\x00\x00\xff\xff")
    with pytest.raises(WireError, match=r"not a binlog.*binlog=1"):
        Outcomes.of(capture)


def test_outcomes_by_key_are_in_order_of_start() -> None:
    outcomes = Outcomes([PrewrittenTransaction(9, b"k", 10, False), PrewrittenTransaction(3, b"k", 4, False)])
    assert [transaction.start_ts for transaction in outcomes.by_key[b"k"]] == [3, 9]
