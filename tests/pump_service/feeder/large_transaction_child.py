"""A worker that publishes a small and then a large transaction to a pump; prints its peak memory before and after."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path

from feeder_helpers import CountingClock
from support.binlogevents import Log, reader_of
from support.tabledefs import col, table

from binlake.cluster.pumpclient import ClientOptions, PumpClient
from binlake.mysqlbinlog.events.header import EventType
from binlake.mysqlbinlog.model import SourceTransaction, TableMap
from binlake.pump_service.feeder.journal import FeederJournal
from binlake.pump_service.feeder.parts import Parts
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.settings import SourceFile
from binlake.pump_service.feeder.worker import Worker
from binlake.rows.schema import mysqltypes as t

SOCKET, FOLDER, COUNT, IS_SPOOLED = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "spooled"
TEXT = b"x" * 4000
ROWS = b"".join(b"\0" + n.to_bytes(4, "little") + len(TEXT).to_bytes(2, "little") + TEXT for n in range(2))
"""Of one event: a server has 8 KiB in each."""
DEFINITION = table("t", col("id", t.LONG, primary=True), col("v", t.VARCHAR, flen=4000), pk_is_handle=True)


class Events:
    """The log of a server: a transaction with one event, then one with COUNT events, each made when it is read."""

    trouble, heard, server, connections, logs_cascades = "", 0.0, ("db1", 3306), 1, True
    received_position = ("", 0)

    def __init__(self) -> None:
        self._log = Log(checksums=False)
        self._reader = reader_of(**({"folder": FOLDER} if IS_SPOOLED else {}))
        self._reader.feed(self._log.description())
        self.wanted: queue.SimpleQueue[int] = queue.SimpleQueue()

    @property
    def position(self) -> object:
        return self._reader.position

    def read(self, *_: float) -> list[SourceTransaction]:
        try:
            count = self.wanted.get(timeout=0.05)
        except queue.Empty:
            return []
        log, feed = self._log, self._reader.feed
        names = b"\1d\0\1t\0"
        columns = b"\2" + bytes((t.LONG, t.VARCHAR)) + b"\2" + (4000).to_bytes(2, "little") + b"\2"
        for event in (
            log.gtid(),
            log.query("BEGIN"),
            log.event(EventType.TABLE_MAP, (7).to_bytes(6, "little") + bytes(2) + names + columns),
        ):
            feed(event)
        for _ in range(count):
            feed(log.event(EventType.WRITE_ROWS, (7).to_bytes(6, "little") + b"\1\0\2\0\2\3" + ROWS))
        transaction = feed(log.xid())
        assert transaction is not None
        return [transaction]

    def close(self) -> None:
        """Nothing waits for long."""

    end = close


class Definitions:
    """One table."""

    lock, version = threading.RLock(), 1

    def build_cascade_guard(self, _: str) -> None:
        """No foreign keys."""

    def find_definition(self, _: str, __: TableMap) -> object:
        return DEFINITION


def read_peak() -> int:
    """Bytes of memory that this process had at most, its code and caches of files included."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10


def main() -> None:
    """See the module."""
    journal, stopped, log = FeederJournal(FOLDER), threading.Event(), Events()
    stored: queue.SimpleQueue[int] = queue.SimpleQueue()
    with PumpClient(None, 1, ClientOptions(socket=SOCKET), stored=stored.put) as client:
        publisher = SourcePublisher(journal, client, CountingClock(), stopped)
        parts = Parts(journal, publisher, Definitions(), stopped, 1)  # type: ignore[arg-type]
        ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        worker = Worker(SourceFile.model_validate({"name": "s"}), parts, lambda: log, ended.put)  # type: ignore[arg-type, return-value]
        worker.start()
        peaks = []
        for count in (1, COUNT):
            log.wanted.put(count)
            stored.get(timeout=60)
            peaks.append(read_peak())
        stopped.set()
        worker.join()
    print(*peaks)


if __name__ == "__main__":
    main()
