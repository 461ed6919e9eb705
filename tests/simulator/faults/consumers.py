"""Consumers stop pulling for a while."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.faults.kinds import Kind, fault

if TYPE_CHECKING:
    from simulator.world import World


@fault(Kind.CONSUMER_RESTS)
def rests(world: World, random: Random) -> None:
    """A consumer lands nothing for a while."""
    consumer = random.choice(world.consumers)
    consumer.rests = True
    world.scheduler.sleep(random.uniform(0.5, 5.0))
    consumer.rests = False
