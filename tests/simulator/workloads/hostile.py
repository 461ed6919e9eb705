"""Clients that send what no TiDB sends: timestamps of the far future, and timestamps that are taken."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from simulator.placement import CLUSTER, SimulatedPd
from simulator.placement import reader as client

from binlake.errors import BinlakeError
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.pump_pb2 import WriteBinlogReq

if TYPE_CHECKING:
    from simulator.world import World

_FAR = (10**6, 1 << 30, 1 << 42)  # from seconds to for ever


def far_future(world: World, number: int) -> None:
    """Binlogs above every timestamp that PD has given."""
    random, pd = world.chance(f"hostile-{number}"), SimulatedPd()
    while world.writing:
        world.scheduler.sleep(random.expovariate(1.0))
        try:
            ts = pd.tso() + (random.choice(_FAR) << 18)
        except BinlakeError:
            continue
        known = build.prewrite(random.choice(world.truth.undecided() or [1]), b"k")
        _send(world, random, random.choice((build.fake(ts), build.prewrite(ts, b"k"), build.commit(known, ts))))


def taken(world: World, number: int) -> None:
    """Binlogs at timestamps that others have: late fakes, and P at the place of a C or of another P."""
    random = world.chance(f"hostile-{number}")
    while world.writing:
        world.scheduler.sleep(random.expovariate(2.0))
        committed = world.truth.committed()
        if not committed:
            continue
        start_ts = random.choice(sorted(committed)[-20:])
        commit_ts = committed[start_ts]
        another = build.prewrite(start_ts, b"other", random.randbytes(20))
        _send(world, random, random.choice((build.fake(commit_ts), build.fake(commit_ts), another)))


def _send(world: World, random: Random, binlog: Binlog) -> None:
    payload = binlog.SerializeToString()
    world.truth.hostile.add(payload)
    request = WriteBinlogReq(clusterID=CLUSTER, payload=payload).SerializeToString()
    try:
        with client.Channel(world.pump(random).config.addr) as channel:
            channel.call("/binlog.Pump/WriteBinlog", request, 3.0)
    except BinlakeError as error:
        world.trace(f"hostile {binlog.tp} {binlog.start_ts} {binlog.commit_ts} is refused: {error.message[:100]}")
    else:
        world.trace(f"hostile {binlog.tp} {binlog.start_ts} {binlog.commit_ts} is taken")
