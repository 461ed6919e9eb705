"""The simulator's scenarios by name, and the mixture that a seed draws when no scenario is given."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from simulator.faults import bits, clocks, consumers, disks, identity, links, lives, regions
from simulator.faults.kinds import Fault
from simulator.workloads import forged, hostile, pullers, transactions
from simulator.world import Client, Shape

FAULTS: tuple[Fault, ...] = (
    lives.kill, lives.power, lives.kill_then_power, lives.pd_killed, lives.pause, disks.full, disks.pd_full, disks.slow,
    disks.failed_sync, disks.pd_failed_sync, disks.pd_failed_sync_then_power, links.partition, links.delays,
    clocks.step, clocks.source_away, lives.kill_with_tail, lives.join, lives.leave, consumers.rests,
)  # fmt: skip
"""After each of them, every committed transaction must be landed."""
CLIENTS: tuple[Client, ...] = (transactions.run, forged.run, hostile.far_future, hostile.taken)

_TIDB = transactions.run
_BRIEF = Shape(seconds=7.0, mean_s=0.7)
_GC_S = 20.0  # so that a run without a jump of the clock collects nothing

SCENARIOS: dict[str, Shape] = {
    "processes": replace(_BRIEF, faults=(lives.kill, lives.power, lives.pd_killed, lives.pause)),
    "stopped starts": replace(_BRIEF, faults=(lives.pause_at_start, lives.power), seconds=12.0),
    "kill, then power": replace(_BRIEF, faults=(lives.kill_then_power,)),
    "failed syncs": replace(_BRIEF, faults=(disks.failed_sync,)),
    "full disks": replace(_BRIEF, faults=(disks.full, disks.slow)),
    "placement driver": replace(
        _BRIEF, faults=(disks.pd_full, disks.pd_failed_sync, lives.pd_killed, clocks.step), mean_s=0.4
    ),
    "unsaved bounds": replace(_BRIEF, faults=(disks.pd_full_and_clock_back,), mean_s=2.0),
    "full disks and power": replace(_BRIEF, faults=(disks.full, lives.power), mean_s=0.4),
    "page cache of PD": replace(_BRIEF, faults=(disks.pd_failed_sync_then_power,), mean_s=3.0),
    "members": replace(
        _BRIEF, faults=(lives.join, lives.join, lives.leave, lives.kill, lives.pd_killed), mean_s=0.6, seconds=9.0
    ),
    "tails": replace(_BRIEF, faults=(lives.kill_with_tail,)),
    "replaced disks": replace(
        _BRIEF,
        clients=(transactions.holding,),
        writers=8,
        rate=1.0,
        faults=(disks.replaced,),
        mean_s=6.0,
        seconds=25.0,
        operator=True,
    ),
    "collection": replace(
        _BRIEF,
        clients=(_TIDB, pullers.run, transactions.holding, _TIDB, pullers.run),
        writers=5,
        gc_s=_GC_S,
        segment_bytes=1 << 10,
        seconds=12.0,
        faults=(clocks.hours_on, clocks.hours_on, consumers.rests, lives.kill),
    ),
    "regions": replace(
        _BRIEF,
        faults=(regions.moved, regions.moved, links.partition, lives.kill, clocks.hours_on),
        tikv=True,
        mean_s=0.5,
    ),
    "regions and GC": replace(
        _BRIEF,
        faults=(regions.moved, regions.collects, lives.kill),
        tikv=True,
        unprotected=0.3,
        lands=False,
    ),
    "links": replace(_BRIEF, faults=(links.partition, links.delays)),
    "clocks": replace(_BRIEF, faults=(clocks.step, clocks.source_away)),
    "far future": replace(_BRIEF, clients=(_TIDB, _TIDB, hostile.far_future), faults=(lives.kill,)),
    "taken timestamps": replace(_BRIEF, clients=(_TIDB, _TIDB, hostile.taken), faults=(lives.kill,)),
    "forged bytes": replace(
        _BRIEF, clients=(_TIDB, forged.run), writers=4, mean_s=0.3, faults=(lives.power,), segment_bytes=64 << 10
    ),
    "flipped bits": replace(_BRIEF, faults=(bits.pump_log, lives.kill), lands=False),
    "flipped bits of PD": replace(_BRIEF, faults=(bits.pd_journal,), mean_s=0.3, lands=False),
    "two of one address": replace(_BRIEF, faults=(identity.same_address,), mean_s=6.0, seconds=25.0, lands=False),
    "two of one name": replace(_BRIEF, faults=(identity.other_address,), mean_s=6.0, seconds=25.0, lands=False),
}


def drawn(seed: int) -> Shape:
    """The random mixture of a seed: some faults, some clients, some sizes."""
    random = Random(f"{seed}/shape")
    faults = [fault for fault in FAULTS if random.random() < 0.35] or [random.choice(FAULTS)]
    odd = [client for client in CLIENTS[1:] if random.random() < 0.25]
    return Shape(
        pumps=random.choice((1, 2, 3, 3, 4)),
        writers=2 + len(odd),
        consumers=random.choice((1, 2)),
        seconds=random.choice((4.0, 6.0, 8.0)),
        mean_s=random.choice((0.3, 0.8, 1.5)),
        rate=random.choice((2.0, 4.0, 8.0)),
        faults=tuple(faults),
        clients=(transactions.run, transactions.run, *odd),
        segment_bytes=random.choice((1 << 10, 8 << 10, 64 << 10)),
    )


def shape_of(seed: int, name: str) -> Shape:
    """The shape of a run. Raises KeyError for an unknown scenario."""
    return SCENARIOS[name] if name else drawn(seed)
