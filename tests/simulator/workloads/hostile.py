"""Clients that send what no TiDB sends: timestamps of the far future, and timestamps that are in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from binlake.errors import BinlakeError
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.pump_pb2 import WriteBinlogReq
from simulator.placement import CLUSTER, SimulatedPd
from simulator.placement import reader as client

if TYPE_CHECKING:
    from simulator.cluster import PumpHome
    from simulator.world import World

_FAR = (10**6, 1 << 30, 1 << 42)  # from seconds to forever


def far_future(world: World, number: int) -> None:
    """Binlogs above every timestamp that PD has given."""
    random, pd = world.chance(f"hostile-{number}"), SimulatedPd()
    while world.writing:
        world.scheduler.sleep(random.expovariate(1.0))
        try:
            ts = pd.fetch_ts() + (random.choice(_FAR) << 18)
        except BinlakeError:
            continue
        known = build.build_prewrite(random.choice(world.truth.undecided() or [1]), b"k")
        binlog = random.choice((build.build_fake(ts), build.build_prewrite(ts, b"k"), build.build_commit(known, ts)))
        _send(world, world.pump(random), binlog)


def taken(world: World, number: int) -> None:
    """Binlogs at timestamps in use: late fakes, and P at the timestamp of a C or of another P."""
    random = world.chance(f"hostile-{number}")
    while world.writing:
        world.scheduler.sleep(random.expovariate(2.0))
        committed = world.truth.committed()
        if not committed:
            continue
        start_ts = random.choice(sorted(committed)[-20:])
        commit_ts = committed[start_ts]
        another = build.build_prewrite(start_ts, b"other", random.randbytes(20))
        binlog = random.choice((build.build_fake(commit_ts), build.build_fake(commit_ts), another))
        # To the pump that has the timestamp: at another pump it would be another transaction, which stops the pipeline.
        holders = [pump for pump in world.pumps.values() if start_ts in world.truth.store(pump.name).prewrites]
        if holders:
            _send(world, random.choice(holders), binlog)


def _send(world: World, pump: PumpHome, binlog: Binlog) -> None:
    payload = binlog.SerializeToString()
    world.truth.hostile.add(payload)
    request = WriteBinlogReq(clusterID=CLUSTER, payload=payload).SerializeToString()
    try:
        with client.Channel(pump.config.addr) as channel:
            channel.call("/binlog.Pump/WriteBinlog", request, 3.0)
    except BinlakeError as error:
        world.trace(f"hostile {binlog.tp} {binlog.start_ts} {binlog.commit_ts} is refused: {error.message[:100]}")
    else:
        world.trace(f"hostile {binlog.tp} {binlog.start_ts} {binlog.commit_ts} is accepted")
