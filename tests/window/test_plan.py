"""The plan: hi never passes a member that has not shown it is complete, and a blocking member is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlake.window.manifest import WindowManifest
from binlake.window.plan import Member, OpenTransactions, propose_window, reach_after


def pump(name: str, watermark: int, state: str = "online", problem: str = "") -> Member:
    return Member(name, f"{name}:8250", state, watermark, problem=problem)


def build_manifest(lo: int, hi: int, dml: int = 0, ddls: int = 0) -> WindowManifest:
    return WindowManifest("r", 7, lo, hi, "c", (), dml, ddls, 0, 100, 7, "d")


def test_hi_is_the_lowest_watermark() -> None:  # S0-59
    plan = propose_window(lo=5, tso=100, members=[pump("a", 9), pump("b", 20)])
    assert (plan.state, plan.lo, plan.hi) == ("ready", 5, 9)


def test_hi_stays_below_the_tso_fetched_before_the_members_were_listed() -> None:  # S0-58
    assert propose_window(lo=5, tso=8, members=[pump("a", 50)]).hi == 7


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (pump("p2", 5), "watermark 5"),
        (pump("p2", 0), "no watermark yet"),
        (pump("p2", 50, problem="unreachable: connection refused"), "unreachable"),
        (pump("p2", 50, state="offline"), "offline with unread binlogs up to 50"),
    ],
    ids=["lagging", "no watermark", "unreachable", "offline"],
)
def test_pump_that_cannot_serve_blocks_and_is_named(member: Member, reason: str) -> None:  # S0-56 R-05 R-35 R-49
    plan = propose_window(lo=5, tso=100, members=[pump("p1", 60), member])
    assert plan.state == "blocked"
    assert plan.hi == plan.lo == 5
    assert "p2 since 5" in plan.reason
    assert reason in plan.reason


def test_open_transaction_is_named_with_its_begin() -> None:  # U-01
    start_ts = 470583292723200001
    held = Member("p2", "h:1", "online", 5, open_transactions=OpenTransactions(3, start_ts))
    plan = propose_window(lo=5, tso=100, members=[pump("p1", 60), held])
    assert plan.reason.endswith(
        f"watermark 5, held by the transaction of start_ts {start_ts} (2026-11-20T00:00:00+00:00) and 2 more)"
    )


def test_drained_offline_pump_is_left_out() -> None:
    assert propose_window(lo=50, tso=100, members=[pump("p1", 60), pump("p2", 50, state="offline")]).hi == 60


def test_missing_pumps_block() -> None:
    assert propose_window(lo=0, tso=10, members=[]).state == "blocked"


def test_window_never_crosses_a_stop_point() -> None:
    members = [pump("p1", 60)]
    assert propose_window(lo=5, tso=100, members=members, stop_points=(3, 30, 70)).hi == 30
    assert propose_window(lo=30, tso=100, members=members, stop_points=(3, 30, 70)).hi == 60


def test_requested_stop_above_the_watermark_waits_and_is_never_cut_short() -> None:
    plan = propose_window(lo=5, tso=100, members=[pump("p1", 60)], stop_ts=80)
    assert (plan.state, plan.reason) == ("waiting", "stop_ts 80 is above the watermark 60")
    assert propose_window(lo=5, tso=100, members=[pump("p1", 60)], stop_ts=40).hi == 40


def test_window_limit_counts_commit_time() -> None:
    lo = 1000 << 18
    far = 10_000_000 << 18
    reach = reach_after(build_manifest(lo - 5, lo, dml=1), 60)
    assert propose_window(lo=lo, tso=far, members=[pump("p1", far - 1)], reach=reach).hi == lo + (60_000 << 18)


def test_years_without_data_pass_in_a_few_windows() -> None:
    # A cluster that was idle for ten years, or a first watermark from before its clock was set
    lo, far, windows = 393_266, 470_614_506_069_819_392, 0
    last = build_manifest(0, lo)
    while lo < far:
        hi = propose_window(lo=lo, tso=far + 1, members=[pump("p1", far)], reach=reach_after(last, 3600)).hi
        lo, last, windows = hi, build_manifest(lo, hi), windows + 1
    assert windows < 25
    # The next window with data is one hour again, and the first of all has no limit.
    assert (
        reach_after(build_manifest(0, far, dml=1), 3600)
        == reach_after(build_manifest(0, far, ddls=1), 3600)
        == 3_600_000 << 18
    )
    assert reach_after(None, 3600) is None


marks = st.integers(min_value=0, max_value=1000)


@given(lo=marks, tso=marks, watermarks=st.lists(marks, min_size=1), stops=st.lists(marks))
def test_ready_window_is_never_empty_and_passes_nothing(
    lo: int, tso: int, watermarks: list[int], stops: list[int]
) -> None:
    plan = propose_window(
        lo=lo, tso=tso, members=[pump(f"p{n}", w) for n, w in enumerate(watermarks)], stop_points=stops
    )
    if plan.state == "ready":
        assert lo < plan.hi <= min(watermarks)
        assert plan.hi < tso
        assert not any(lo < stop < plan.hi for stop in stops)
    else:
        assert plan.hi == lo
        assert plan.reason


def test_blocked_pump_is_named_with_its_reported_reason() -> None:
    reported = "blocked: prewrite start_ts=7 waits for its commit or rollback, 900 s old: its lock still exists"
    held = Member("p1", "h:1", "online", 90, open_transactions=OpenTransactions(1, 7, reported))
    found = propose_window(lo=90, tso=200, members=[held])
    assert found.state == "blocked"
    assert found.reason.endswith(f"; the pump reports: {reported})")
    mute = Member(
        "p1", "h:1", "online", 90, open_transactions=OpenTransactions(reported="registry: PD does not answer")
    )
    assert "the pump reports: registry" in propose_window(lo=90, tso=200, members=[mute]).reason


@pytest.mark.parametrize(("count", "others"), [(1, ""), (2, " and 1 more"), (3, " and 2 more")])
def test_oldest_of_several_open_transactions_is_named_and_the_others_counted(count: int, others: str) -> None:
    start_ts = 470583292723200001
    moment = "2026-11-20T00:00:00+00:00"
    assert (
        str(OpenTransactions(count, start_ts)) == f", held by the transaction of start_ts {start_ts} ({moment}){others}"
    )


def test_requested_stop_that_is_already_landed_is_reported() -> None:
    for stop_ts in (4, 5):
        plan = propose_window(lo=5, tso=100, members=[pump("p1", 60)], stop_ts=stop_ts)
        assert (plan.state, plan.lo, plan.hi) == ("waiting", 5, 5)
        assert plan.reason == f"stop_ts {stop_ts} is landed already (landed ts 5)"


def test_requested_stop_is_reached_at_the_watermark_itself() -> None:
    plan = propose_window(lo=5, tso=100, members=[pump("p1", 60)], stop_ts=60)
    assert (plan.state, plan.hi) == ("ready", 60)
    plan = propose_window(lo=5, tso=100, members=[pump("p1", 60)], stop_ts=61)
    assert (plan.state, plan.hi) == ("waiting", 60)


def test_plan_waits_while_the_clock_is_not_above_the_landed_ts() -> None:
    plan = propose_window(lo=5, tso=6, members=[pump("p1", 60)])
    assert (plan.state, plan.lo, plan.hi, plan.reason) == ("waiting", 5, 5, "the clock 6 is not above 5")
    assert propose_window(lo=5, tso=7, members=[pump("p1", 60)]).state == "ready"


def test_window_after_an_empty_one_is_twice_as_long_and_at_least_the_usual_length() -> None:
    hour, day = 3_600_000 << 18, 86_400_000 << 18
    assert reach_after(build_manifest(7 * day, 8 * day), 3600) == 2 * day
    assert reach_after(build_manifest(7 * day, 7 * day + 9), 3600) == hour
