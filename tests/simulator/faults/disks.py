"""Disks fail: full disks, slow or failed syncs, torn writes, flipped bits."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.faults.kinds import Kind, fault

if TYPE_CHECKING:
    from simulator.cluster import Home
    from simulator.world import World

_MOST_LOST = 200
_PATIENCE_S = 3.0


@fault(Kind.FULL_DISK)
def full(world: World, random: Random) -> None:
    """A pump's disk is full for a while."""
    _fill(world, random, world.pump(random))


@fault(Kind.PD_FULL_DISK)
def pd_full(world: World, random: Random) -> None:
    """PD's disk is full for a while; sometimes it is killed meanwhile."""
    _fill(world, random, world.pd)


@fault(Kind.PD_FULL_CLOCK_BACK)
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


@fault(Kind.SLOW_SYNC)
def slow(world: World, random: Random) -> None:
    """Syncs take long."""
    disk = world.pump(random).disk
    disk.slow_s = random.uniform(0.1, 2.0)
    world.scheduler.sleep(random.uniform(0.5, 5.0))
    disk.slow_s = 0.0


@fault(Kind.FAILED_SYNC)
def failed_sync(world: World, random: Random) -> None:
    """A sync fails, and the cache counts as clean afterwards; the pump is killed, and later the power fails."""
    pump = world.pump(random)
    pump.disk.failing_syncs = 1
    world.scheduler.sleep(random.uniform(0.5, 2.0))
    pump.disk.failing_syncs = 0
    pump.kill()
    if random.random() < 0.7:
        world.scheduler.sleep(random.uniform(0.5, 4.0))
        pump.lose_power()


@fault(Kind.PD_FAILED_SYNC)
def pd_failed_sync(world: World, random: Random) -> None:
    """A sync of PD fails."""
    world.pd.disk.failing_syncs = random.choice((1, 1, 3))
    world.scheduler.sleep(random.uniform(0.1, 2.0))
    world.pd.disk.failing_syncs = 0
    world.pd.kill()


@fault(Kind.PD_FAILED_SYNC_THEN_POWER)
def pd_failed_sync_then_power(world: World, random: Random) -> None:
    """A sync of PD fails, PD starts again and reads the page cache, then the power fails."""
    disk, began = world.pd.disk, world.scheduler.now
    while (world.pd.node is None or not world.pd.node.broken) and world.scheduler.now < began + _PATIENCE_S:
        disk.failing_syncs = 1  # of its registry: a failed sync of the clock's bound has no effect
        world.scheduler.sleep(0.05)
    disk.failing_syncs = 0
    world.pd.kill()
    world.scheduler.sleep(random.uniform(2.0, 4.0))
    world.pd.lose_power()


@fault(Kind.REPLACED_DISK)
def replaced(world: World, random: Random) -> None:
    """A pump's disk is lost forever, and the pump starts on an empty one; an operator accepts the loss, as in the
    runbook. Only what the pump had acked may be lost."""
    pump = world.pump(random)
    if not pump.wanted or len(world.truth.excused) > _MOST_LOST:
        return
    pump.kill()
    pump.wanted = False
    while not world.mark_offline(pump):
        world.scheduler.sleep(0.5)
    world.truth.lose_store(pump.name)
    pump.disk.clear()
    for consumer in world.consumers:
        consumer.to_forget.append(pump.config.node_id)
    while any(consumer.to_forget for consumer in world.consumers):
        world.scheduler.sleep(0.1)
    pump.wanted = True
