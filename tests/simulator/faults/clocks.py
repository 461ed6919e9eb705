"""PD's wall clock is stepped."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.faults.kinds import Kind, fault

if TYPE_CHECKING:
    from simulator.world import World


@fault(Kind.CLOCK)
def step(world: World, random: Random) -> None:
    """Step the clock forwards or backwards."""
    world.pd.clock.offset_ms += random.choice((-3_600_000, -10_000, -500, 10_000, 60_000))


@fault(Kind.SOURCE_AWAY)
def source_away(world: World, random: Random) -> None:
    """TiKV answers no requests for a while."""
    world.truth.source_away = True
    world.scheduler.sleep(random.uniform(0.5, 5.0))
    world.truth.source_away = False


@fault(Kind.CLOCK_HOURS_ON)
def hours_on(world: World, random: Random) -> None:
    """Step forwards so far that all stored binlogs are old enough to be collected."""
    world.pd.clock.offset_ms += random.choice((700_000, 1_500_000, 4_000_000))
