"""The pump's metrics: the original's names, labels and buckets (tidb-binlog 2.14), and Binlake's own.

Timestamps are shown as Unix milliseconds, as the original shows them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from binlake import tso
from binlake.pump_service.monitoring import (
    Counter,
    Histogram,
    Instrument,
    Reading,
    compute_exponential_bounds,
    render_page,
)
from binlake.pump_service.pump.future_timestamps import count_set_aside
from binlake.pump_service.pump.storage import PumpStorage

_STORAGE = "binlog_pump_storage"


class PumpMetrics:
    """The instruments that the service updates."""

    def __init__(self) -> None:
        self._rpc = Histogram(
            "binlog_pump_rpc_duration_seconds",
            "Bucketed histogram of processing time (s) of rpc queries.",
            ("method", "label"),
            compute_exponential_bounds(0.00005, 2, 18),
        )
        self._seconds = Histogram(
            f"{_STORAGE}_write_binlog_duration_time",
            "Bucketed histogram of write time (s) of binlog.",
            ("type",),
            compute_exponential_bounds(0.00005, 2, 20),
        )
        self._bytes = Histogram(
            f"{_STORAGE}_write_binlog_size", "Bytes of a write", ("type",), compute_exponential_bounds(16, 2, 25)
        )
        self._lost = Counter("binlog_pump_loss_binlog_count", "Writes that were refused or failed")
        self.errors = Counter(f"{_STORAGE}_error_count", "Failures of the storage", ("type",))
        self.forced = Counter("binlake_pump_forced_resolutions_total", "Prewrites whose outcome an operator decided")
        self.given_up = Counter(
            "binlake_pump_given_up_commits_total", "Commits without a prewrite that an operator gave up"
        )
        # Looked up once: these are used for each write.
        self._write_done = self._rpc.get_series("WriteBinlog", "succ")
        self._write_seconds = self._seconds.get_series("single").observe_all
        self._write_bytes = self._bytes.get_series("single").observe_all

    def count_writes(self, seconds: Sequence[float], sizes: Sequence[int]) -> None:
        """WriteBinlogs of `sizes` bytes were acked after `seconds`."""
        self._write_done.observe_all(seconds)
        self._write_seconds(seconds)
        self._write_bytes(sizes)

    def count_sync(self, *, fsync_s: float, to_disk_s: float, size: int) -> None:
        """A batch of `size` bytes is durable: seconds of its write and sync, and of the sync alone."""
        for kind, seconds in (("fsync", fsync_s), ("to_disk", to_disk_s), ("batch", to_disk_s)):
            self._seconds.get_series(kind).observe(seconds)
        self._bytes.get_series("batch").observe(size)

    def count_probe(self, seconds: float) -> None:
        """An empty WriteBinlog was accepted."""
        self._write_done.observe(seconds)

    def count_refusal(self, seconds: float) -> None:
        """A WriteBinlog ended with an error after the check of the cluster id."""
        self._rpc.get_series("WriteBinlog", "fail").observe(seconds)
        self._lost.add()

    def count_pull(self, seconds: float, *, well: bool) -> None:
        """A PullBinlogs stream ended after `seconds`; `well`: its caller ended it."""
        self._rpc.get_series("PullBinlogs", "succ" if well else "fail").observe(seconds)

    def render_page(self, storage: PumpStorage, status_queries: Callable[[], int], score: Callable[[], int]) -> bytes:
        """The metrics page: all counters, and the present readings of the storage."""
        counted: list[Instrument] = [
            self._rpc,
            self._lost,
            self._seconds,
            self._bytes,
            self.errors,
            self.forced,
            self.given_up,
        ]
        return render_page([*counted, *_build_readings(storage, status_queries, score)])


def _build_readings(storage: PumpStorage, queries: Callable[[], int], score: Callable[[], int]) -> list[Instrument]:
    counters = storage.counters
    return [
        Reading(f"{_STORAGE}_gc_ts", "gc ts of storage", lambda: tso.extract_physical(storage.index.gc_ts)),
        Reading(
            f"{_STORAGE}_max_commit_ts", "max commit ts of storage", lambda: tso.extract_physical(storage.watermark)
        ),
        Reading(f"{_STORAGE}_storage_size_bytes", "storage size info", lambda: _measure_disk_bytes(storage), "type"),
        Reading(f"{_STORAGE}_done_gc_ts", "gc ts of the last gc", lambda: tso.extract_physical(counters.done_gc_ts)),
        Reading(f"{_STORAGE}_deleted_kv_total", "Keys removed by gc", lambda: counters.collected_keys, kind="counter"),
        Reading(
            f"{_STORAGE}_slow_chaser_count",
            "Times the index fell behind the value log",
            lambda: counters.slow_chases,
            kind="counter",
        ),
        Reading(
            "binlake_pump_contradicted_rollbacks_total",
            "Rollbacks from a writer whose transaction was committed",
            lambda: counters.contradicted,
            kind="counter",
        ),
        Reading(f"{_STORAGE}_query_tikv_count", "Times the source was asked about a prewrite", queries, kind="counter"),
        Reading(
            "binlake_pump_future_timestamps_total",
            "Binlogs that were refused because their timestamp is above PD's clock",
            lambda: storage.refused_future,
            kind="counter",
        ),
        Reading(
            "binlake_pump_set_aside_binlogs",
            "Binlogs that a command moved out of the value log",
            lambda: count_set_aside(storage.directory.path),
        ),
        Reading(
            "binlake_pump_unmatched_prewrites",
            "Prewrites without a commit or rollback",
            lambda: storage.count_unmatched()[0],
        ),
        Reading("binlake_pump_score", "Free capacity of this pump, 0 to 100", score),
        Reading(
            "binlake_pump_late_commits_total",
            "Commits that came too late for their place in commit order",
            lambda: counters.late_commits,
            kind="counter",
        ),
        Reading(
            "binlake_pump_early_commits_total",
            "Commits whose commit_ts is older than their prewrite",
            lambda: counters.early_commits,
            kind="counter",
        ),
    ]


def _measure_disk_bytes(storage: PumpStorage) -> dict[str, float]:
    stat = os.statvfs(storage.directory.path)
    return {"capacity": stat.f_blocks * stat.f_frsize, "available": stat.f_bavail * stat.f_frsize}
