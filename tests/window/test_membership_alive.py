"""The registry's isAlive is written but never used: neither for a window's members nor for a writer's choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from binlake.cluster.placement.registry import NodeStatus
from binlake.cluster.pumpclient.pumps import Pumps
from binlake.window.membership import Probe, gather_members
from binlake.window.plan import propose_window

LISTED = [NodeStatus(f"p{n}", f"127.0.0.1:{n}", "online", max_commit_ts=100 + n) for n in (1, 2, 3)]


class Connection:
    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    "alive", [(True, True, True), (False, False, False), (False, True, False)], ids=["all", "none", "one"]
)
def test_is_alive_changes_neither_the_plan_nor_the_routes(alive: tuple[bool, ...]) -> None:  # S0-30
    listed = [replace(status, is_alive=value) for status, value in zip(LISTED, alive, strict=True)]
    listed = [NodeStatus.from_json(status.to_json(), status.node_id) for status in listed]
    assert tuple(status.is_alive for status in listed) == alive
    members = gather_members(listed, {}, 50, lambda host: Probe(f"u-{host}", 140))
    plan = propose_window(lo=50, tso=200, members=members)
    assert (plan.state, plan.hi, plan.blocked_by) == ("ready", 140, ())
    pumps = Pumps(lambda _host: Connection(), {}, label_fallback=False)  # type: ignore[arg-type,return-value]
    pumps.replace(listed)
    assert [pump.node_id for pump in pumps.list_usable()] == ["p1", "p2", "p3"]
