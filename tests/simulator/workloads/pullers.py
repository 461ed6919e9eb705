"""Pullers that are not registered, such as a person's tool: GC does not wait for them, and pulls must report that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from binlake.cluster.pumpclient import PumpReader
from binlake.errors import BinlakeError, LostRange, WireError
from simulator.placement import CLUSTER
from simulator.truth import Wrong

if TYPE_CHECKING:
    from simulator.cluster import PumpHome
    from simulator.world import World


def run(world: World, number: int) -> None:
    """Pull everything a pump has, or continue from an earlier position; slowly at times."""
    random = world.chance(f"puller-{number}")
    reached: dict[str, int] = {}
    while world.writing:
        world.scheduler.sleep(random.expovariate(2.0))
        pump = world.pump(random)
        after = reached.get(pump.name, 0) if random.random() < 0.8 else 0
        try:
            reached[pump.name] = _pull(world, pump, after, random.choice((0.0, 0.0, 0.1)))
        except LostRange as error:
            world.report.counts["lost ranges told"] += 1
            world.trace(f"puller-{number} after {after}: {error.message}")
            reached[pump.name] = _collected_position(pump)
        except WireError as error:
            if not world.truth.store(pump.name).damaged:
                raise Wrong(f"a pull of {pump.name} after {after} ends: {error}") from None
        except BinlakeError as error:
            world.trace(f"puller-{number}: {error.message}")


def _collected_position(pump: PumpHome) -> int:
    """The position up to which binlogs were collected; the next pull begins there."""
    try:
        return PumpReader(pump.config.addr, CLUSTER).read_info().gc_ts
    except BinlakeError:
        return 0


def _pull(world: World, pump: PumpHome, after: int, pause_s: float) -> int:
    """Pull up to the present timestamp, and check that all acked binlogs in the range have come."""
    store = world.truth.store(pump.name)
    known = {ts: start for ts, start in store.commits.items() if start in store.prewrites}
    until, last, came = world.truth.given, after, set[int]()
    for commit_ts, start_ts, payload in PumpReader(pump.config.addr, CLUSTER, idle_timeout_s=5.0).pull(after, until):
        if commit_ts != start_ts:
            world.truth.check_pulled(pump.name, commit_ts, start_ts, payload)
            came.add(commit_ts)
        missed = [ts for ts in known if last < ts < commit_ts]
        if missed and not store.damaged:
            raise Wrong(f"{pump.name} passed over {min(missed)} of {known[min(missed)]} in a pull after {after}")
        last = commit_ts
        world.scheduler.sleep(pause_s)
    return last
