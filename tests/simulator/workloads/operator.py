"""An operator who follows the runbook: a C whose P was lost with a disk ends all pulls until a command gives it up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from binlake.errors import BinlakeError
from simulator.truth import Wrong

if TYPE_CHECKING:
    from simulator.world import World

_ADVICE = re.compile(r"txn give-up (\d+) --commit-ts (\d+)")


def run(world: World) -> None:
    """While the run lasts, do what the error of a pull says, if the disk was really lost."""
    while True:
        world.scheduler.sleep(1.0)
        for advice in {one.blocked: _ADVICE.search(one.blocked) for one in world.consumers}.values():
            if advice is not None:
                _give_up(world, int(advice[1]), int(advice[2]))


def _give_up(world: World, start_ts: int, commit_ts: int) -> None:
    if start_ts not in world.truth.excused:
        raise Wrong(f"transaction {start_ts} is to be given up, and its P is on no disk that was lost")
    for pump in world.pumps.values():
        if pump.online and pump.server is not None:
            try:
                pump.server.pages._verdict.give_up(start_ts, commit_ts)
            except BinlakeError as error:
                world.trace(f"{pump.name} does not give up {start_ts}: {error.message}")
            else:
                world.report.counts["given up"] += 1
                world.trace(f"{pump.name} gives up {start_ts} at {commit_ts}")
