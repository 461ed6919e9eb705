"""Processes and machines end: kill -9, power failures, both in a row, clean stops; pumps join and leave."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from binlake.errors import BinlakeError
from binlake.wire import build
from simulator.faults.kinds import Kind, fault
from simulator.faults.tails import TAILS, leave_behind
from simulator.placement import SimulatedPd

if TYPE_CHECKING:
    from simulator.world import World

_MOST_PUMPS = 6


@fault(Kind.KILL)
def kill(world: World, random: Random) -> None:
    """kill -9 of a pump."""
    world.pump(random).kill()


@fault(Kind.POWER)
def power(world: World, random: Random) -> None:
    """A pump's machine loses its power."""
    world.pump(random).lose_power()


@fault(Kind.KILL_THEN_POWER)
def kill_then_power(world: World, random: Random) -> None:
    """kill -9, a restart that reads the page cache, then the power fails."""
    pump = world.pump(random)
    pump.disk.slow_s = random.choice((0.0, 0.5))  # so that something is written but not yet synced
    world.scheduler.sleep(random.uniform(0.0, 1.0))
    pump.kill()
    pump.disk.slow_s = 0.0
    world.scheduler.sleep(random.uniform(0.0, 4.0))
    pump.lose_power()


@fault(Kind.PD_DOWN)
def pd_killed(world: World, random: Random) -> None:
    """kill -9 of PD, or its machine loses its power."""
    if random.random() < 0.5:
        world.pd.kill()
    else:
        world.pd.lose_power()


@fault(Kind.PAUSE)
def pause(world: World, random: Random) -> None:
    """A pump is stopped cleanly and started again."""
    pump = world.pump(random)
    if pump.online and pump.server is not None:
        pump.server.request_leave("pause")


@fault(Kind.PAUSE_AT_START)
def pause_at_start(world: World, random: Random) -> None:
    """A pump loses its index in a crash, and is asked to stop while it rebuilds the index."""
    pump = world.pump(random)
    pump.asked_after_s = random.uniform(0.0, 0.05)
    pump.kill()
    pump.disk.level.clear()


@fault(Kind.KILL_TAIL)
def kill_with_tail(world: World, random: Random) -> None:
    """kill -9 during the write of a record that was never acked: it is complete, partial, or other bytes are there."""
    pump = world.pump(random)
    try:
        start_ts = SimulatedPd().fetch_ts()
    except BinlakeError:
        return
    binlog = build.build_prewrite(start_ts, b"k%d" % start_ts, random.randbytes(40))
    world.truth.roll_back(world.truth.begin(start_ts, binlog), protected=True)
    if not pump.online:
        return  # an earlier tail is not cut off yet, and a pump writes nothing after it
    pump.kill()
    files = sorted((pump.disk.root / "data" / "value").glob("*.vlog"))
    # A pump writes nothing after bytes that are not synced yet or whose sync failed.
    if files and pump.disk.is_synced(files[-1]):
        leave_behind(files[-1], random.choice(sorted(TAILS)), binlog, random)


@fault(Kind.JOIN)
def join(world: World, random: Random) -> None:
    """A new pump joins, or one that had left comes back."""
    gone = [pump for pump in world.pumps.values() if pump.left == "offline" and not pump.wanted]
    if gone and random.random() < 0.5:
        random.choice(gone).wanted = True
    elif len(world.pumps) < _MOST_PUMPS:
        world.add_pump(f"pump{len(world.pumps)}")


@fault(Kind.LEAVE)
def leave(world: World, random: Random) -> None:
    """A pump is closed: it goes offline once every consumer has pulled all it holds. At least one pump stays."""
    online = [pump for pump in world.pumps.values() if pump.online and pump.server is not None]
    if len(online) > 1:
        server = random.choice(online).server
        assert server is not None
        server.request_leave("close")
