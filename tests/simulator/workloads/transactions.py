"""TiDB: transactions through the product's pump client, with all possible outcomes of a transaction."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from binlake.cluster.placement import NodeRegistry
from binlake.cluster.pumpclient import ClientOptions, PumpClient, WriteTimes
from binlake.errors import BinlakeError
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog
from simulator.placement import CLUSTER, SimulatedEtcd, SimulatedPd

if TYPE_CHECKING:
    from simulator.truth import Transaction
    from simulator.world import World

TIMES = WriteTimes(write_timeout=3.0, commit_timeout=20.0, probe_interval=2.0)
_SHORT_S, _LONG_S = 0.05, 8.0

Prewrite = Callable[["World", Random, int], Binlog]


def plain(world: World, random: Random, start_ts: int) -> Binlog:
    """A P with rows of some size."""
    del world
    return build.build_prewrite(start_ts, b"k%d" % start_ts, random.randbytes(random.choice((10, 60, 200, 900))))


def holding(world: World, number: int) -> None:
    """Long transactions: each stays open during many others."""
    run(world, number, open_s=_LONG_S)


def run(world: World, number: int, prewrite_of: Prewrite = plain, open_s: float = _SHORT_S) -> None:
    """Write until the world is stopping. `open_s`: mean time for which a transaction is open."""
    random = world.chance(f"writer-{number}")
    pd = SimulatedPd()
    options = ClientOptions(random.choice(("range", "hash", "score")), times=TIMES)
    client = PumpClient(NodeRegistry(SimulatedEtcd()), CLUSTER, options)
    while world.writing:
        try:
            _transaction(world, client, pd, random, prewrite_of, open_s)
        except BinlakeError as error:
            world.trace(f"writer-{number}: {error}")
            world.scheduler.sleep(0.2)
        world.scheduler.sleep(random.expovariate(world.rate))
    client.drain(30.0)
    client.close()


def _transaction(
    world: World, client: PumpClient, pd: SimulatedPd, random: Random, prewrite_of: Prewrite, open_s: float
) -> None:
    start_ts = pd.fetch_ts()
    prewrite = prewrite_of(world, random, start_ts)
    transaction = world.truth.begin(start_ts, prewrite)
    try:
        node_id = client.write_prewrite(prewrite)
        world.scheduler.sleep(random.expovariate(1 / open_s))
        transaction.commit_ts = pd.fetch_ts()
    except BinlakeError:
        world.truth.roll_back(transaction, protected=random.random() >= world.shape.unprotected)
        raise
    world.scheduler.sleep(random.expovariate(50.0))
    _end(world, client, random, transaction, prewrite, node_id)


def _end(
    world: World, client: PumpClient, random: Random, transaction: Transaction, prewrite: Binlog, node_id: str
) -> None:
    fate = random.random()
    if fate < 0.06:  # rolled back, and an R is sent
        world.truth.roll_back(transaction, protected=random.random() >= world.shape.unprotected)
        client.send_rollback(build.build_rollback(prewrite))
    elif fate < 0.09:  # TiDB dies before it decides
        world.truth.leave(transaction)
        client.forget(transaction.start_ts)
    elif not world.truth.commit(transaction):
        client.send_rollback(build.build_rollback(prewrite))
    elif fate < 0.13:  # TiDB dies after the commit, so no C is sent
        client.forget(transaction.start_ts)
    elif fate < 0.15:  # the commit was undetermined, and TiDB reports a rollback
        client.send_rollback(build.build_rollback(prewrite))
    elif fate < 0.2:
        client.write_commit(build.build_commit(prewrite, transaction.commit_ts))
        client.write_commit(build.build_commit(prewrite, transaction.commit_ts), node_id)
    else:
        client.send_commit(build.build_commit(prewrite, transaction.commit_ts))
