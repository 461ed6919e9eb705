"""Processes and machines end: kill -9, power failures, both in a row, orderly stops."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.world import World


def kill(world: World, random: Random) -> None:
    """kill -9 of a pump."""
    world.pump(random).kill()


def power(world: World, random: Random) -> None:
    """A pump's machine loses its power."""
    world.pump(random).lose_power()


def kill_then_power(world: World, random: Random) -> None:
    """kill -9, a restart that reads the page cache, then the power fails."""
    pump = world.pump(random)
    pump.disk.slow_s = random.choice((0.0, 0.5))  # so that something is written and not yet synced
    world.scheduler.sleep(random.uniform(0.0, 1.0))
    pump.kill()
    pump.disk.slow_s = 0.0
    world.scheduler.sleep(random.uniform(0.0, 4.0))
    pump.lose_power()


def pd_killed(world: World, random: Random) -> None:
    """kill -9 of PD, or its machine loses its power."""
    if random.random() < 0.5:
        world.pd.kill()
    else:
        world.pd.lose_power()


def pause(world: World, random: Random) -> None:
    """A pump is stopped in order, and started again."""
    pump = world.pump(random)
    if pump.online and pump.server is not None:
        pump.server.ask("pause")
