"""Fake binlogs: they move the watermark of a pump that gets no writes (hazards R-49, R-50)."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from binlake.errors import BinlakeError
from binlake.pump_service.pump.service import PumpService
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire.build import build_fake

log = structlog.get_logger()


class FakeWriter:
    """Writes a fake binlog if only fakes have moved the watermark since the last check (hazards R-50)."""

    def __init__(self, storage: PumpStorage, clock: Callable[[], int], service: PumpService) -> None:
        self._storage = storage
        self._clock = clock
        self._service = service
        self._seen = 0

    def tick(self) -> None:
        """Write a fake if the watermark has not moved. A failure is shown by Info, not raised."""
        watermark = self._storage.watermark
        if watermark > self._seen:
            self._seen = watermark
            return
        try:
            self.write()
        except BinlakeError as error:
            self._service.problems.set("fake", str(error))
            log.warning("fake_not_written", error=str(error))
        else:
            self._service.problems.set("fake", "")

    def write(self, ts: int = 0) -> int:
        """Store one fake at `ts`, or a fresh timestamp, and return it. Raises BinlakeError."""
        ts = ts or self._clock()
        self._storage.append(build_fake(ts).SerializeToString()).result()
        self._seen = max(self._seen, ts)
        return ts
