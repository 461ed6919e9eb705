"""PD's wall clock is stepped."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.world import World


def step(world: World, random: Random) -> None:
    """Forwards or backwards."""
    world.pd.clock.offset_ms += random.choice((-3_600_000, -10_000, -500, 10_000, 60_000))


def source_away(world: World, random: Random) -> None:
    """TiKV answers nobody for a while."""
    world.truth.source_away = True
    world.scheduler.sleep(random.uniform(0.5, 5.0))
    world.truth.source_away = False
