"""Rows whose bytes look like the value log's own: records of other transactions, footers, headers."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import google_crc32c

from binlake.pump_service.pump.record import END_MAGIC, MAGIC, OLD_FOOTER, OLD_RECORD
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog
from simulator.workloads import transactions

if TYPE_CHECKING:
    from simulator.world import World

_UNKNOWN_FIELD = b"\xa2\x06"  # field number 100, bytes


def run(world: World, number: int) -> None:
    """Write like any TiDB, but with such rows."""
    transactions.run(world, number, prewrite)


def prewrite(world: World, random: Random, start_ts: int) -> Binlog:
    """A P with such rows; some end with a footer."""
    pieces = [_piece(world, random, start_ts) for _ in range(random.randint(1, 6))]
    binlog = build.build_prewrite(
        start_ts, b"k%d" % start_ts, random.randbytes(random.randrange(80)) + b"".join(pieces)
    )
    if random.random() < 0.4:
        tail = random.randbytes(8) + OLD_FOOTER.pack(random.choice((start_ts, 0, start_ts << 1)), END_MAGIC)
        binlog = Binlog.FromString(binlog.SerializeToString() + _UNKNOWN_FIELD + bytes((len(tail),)) + tail)
    return binlog


def _piece(world: World, random: Random, start_ts: int) -> bytes:
    undecided = world.truth.undecided()
    kind = random.random()
    if kind < 0.6 and undecided:
        of = build.build_prewrite(random.choice(undecided), b"k")
        return _record(build.build_commit(of, start_ts + random.randint(1, 1000)).SerializeToString())
    if kind < 0.8:
        return OLD_RECORD.pack(MAGIC, random.randint(1, 1000), random.getrandbits(32))
    return OLD_FOOTER.pack(start_ts, END_MAGIC)


def _record(payload: bytes) -> bytes:
    return OLD_RECORD.pack(MAGIC, len(payload), google_crc32c.value(payload)) + payload
