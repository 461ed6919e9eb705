"""Two processes with one identity."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.faults.kinds import Kind, fault

if TYPE_CHECKING:
    from simulator.world import World


@fault(Kind.TWIN_SAME_ADDRESS)
def same_address(world: World, random: Random) -> None:
    """A second pump with the node id and the advertised address of a serving one, on another machine."""
    _twin(world, random, "")


@fault(Kind.TWIN_OTHER_ADDRESS)
def other_address(world: World, random: Random) -> None:
    """A second pump with the node id of a serving one, at another address."""
    _twin(world, random, "elsewhere")


def _twin(world: World, random: Random, host: str) -> None:
    first = world.pumps[random.choice([name for name in sorted(world.pumps) if not world.pumps[name].superfluous])]
    name = f"{first.name}-twin{len(world.pumps)}"
    twin = world.add_pump(name, first.config if not host else world.config_of(first.name, f"{name}:8250"))
    twin.superfluous = True
