"""Sends commits and rollbacks to their prewrite's pump in the background, with a retry each second for ten minutes.

No caller waits for them (tidb-binlog 4). Those that a pump has not accepted by then are given up, counted and logged:
the pump will ask the source. One thread serves all pumps without blocking, so a dead pump does not delay the others.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from binlake.cluster.pumpclient.pumps import Pumps
from binlake.cluster.pumpclient.transport import WriteRefusal, WriteRequest

log = structlog.get_logger()


@dataclass
class TransactionEnd:
    """A commit or rollback that is being sent to the pump `node_id`."""

    start_ts: int
    node_id: str
    request: WriteRequest
    begun: float = field(default_factory=time.monotonic)


class Ends:
    """Thread-safe. `settled(start_ts, accepted)` is called for each commit or rollback that is accepted or given up."""

    def __init__(
        self, pumps: Pumps, *, timeout_s: float, retry_s: float, give_up_s: float, settled: Callable[[int, bool], None]
    ) -> None:
        self._pumps = pumps
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._give_up_s = give_up_s
        self._settled = settled
        self._changed = threading.Condition()
        self._queue: list[tuple[float, int, TransactionEnd]] = []
        self._order = itertools.count()
        self._pending = 0
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.retries = 0
        self.given_up = 0

    def put(self, end: TransactionEnd) -> None:
        """Send `end` now, and retry until it is accepted or given up."""
        with self._changed:
            self._pending += 1
        self._try(end)

    def drain(self, timeout_s: float) -> int:
        """Wait until all are accepted or given up, for at most `timeout_s`; returns how many are still pending."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending == 0, timeout_s)
            return self._pending

    def stop(self) -> None:
        """Stop sending; the pumps must resolve what is still pending."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _try(self, end: TransactionEnd) -> None:
        pump = self._pumps.find(end.node_id)
        if pump is None:
            self._on_outcome(end, WriteRefusal("the pump is not registered"))
            return

        def record_outcome(refused: WriteRefusal | None) -> None:
            if refused is None:
                self._pumps.record_success(pump)
            else:
                self._pumps.record_failure(pump)
            self._on_outcome(end, refused)

        pump.connection.send(end.request, self._timeout_s, record_outcome)

    def _on_outcome(self, end: TransactionEnd, refused: WriteRefusal | None) -> None:
        late = time.monotonic() - end.begun > self._give_up_s
        with self._changed:
            if refused is not None and not late and not self._stopped:
                self.retries += 1
                heapq.heappush(self._queue, (time.monotonic() + self._retry_s, next(self._order), end))
                self._start()
                self._changed.notify_all()
                return
            self._pending -= 1
            self.given_up += refused is not None
            self._changed.notify_all()
        if refused is not None:
            log.warning("end_given_up", pump=end.node_id, start_ts=end.start_ts, error=refused.text)
        self._settled(end.start_ts, refused is None)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pumpclient-ends", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (end := self._take_next()) is not None:
            self._try(end)

    def _take_next(self) -> TransactionEnd | None:
        with self._changed:
            while not self._stopped:
                wait_s = self._queue[0][0] - time.monotonic() if self._queue else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._queue)[2]
                self._changed.wait(wait_s)
            return None
