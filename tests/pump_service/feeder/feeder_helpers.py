"""A cluster in memory for a publisher, which records what it receives."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from binlake.errors import SourceUnavailable
from binlake.mysqlbinlog.model import BinlogPosition
from binlake.pump_service.feeder.publisher import Outgoing, PublishedDdl
from binlake.wire import binlog_pb2 as pb
from binlake.wire.build import LargePrewrite


class CountingClock:
    """Consecutive timestamps; unavailable for the next `failures` calls."""

    def __init__(self, first: int = 1 << 40) -> None:
        self._ticks = itertools.count(first)
        self.failures = 0
        self.last = 0

    def __call__(self, count: int = 1) -> int:
        if self.failures:
            self.failures -= 1
            raise SourceUnavailable("PD does not answer")
        for _ in range(count):
            self.last = next(self._ticks)
        return self.last


def parse(large: LargePrewrite) -> pb.Binlog:
    """The binlog in pieces."""
    return pb.Binlog.FromString(b"".join(piece[:] for piece in large.pieces))


@dataclass
class MemoryPumps:
    """Accepts everything; the next `failures` calls find no pump.

    `clock_at_ack` has the clock's last timestamp at each acknowledgement.
    """

    got: list[pb.Binlog] = field(default_factory=list)
    sent_to: list[str | None] = field(default_factory=list)
    failures: int = 0
    clock_at_ack: list[int] = field(default_factory=list)
    clock: CountingClock | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def write_prewrites(self, binlogs: Sequence[pb.Binlog | LargePrewrite]) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise SourceUnavailable("no pump accepted the prewrite")
        self.got += [parse(binlog) if isinstance(binlog, LargePrewrite) else binlog for binlog in binlogs]
        if self.clock is not None:
            self.clock_at_ack.append(self.clock.last)
        return [f"pump{binlog.start_ts % 2}" for binlog in binlogs]

    def send_commit(self, binlog: pb.Binlog, node_id: str | None = None) -> str:
        self.got.append(binlog)
        self.sent_to.append(node_id)
        return node_id or ""

    def list_usable_pumps(self) -> list[str]:
        if self.failures:
            self.failures -= 1
            raise SourceUnavailable("PD does not answer")
        return ["pump0", "pump1"]

    def of_type(self, tp: int) -> list[pb.Binlog]:
        return [binlog for binlog in self.got if binlog.tp == tp]


def position(number: int) -> BinlogPosition:
    return BinlogPosition("bin.000001", number, f"0-1-{number}")


def rows(first: int, count: int) -> list[Outgoing]:
    return [Outgoing(f"0-1-{n}", 1000 + n, b"value-%d" % n) for n in range(first, first + count)]


def ddl(number: int, job_id: int, query: str) -> Outgoing:
    def job(start_ts: int, finished_ts: int) -> dict[str, Any]:
        return {"id": job_id, "query": query, "start_ts": start_ts, "binlog": {"FinishedTS": finished_ts}}

    return Outgoing(f"0-1-{number}", 1000 + number, ddl=PublishedDdl(query, job_id, job))
