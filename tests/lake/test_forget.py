"""A permanently lost pump is forgotten by command, with the loss recorded, and windows continue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from binlake.cluster.placement import NodeStatus
from binlake.errors import BinlakeError, ConfigError, Permanent
from binlake.lake.members import MemberTable, forget
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowLog
from binlake.window.membership import Probe, RememberedMember, gather_members
from binlake.window.plan import propose_window

HEALTHY = Probe()


@pytest.fixture
def paths(tmp_path: Path) -> LakePaths:
    found = LakePaths(str(tmp_path / "lake"))
    MemberTable(found).remember([RememberedMember("p1", "u1", "online", 760, 740)])
    return found


def offline(max_commit_ts: int = 700) -> NodeStatus:
    return NodeStatus("p1", "h:1", "offline", max_commit_ts=max_commit_ts)


def members(paths: LakePaths, *pumps: NodeStatus, probe: Probe = HEALTHY) -> dict[str, str]:
    """Node -> problem, for a window after 740."""
    found = gather_members(pumps, MemberTable(paths).read_all(), 740, lambda _: probe)
    return {member.node_id: member.problem for member in found}


def test_lost_range_is_named_before_and_recorded_after(paths: LakePaths) -> None:
    # R-05, DESIGN 3.11
    with pytest.raises(ConfigError, match=r"\(740, 760\] would be lost.*--accept-loss"):
        forget(paths, "p1", offline(), accept_loss=False)
    assert "p1" in members(paths, offline())
    assert "(740, 760]" in forget(paths, "p1", offline(), accept_loss=True)
    (event,) = WindowLog(paths).read_events(stage="forget")
    assert (event["lo"], event["hi"], event["state"]) == (740, 760, "accepted-loss")
    assert json.loads(event["detail"])["pump"] == "p1"


def test_windows_continue_without_the_forgotten_pump(paths: LakePaths) -> None:
    other = NodeStatus("p2", "h:2", "online", max_commit_ts=900)
    plan = propose_window(
        lo=740, tso=10**6, members=gather_members([offline(), other], MemberTable(paths).read_all(), 740, healthy)
    )
    assert plan.state == "blocked"
    forget(paths, "p1", offline(), accept_loss=True)
    for pumps in ([offline(), other], [other]):
        plan = propose_window(
            lo=740, tso=10**6, members=gather_members(pumps, MemberTable(paths).read_all(), 740, healthy)
        )
        assert (plan.state, plan.hi, [member.node_id for member in plan.members]) == ("ready", 900, ["p2"])


def healthy(_host: str) -> Probe:
    return Probe("u2", 900)


def test_forgotten_pump_that_serves_again_is_a_member_on_any_disk(paths: LakePaths) -> None:
    forget(paths, "p1", None, accept_loss=True)
    again = NodeStatus("p1", "h:1", "online", max_commit_ts=800)
    assert members(paths, again, probe=Probe("another-disk", 800)) == {"p1": ""}
    assert "p1" in members(paths, offline(800)), "it was offline again later, with more"


@pytest.mark.parametrize("state", ["online", "paused", "closing", "pausing"])
def test_only_an_offline_or_missing_pump_can_be_forgotten(paths: LakePaths, state: str) -> None:
    with pytest.raises(Permanent, match="only a pump that is offline"):
        forget(paths, "p1", NodeStatus("p1", "h:1", state), accept_loss=True)


def test_unknown_pump_names_are_refused(paths: LakePaths) -> None:
    with pytest.raises(Permanent, match="knows this pump"):
        forget(paths, "p7", None, accept_loss=True)
    forget(paths, "p1", None, accept_loss=True)
    with pytest.raises(BinlakeError, match="knows this pump"):
        forget(paths, "p1", None, accept_loss=True)


def test_pump_that_died_before_its_first_window_can_be_forgotten(paths: LakePaths) -> None:
    assert "(0, 55]" in forget(paths, "p9", NodeStatus("p9", "h:9", "offline", max_commit_ts=55), accept_loss=True)
    assert members(paths, NodeStatus("p9", "h:9", "offline", max_commit_ts=55)).keys() == {"p1"}
