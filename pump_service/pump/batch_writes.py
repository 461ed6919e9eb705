"""WriteBinlogs: many binlogs in one call. Each is stored or refused as if it had come alone; one answer covers all."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from binlake.errors import BinlakeError
from binlake.pump_service.pump.groupcommit import Behind
from binlake.pump_service.pump.service import PumpService
from binlake.wire.admin_pb2 import Refusal, WriteBinlogsReq, WriteBinlogsResp


class BatchWrite:
    """The binlogs of one call. `done(answer)` is called when each has its outcome, possibly on the log's thread.

    Raises DecodeError for a message that is not a WriteBinlogsReq.
    """

    def __init__(self, service: PumpService, message: bytes, done: Callable[[bytes], None]) -> None:
        self._service = service
        self._request = WriteBinlogsReq.FromString(message)
        self._done = done
        self._next = 0
        self._left = len(self._request.payloads) + 1  # one extra until all are handed over
        self._refusals: list[Refusal] = []
        self._lock = threading.Lock()
        self.since = time.perf_counter()

    @property
    def size(self) -> int:
        """Bytes not handed over yet."""
        return sum(map(len, self._request.payloads[self._next :]))

    def submit(self) -> bool:
        """Hand over the remaining binlogs; False if the storage ran out of room before the last one."""
        request = self._request
        while self._next < len(request.payloads):
            number = self._next
            try:
                self._service.submit(
                    request.cluster_id, request.payloads[number], partial(self._put, number), since=self.since
                )
            except Behind:
                return False
            except BinlakeError as error:
                self._put(number, error)
            self._next += 1
        self._put(-1, None)
        return True

    def refuse(self, error: BinlakeError) -> None:
        """Refuse the binlogs that are not handed over yet."""
        for number in range(self._next, len(self._request.payloads)):
            self._service.metrics.count_refusal(time.perf_counter() - self.since)
            self._put(number, error)
        self._put(-1, None)

    def _put(self, number: int, error: BinlakeError | None) -> None:
        with self._lock:
            if error is not None:
                self._refusals.append(Refusal(number=number, text=str(error)))
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._done(WriteBinlogsResp(refusals=self._refusals).SerializeToString())
