"""Writes a capture to the pumps in order of arrival, as TiDB's pump client would, and leads PD's clock.

Payloads are sent as they were recorded: no timestamp is changed. A binlog waits for everything that must be durable
before it (`ReplaySchedule.may_write`), but later ones do not wait for it: many are in flight at a time and share group
commits.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog

from binlake import tso
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.clock import ReplayClock
from binlake.testkit.replay.outcomes import Outcomes
from binlake.testkit.replay.schedule import ReplaySchedule, ReplayStep, parse_binlog
from binlake.wire import binlog_pb2 as pb

log = structlog.get_logger()

WRITERS = 64
"""Writes in flight: enough for a group commit, few enough for one process."""
MAX_BYTES = 256 << 20
"""Bytes of payloads held in memory."""
_LEAD_EVERY_S = 0.02  # each Lead is an RPC and an fsync; if the bound is a little late, the clock only has to wait
_FAR = tso.compose(
    1000
)  # a binlog this far above the clock moves the clock first, because pumps refuse timestamps from the future
_AHEAD = tso.compose(5000)  # a binlog further above the bound waits for the binlogs in flight


class ReplayWriter(Protocol):
    """The pump client."""

    def write_prewrite(self, binlog: pb.Binlog) -> str:
        """Store a P on one pump; return the pump's node id."""

    def write_commit(self, binlog: pb.Binlog, node_id: str | None = None) -> str:
        """Store a C on the pump `node_id`."""

    def write_rollback(self, binlog: pb.Binlog, node_id: str | None = None) -> str:
        """Store an R on the pump `node_id`."""


@dataclass(frozen=True)
class ReplayResult:
    """What was written: `binlogs`, of `transactions` different commit_ts up to `last_ts`, in `seconds`."""

    binlogs: int
    transactions: int
    last_ts: int
    seconds: float


Progress = Callable[[int, int], None]
"""Called with (binlogs acked, all binlogs) a few times a second."""


class Replayer:
    """One replay of one capture. `rate`: binlogs a second, None = as fast as the pumps accept them."""

    def __init__(
        self,
        capture: Capture,
        outcomes: Outcomes,
        client: ReplayWriter,
        clock: ReplayClock,
        *,
        rate: float | None = None,
    ) -> None:
        self.schedule = ReplaySchedule.of(capture, outcomes)
        self._capture = capture
        self._client = client
        self._clock = clock
        self._rate = rate
        self._ready: queue.SimpleQueue[tuple[ReplayStep, pb.Binlog] | None] = queue.SimpleQueue()
        self._parked: deque[tuple[ReplayStep, pb.Binlog]] = deque()
        self._pump_of: dict[int, str] = {}
        self._state = threading.Condition()
        self._ended = threading.Event()
        self._in_flight = 0
        self._bytes = 0
        self._acked = 0
        self._failure: BaseException | None = None

    def run(self, progress: Progress | None = None) -> ReplayResult:
        """Write everything, then let the clock advance in real time. Raises the errors of the pump client and PD.

        A second replay into the same cluster fails at the first lead, before a byte is written, because PD's clock is
        past the capture. Writing the same capture again would be harmless (equal duplicates), but rows of another
        capture below a watermark would be lost silently.
        """
        began = time.monotonic()
        self._clock.lead(self.schedule.first_bound)
        threads = [threading.Thread(target=self._work, name=f"replay-{n}", daemon=True) for n in range(WRITERS)]
        threads.append(
            threading.Thread(target=self._lead_until_end, args=(progress,), name="replay-clock", daemon=True)
        )
        for thread in threads:
            thread.start()
        try:
            self._feed()
            self._drain()
        finally:
            for _ in range(WRITERS):
                self._ready.put(None)
            self._ended.set()
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure
        self._clock.lead(self.schedule.end)
        self._clock.release()
        result = self._build_result(time.monotonic() - began)
        log.info(
            "capture_replayed", capture=self._capture.name, binlogs=result.binlogs, seconds=round(result.seconds, 2)
        )
        return result

    def _build_result(self, seconds: float) -> ReplayResult:
        last = max((step.holds for step in self.schedule.steps), default=0)
        return ReplayResult(len(self.schedule.steps), self.schedule.transactions, last, seconds)

    def _feed(self) -> None:
        began = time.monotonic()
        for step, payload in zip(self.schedule.steps, self._capture.read_binlogs(), strict=True):
            if self._rate:
                time.sleep(max(0.0, began + step.index / self._rate - time.monotonic()))
            binlog = parse_binlog(self._capture, step.index, payload)
            with self._state:
                self._state.wait_for(lambda: self._failure or self._has_room(step))  # noqa: B023 - called in this turn
                if self._failure:
                    return
                self._in_flight += 1
                self._bytes += len(payload)
                if step.is_prewrite:
                    self._ready.put((step, binlog))
                else:
                    self._parked.append((step, binlog))
                    self._unpark()

    def _has_room(self, step: ReplayStep) -> bool:
        if self._in_flight >= 4 * WRITERS or self._bytes >= MAX_BYTES:
            return False
        return not self._in_flight or max(step.start_ts, step.commit_ts) <= self.schedule.compute_bound() + _AHEAD

    def _drain(self) -> None:
        with self._state:
            self._state.wait_for(lambda: self._failure or self._in_flight == 0)

    def _unpark(self) -> None:
        # First come, first served: `needs` never decreases along the capture.
        while self._parked and self.schedule.may_write(self._parked[0][0]):
            self._ready.put(self._parked.popleft())

    def _work(self) -> None:
        while (task := self._ready.get()) is not None:
            try:
                self._write(*task)
            except BaseException as error:  # noqa: BLE001 - carried to run(), which raises it
                with self._state:
                    self._failure = self._failure or error
                    self._state.notify_all()
                return

    def _write(self, step: ReplayStep, binlog: pb.Binlog) -> None:
        if max(step.start_ts, step.commit_ts) > self._clock.read_ts() + _FAR:
            self._lead_clock()
        if step.is_prewrite:
            self._pump_of[step.start_ts] = self._client.write_prewrite(binlog)
        elif step.kind == pb.Commit:
            self._client.write_commit(binlog, self._pump_of[step.start_ts])
        else:
            self._client.write_rollback(binlog, self._pump_of[step.start_ts])
        self.schedule.ack(step)
        with self._state:
            self._in_flight -= 1
            self._acked += 1
            self._bytes -= binlog.ByteSize()
            self._unpark()
            self._state.notify_all()

    def _lead_clock(self) -> None:
        bound = self.schedule.compute_bound()
        if bound < tso.MAX_TS:
            self._clock.lead(bound)

    def _lead_until_end(self, progress: Progress | None) -> None:
        """Keep the clock just below the schedule's bound, with one RPC for many acks."""
        reported_at = 0.0
        try:
            while True:
                ended = self._ended.wait(_LEAD_EVERY_S)
                self._lead_clock()
                if progress and (ended or time.monotonic() - reported_at > 0.1):
                    reported_at = time.monotonic()
                    progress(self._acked, len(self.schedule.steps))
                if ended:
                    return
        except BaseException as error:  # noqa: BLE001 - carried to run(), which raises it
            with self._state:
                self._failure = self._failure or error
                self._state.notify_all()
