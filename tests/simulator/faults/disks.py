"""Disks fail: full ones, syncs that are slow or fail, torn writes, bits that flip."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.cluster import Home
    from simulator.world import World


def full(world: World, random: Random) -> None:
    """A pump's disk is full for a while."""
    _fill(world, random, world.pump(random))


def pd_full(world: World, random: Random) -> None:
    """PD's disk is full for a while; sometimes it is killed meanwhile."""
    _fill(world, random, world.pd)


def pd_full_and_clock_back(world: World, random: Random) -> None:
    """PD's disk is full for longer than its bound lasts, its clock is set back, and it is killed."""
    disk = world.pd.disk
    disk.full = True
    world.scheduler.sleep(random.uniform(1.0, 5.0))
    world.pd.clock.offset_ms -= random.choice((2_000, 10_000))
    world.pd.kill()
    disk.full = False


def _fill(world: World, random: Random, home: Home) -> None:
    home.disk.full, home.disk.torn_writes = True, random.choice((0, 0, 1, 3))
    world.scheduler.sleep(random.uniform(0.1, 3.0))
    if random.random() < 0.5:
        home.kill()
    home.disk.full, home.disk.torn_writes = False, 0


def slow(world: World, random: Random) -> None:
    """Syncs take long."""
    disk = world.pump(random).disk
    disk.slow_s = random.uniform(0.1, 2.0)
    world.scheduler.sleep(random.uniform(0.5, 5.0))
    disk.slow_s = 0.0


def failed_sync(world: World, random: Random) -> None:
    """A sync fails, and the cache passes for clean afterwards; the pump is killed, and later the power fails."""
    pump = world.pump(random)
    pump.disk.failing_syncs = 1
    world.scheduler.sleep(random.uniform(0.5, 2.0))
    pump.disk.failing_syncs = 0
    pump.kill()
    if random.random() < 0.7:
        world.scheduler.sleep(random.uniform(0.5, 4.0))
        pump.lose_power()


def pd_failed_sync(world: World, random: Random) -> None:
    """A sync of PD fails."""
    world.pd.disk.failing_syncs = random.choice((1, 1, 3))
    world.scheduler.sleep(random.uniform(0.1, 2.0))
    world.pd.disk.failing_syncs = 0
    world.pd.kill()
