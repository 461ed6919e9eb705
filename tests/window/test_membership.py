"""Membership: a pump that leaves, changes its disk or collects the range is reported, never silently dropped."""

from __future__ import annotations

from dataclasses import dataclass

from binlake import tso
from binlake.config import Replication
from binlake.errors import SourceUnavailable
from binlake.lake.holdups import LandedState, plan_next_window
from binlake.window.membership import Probe, RememberedMember, flag_future_watermarks, gather_members
from binlake.window.plan import Member

SECOND = tso.compose(1000)


@dataclass(frozen=True)
class Status:
    node_id: str
    state: str = "online"
    max_commit_ts: int = 100
    host: str = "127.0.0.1:1"


def known(node: str, **changes: object) -> dict[str, RememberedMember]:
    return {node: RememberedMember(**{"node_id": node, "store_uuid": "u1", "state": "online", "watermark": 50,
                                      "landed_ts": 50, **changes})}  # fmt: skip


def answer(probe: Probe):
    return lambda _host: probe


def test_live_watermark_overrides_the_registered_one() -> None:
    (member,) = gather_members([Status("p1")], {}, 50, answer(Probe("u1", 140)))
    assert (member.watermark, member.store_uuid, member.problem) == (140, "u1", "")


def test_deleted_registry_key_is_detected() -> None:
    (member,) = gather_members([], known("p1"), 50, answer(Probe()))
    assert "vanished from the registry" in member.problem


def test_drained_tombstone_may_be_deleted() -> None:
    (member,) = gather_members([], known("p1", state="offline"), 50, answer(Probe()))
    assert member.problem == ""
    assert member.is_drained(50)


def test_same_node_with_an_empty_disk_is_detected() -> None:
    (member,) = gather_members([Status("p1")], known("p1"), 50, answer(Probe("u2", 140)))
    assert "has another data directory" in member.problem


def test_collected_range_is_detected() -> None:
    (member,) = gather_members([Status("p1")], {}, 50, answer(Probe("u1", 140, gc_ts=50)))
    assert "collected binlogs up to 50" in member.problem
    (member,) = gather_members([Status("p1")], {}, 50, answer(Probe("u1", 140, gc_ts=49)))
    assert member.problem == ""


def test_unreachable_pump_is_named_with_the_reason() -> None:  # S0-56
    def refuse(_host: str) -> Probe:
        raise SourceUnavailable("connection refused")

    (member,) = gather_members([Status("p1")], {}, 50, refuse)
    assert member.problem == "unreachable: connection refused"
    (offline,) = gather_members([Status("p2", state="offline", max_commit_ts=40)], {}, 50, refuse)
    assert offline.is_drained(50)


def test_forced_offline_keeps_what_a_probe_saw() -> None:
    seen = known("p1", watermark=760, landed_ts=740)
    (member,) = gather_members([Status("p1", state="offline", max_commit_ts=700)], seen, 740, answer(Probe()))
    assert member.watermark == 760
    assert not member.is_drained(740)


def test_another_pump_at_the_same_address_proves_nothing() -> None:  # R-05 R-06
    (member,) = gather_members([Status("p1")], {}, 50, answer(Probe("u2", 140, node_id="p9")))
    assert "is served by p9" in member.problem


def test_watermark_from_the_future_is_rejected() -> None:
    now = 470583292723200001
    told = [
        Member("ahead", "h:1", "online", now * 10),
        Member("near", "h:2", "online", now + 1),
        Member("gone", "h:3", "online", now * 10, problem="unreachable"),
    ]
    found = {member.node_id: member.problem for member in flag_future_watermarks(told, now)}
    assert "s above PD's clock: it has stored a binlog from the future" in found["ahead"]
    assert (found["near"], found["gone"]) == ("", "unreachable")


def test_plan_fetches_a_new_tso_before_it_doubts_a_watermark() -> None:
    # Members are probed one by one after the TSO was fetched, so in a busy cluster their watermarks may be above it.
    class Clock:
        def __init__(self, *given: int) -> None:
            self.given = list(given)

        def fetch_ts(self, count: int = 1) -> int:
            del count
            return self.given.pop(0)

    class Pumps:
        def list_pumps(self) -> list[Status]:
            return [Status("p1", max_commit_ts=now + 60 * SECOND)]

    now = 470583292723200001
    replication = Replication.model_validate(
        {"name": "r", "source": {"pd-urls": ["http://pd:1"]}, "lake": {"path": "/l"}}
    )
    for later, state in ((now + 61 * SECOND, "ready"), (now + SECOND, "blocked")):
        plan = plan_next_window(
            replication, LandedState(5, {}, None), Clock(now, later), Pumps(), lambda _: Probe(), stop_ts=None
        )  # fmt: skip
        assert plan.state == state, plan
