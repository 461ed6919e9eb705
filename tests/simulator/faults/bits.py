"""Bits flip on the platter: a loss must be reported with its position, and no wrong data may be served."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.faults.kinds import Kind, fault

if TYPE_CHECKING:
    from simulator.world import World


@fault(Kind.FLIPPED_BIT)
def pump_log(world: World, random: Random) -> None:
    """Flip a bit of a value log; the pump is killed afterwards, or continues to serve."""
    pump = world.pump(random)
    files = [one for one in sorted((pump.disk.root / "data" / "value").glob("*.vlog")) if one.stat().st_size]
    if files:
        world.truth.store(pump.name).damaged = True
        path = random.choice(files)
        world.trace(f"{pump.name}: {path.name} differs at {pump.disk.flip(path, random)}")
        if random.random() < 0.5:
            pump.kill()


@fault(Kind.PD_FLIPPED_BIT)
def pd_journal(world: World, random: Random) -> None:
    """Flip a bit of PD's journal, which is read at its next start."""
    path = world.pd.disk.root / "data" / "etcd.journal"
    if path.exists() and path.stat().st_size:
        world.pd.damaged = True
        world.trace(f"pd: its journal differs at {world.pd.disk.flip(path, random)}")
        world.pd.kill()
