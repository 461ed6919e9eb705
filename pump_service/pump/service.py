"""The pump's calls without a transport (tidb-binlog 2.8, 2.9): a transport only carries bytes and errors.

P is accepted only while the state is online, which the server sets after the registration is confirmed (S0-57); C and R
are accepted in any state. When the disk is nearly full, only fakes are stored; they move the watermark of a pump that
gets no writes (hazards R-49, R-50). All calls are counted here.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import structlog

from binlake.common.localfiles import measure_disk
from binlake.errors import BinlakeError, ConfigError, Transient
from binlake.pump_service.pump.groupcommit import Behind, Done
from binlake.pump_service.pump.heads import parse_binlog
from binlake.pump_service.pump.index import measure_range
from binlake.pump_service.pump.metrics import PumpMetrics
from binlake.pump_service.pump.pull import StreamReader
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire.admin_pb2 import InfoResp, MeasureRangeReq, MeasureRangeResp
from binlake.wire.binlog_pb2 import Prewrite
from binlake.wire.build import build_fake

log = structlog.get_logger()

_DISK_LOOK_S = 3.0  # tidb-binlog 2.8


class State(StrEnum):
    """States of the registry (tidb-binlog 3.2); STARTING is internal and never written there."""

    STARTING = "starting"
    ONLINE = "online"
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    OFFLINE = "offline"


_ONLINE = State.ONLINE  # read for each write; an attribute of an Enum costs a call


class Problems:
    """Present problems, by topic; thread-safe. `str()` is the line that Info shows, empty = no problem."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_topic: dict[str, str] = {}

    def set(self, topic: str, text: str) -> None:
        """Set the problem of `topic`; an empty text clears it."""
        with self._lock:
            self._by_topic.pop(topic, None)
            if text:
                self._by_topic[topic] = text

    def find(self, topic: str) -> str:
        """The problem of `topic`; empty = none."""
        with self._lock:
            return self._by_topic.get(topic, "")

    def __str__(self) -> str:
        with self._lock:
            return "; ".join(f"{topic}: {text}" for topic, text in self._by_topic.items())


class PumpService:
    """WriteBinlog, PullBinlogs and Info over a Storage.

    `free_bytes_needed`: free disk space below which writes are refused (2.8). `slow_write_s`: a slower write is logged.
    """

    def __init__(
        self,
        storage: PumpStorage,
        cluster_id: int,
        *,
        free_bytes_needed: int,
        slow_write_s: float = 1.0,
        metrics: PumpMetrics | None = None,
    ) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._free_bytes_needed = free_bytes_needed
        self._slow_write_s = slow_write_s
        self.node_id = ""
        self.state = State.STARTING
        self.problems = Problems()
        self.metrics = metrics or PumpMetrics()
        self.status_queries: Callable[[], int] = int
        self._serving = True
        self._tell_end: Callable[[], None] = lambda: None
        self._full = (0.0, False)
        self._stored: deque[tuple[float, int]] = deque()  # (start time, bytes) of the writes of the current batch
        self._tell_batch: Callable[[], None] = lambda: None
        storage.on_batch(self._on_batch)

    def submit(self, cluster_id: int, payload: bytes, done: Done, *, since: float | None = None) -> None:
        """Store a binlog without blocking: `done` gets the outcome, possibly on the log's thread.

        `since`: time.perf_counter() when the call came. Raises ConfigError for another cluster, Transient when the
        state or the disk forbids it, WireError for bytes that are not a binlog, and Behind (which is not counted) when
        too much is in flight: the caller tries again after `on_batch`.
        """
        self._check_cluster(cluster_id)
        began = time.perf_counter() if since is None else since
        try:
            self._check_state(payload)
            if payload:
                answered = functools.partial(self._count_answer, began, len(payload), done)
                self._storage.submit(payload, answered)
        except BinlakeError as error:
            if not isinstance(error, Behind):
                self.metrics.count_refusal(time.perf_counter() - began)
            raise
        if not payload:
            self.metrics.count_probe(time.perf_counter() - began)
            done(None)
            self._tell_batch()

    def on_batch(self, tell: Callable[[], None]) -> None:
        """Call `tell` after each batch (a probe counts as one), once all its writes are answered and their memory is
        free.

        Usually called on the log's thread: it must not block.
        """
        self._tell_batch = tell

    def _on_batch(self) -> None:
        if self._stored:
            self._count_stored()
        self._tell_batch()

    def _count_stored(self) -> None:
        now, stored = time.perf_counter(), self._stored
        seconds, sizes = list[float](), list[int]()
        while stored:
            began, size = stored.popleft()
            seconds.append(now - began)
            sizes.append(size)
            if now - began >= self._slow_write_s:
                self._warn_of_slow(now - began, size)
        self.metrics.count_writes(seconds, sizes)

    def _warn_of_slow(self, seconds: float, size: int) -> None:
        log.warning("slow_write", seconds=round(seconds, 3), bytes=size, pump=self.node_id)

    def _check_state(self, payload: bytes) -> None:
        if self.state is not _ONLINE and (not payload or parse_binlog(payload).tp == Prewrite):
            raise Transient(f"the pump is {self.state}: it accepts no prewrites", where={"pump": self.node_id})
        if self.is_disk_full():
            raise Transient("no space left for binlogs (stop-write-at-available-space)", where={"pump": self.node_id})

    def _count_answer(self, began: float, size: int, done: Done, error: BinlakeError | None) -> None:
        if error is None:
            self._stored.append((began, size))
        else:
            seconds = time.perf_counter() - began
            self.metrics.count_refusal(seconds)
            self.metrics.errors.add("write")
            if seconds >= self._slow_write_s:
                self._warn_of_slow(seconds, size)
        done(error)

    def check_pull(self, cluster_id: int, after_ts: int) -> None:
        """Raise ConfigError for a pull that this pump cannot serve, Transient while the index is being built."""
        self._check_cluster(cluster_id)
        if after_ts < 0:
            raise ConfigError("startFrom.offset is negative", where={"offset": after_ts})
        self._storage.check_recovered()

    def build_reader(self, *, in_parts: bool = False) -> StreamReader:
        """A reader for pull.catch_up(); `in_parts` as there."""
        return StreamReader(self._storage, in_parts=in_parts)

    def note_pull_fault(self, at: int, error: BinlakeError) -> None:
        """A pull cannot pass `at`: Info shows why."""
        self._storage.pull_fault.record(at, error)

    @property
    def watermark(self) -> int:
        """Everything at or below it is complete."""
        return self._storage.watermark

    def wait_above(self, ts: int, timeout_s: float, give_up: Callable[[], bool]) -> None:
        """Wait until the watermark is above `ts`, until `give_up()` after a wake, or for `timeout_s`."""
        self._storage.wait_above(ts, timeout_s, give_up)

    @property
    def writing(self) -> bool:
        """Whether writers are waiting for their fsync now."""
        return self._storage.in_flight_bytes > 0

    def end_pulls(self) -> None:
        """End every pull stream."""
        self._serving = False
        self._tell_end()
        self._storage.wake()

    def on_end_pulls(self, tell: Callable[[], None]) -> None:
        """Call `tell` when pulls must end, from any thread."""
        self._tell_end = tell

    @property
    def serving(self) -> bool:
        """False once `end_pulls` was called."""
        return self._serving

    def is_disk_full(self) -> bool:
        """Whether only fakes may be stored; checked every few seconds, and shown as a problem."""
        looked, full = self._full
        now = time.monotonic()
        if looked and now - looked < _DISK_LOOK_S:
            return full
        available = self._storage.directory.measure_available_bytes()
        full = available <= self._free_bytes_needed
        text = f"{available} bytes available, {self._free_bytes_needed} needed: writes are refused" if full else ""
        self.problems.set("disk", text)
        self._full = (now, full)
        return full

    def find_unhealthy(self) -> list[str]:
        """Why only a restart would help: the disk failed a write of the value log, so nothing is stored any more."""
        return [f"storage: {self._storage.log_failure}"] if self._storage.log_failure else []

    def find_unready(self) -> list[str]:
        """Why writers are refused, or what is written would not be seen; empty = the pump can do its work.

        A prewrite that blocks the watermark is no reason: the pump goes on to accept writes.
        """
        reasons = [] if self.state is _ONLINE else [f"the pump is {self.state}"]
        if self._storage.error:
            reasons.append(f"storage: {self._storage.error}")
        self.is_disk_full()
        for topic in ("disk", "registry", "future"):
            if text := self.problems.find(topic):
                reasons.append(f"{topic}: {text}")
        return reasons

    def describe_problems(self) -> str:
        """Present problems in one line; empty = none."""
        self.problems.set("storage", self._storage.error)
        self.problems.set("pull", self._storage.pull_fault.text)
        given_up = self._storage.given_up
        self.problems.set(
            "accept-damage", f"{given_up} damaged parts of the value log were given up" if given_up else ""
        )
        return str(self.problems)

    def build_info(self) -> InfoResp:
        """This pump's identity, and up to which timestamp it is complete."""
        count, oldest = self._storage.count_unmatched()
        counters, disk = self._storage.counters, measure_disk(self._storage.directory.path)
        return InfoResp(
            cluster_id=self._cluster_id,
            node_id=self.node_id,
            store_uuid=self._storage.directory.store_uuid,
            state=self.state.value,
            max_commit_ts=self._storage.watermark,
            gc_ts=self._storage.index.gc_ts,
            unmatched_prewrites=count,
            oldest_unmatched_start_ts=oldest,
            last_error=self.describe_problems(),
            late_commits=counters.late_commits,
            early_commits=counters.early_commits,
            status_queries=self.status_queries(),
            lost_commit_ts=self._storage.lost.commit_ts(),
            disk_stored=disk.stored,
            disk_free=disk.free,
            disk_size=disk.size,
        )

    def measure_range(self, request: MeasureRangeReq) -> MeasureRangeResp:
        """About how many bytes of binlogs a range has, and where to divide it. Raises Permanent for damage."""
        storage = self._storage
        size, cuts = measure_range(
            storage.index, storage.records, request.after_ts, request.upto_ts, request.part_bytes
        )
        return MeasureRangeResp(bytes=size, cuts=cuts)

    def _check_cluster(self, cluster_id: int) -> None:
        if cluster_id != self._cluster_id:
            raise ConfigError(
                f"mismatched cluster id: the call has {cluster_id}, this pump belongs to {self._cluster_id}",
                where={"pump": self.node_id},
            )


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
