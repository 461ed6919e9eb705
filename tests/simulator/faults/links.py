"""The network fails: partitions, also in one direction only, and late answers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.faults.kinds import Kind, fault

if TYPE_CHECKING:
    from simulator.world import World


@fault(Kind.PARTITION)
def partition(world: World, random: Random) -> None:
    """One machine is cut off from some others for a while, sometimes in one direction only."""
    machines = world.machines()
    alone = random.choice(machines)
    others = [one for one in machines if one != alone and random.random() < 0.7]
    both = random.random() < 0.6
    for other in others:
        world.network.cut.add((alone, other))
        if both:
            world.network.cut.add((other, alone))
    world.scheduler.sleep(random.uniform(0.2, 6.0))
    world.network.heal()


@fault(Kind.DELAYS)
def delays(world: World, random: Random) -> None:
    """Many messages are late, so that calls of different connections overtake each other."""
    usual, world.network.slow_share = world.network.slow_share, 0.5
    world.scheduler.sleep(random.uniform(1.0, 5.0))
    world.network.slow_share = usual
