"""Measures the value log's file operations: seconds of a batch, of its write and of its sync (tidb-binlog 2.14)."""

from __future__ import annotations

import io
import time

from binlake.pump_service.pump.files import Files
from binlake.pump_service.pump.metrics import PumpMetrics


class TimedFiles(Files):
    """A batch is everything appended between two syncs. Only one thread at a time may write, as in the value log."""

    def __init__(self, metrics: PumpMetrics) -> None:
        self._metrics = metrics
        self._began = 0.0
        self._bytes = 0

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        """Write at the end; return how many bytes were written."""
        self._began = self._began or time.perf_counter()
        written = super().append(file, data)
        self._bytes += written
        return written

    def sync(self, file: io.FileIO) -> None:
        """Make the file's content durable."""
        before = time.perf_counter()
        super().sync(file)
        now = time.perf_counter()
        self._metrics.count_sync(fsync_s=now - before, to_disk_s=now - (self._began or before), size=self._bytes)
        self._began, self._bytes = 0.0, 0
