"""TiKV: its regions split and move, its stores are busy, and it collects old versions."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.faults.kinds import Kind, fault

if TYPE_CHECKING:
    from simulator.world import World


@fault(Kind.REGIONS_MOVED)
def moved(world: World, random: Random) -> None:
    """Regions split or get another leader, and PD learns it late; or the stores are too busy to answer."""
    tikv = world.tikv.fake
    match random.randrange(3):
        case 0:
            tikv.split(b"k%d" % (world.truth.given - random.randrange(10**6)))
        case 1:
            tikv.move(random.choice((1, 2)))
        case _:
            tikv.busy = random.randrange(1, 12)


@fault(Kind.SOURCE_COLLECTS)
def collects(world: World, random: Random) -> None:
    """GC removes all records that nobody protects: the outcome of older transactions is no longer known."""
    del random
    world.tikv.fake.run_gc(world.truth.given)
