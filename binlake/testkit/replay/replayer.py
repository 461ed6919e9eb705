"""Writes a capture to the pumps in order of arrival, as TiDB's pump client would, and leads PD's clock.

Payloads are sent as they were recorded: no timestamp is changed. A binlog waits for everything that must be durable
before it (`ReplaySchedule.may_write`), but later ones do not wait for it: many are in flight at a time and share group
commits.

The rule (DESIGN 5): every timestamp that PD gives is below the least commit_ts not yet acked. Arrival order is not
commit order, so this minimum covers the whole rest of the capture. The rule keeps the watermark correct (tidb-binlog
2.5): a fake at F is logged with F < bound <= commit_ts of every transaction whose P is not acked yet, so a P cannot
follow a fake at or above its commit_ts. While the replay runs, nothing at or above `bound` has happened yet; after the
release the clock advances in real time.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from binlake import tso
from binlake.cluster.placement import ClockClient
from binlake.errors import ConfigError, WireError
from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.recorded import Outcomes
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
Progress = Callable[[int, int], None]
"""Called with (binlogs acked, all binlogs) a few times a second."""


class ReplayClock:
    """Leads PD's clock; thread-safe. Bounds never decrease."""

    def __init__(self, pd: ClockClient) -> None:
        self._pd = pd
        self._lock = threading.Lock()
        self._bound = 0
        self._released: float | None = None

    def lead(self, bound: int) -> None:
        """Move the bound up to `bound` (TSO). Raises PD's errors, ConfigError if PD's clock is already past it."""
        with self._lock:
            if bound > self._bound:
                last = self._pd.lead(bound)
                if last >= bound:
                    raise ConfigError(
                        f"PD has already given out the timestamp {last}, but the replay needs PD's clock below {bound}",
                        hint="this capture was already replayed into this cluster, or PD followed the wall clock: "
                        "start a new `binlake pd` with its clock held, and pumps with fresh data directories",
                    )
                self._bound = bound

    def release(self) -> None:
        """End the replay: let PD's clock advance in real time."""
        with self._lock:
            self._pd.release()
            self._released = time.monotonic()

    def read_ts(self) -> int:
        """The ts below which everything has happened."""
        with self._lock:
            if self._released is None:
                return self._bound
            return self._bound + tso.compose(int((time.monotonic() - self._released) * 1000))


@dataclass(frozen=True, slots=True)
class ReplayStep:
    """One binlog of the capture. `needs`: how many prewrites must be acked before it is written (0 for a prewrite);
    `holds`: the commit_ts that the clock must not reach until this step is acked, 0 = none."""

    index: int
    kind: int
    start_ts: int
    commit_ts: int
    needs: int
    holds: int

    @property
    def is_prewrite(self) -> bool:
        """True for a P."""
        return self.kind == pb.Prewrite


class ReplaySchedule:
    """The steps of a capture; thread-safe. Memory: some 100 bytes a binlog, no payloads.

    A C or R waits for every P that arrived before it: its own P, and each whose commit_ts may be below its own (hazards
    R-09: otherwise a commit_ts would be logged before a P that commits below it).
    """

    def __init__(self, steps: Iterable[ReplayStep]) -> None:
        self.steps = tuple(steps)
        self._lock = threading.Lock()
        self._holds = sorted((step.holds, step.index) for step in self.steps if step.holds)
        self._next = 0
        self._acked = bytearray(len(self.steps))
        self._prewrites = [step.index for step in self.steps if step.is_prewrite]
        self._prefix = 0

    @classmethod
    def of(cls, capture: Capture, outcomes: Outcomes) -> ReplaySchedule:
        """Read the capture once. Raises WireError for damage and for a C or R without its P."""
        return cls(_read_steps(capture, outcomes))

    @property
    def first_bound(self) -> int:
        """The least commit_ts of the capture; MAX_TS when it has none."""
        return self._holds[0][0] if self._holds else tso.MAX_TS

    @property
    def end(self) -> int:
        """A timestamp above all of the capture: the clock advances from here, and repeats none of the capture's."""
        return 1 + max((max(step.start_ts, step.commit_ts, step.holds) for step in self.steps), default=0)

    @property
    def transactions(self) -> int:
        """The number of different commit_ts in the capture."""
        return len({hold for hold, _ in self._holds})

    def compute_bound(self) -> int:
        """The least commit_ts not yet acked; MAX_TS when all are. Never decreases."""
        with self._lock:
            while self._next < len(self._holds) and self._acked[self._holds[self._next][1]]:
                self._next += 1
            return self._holds[self._next][0] if self._next < len(self._holds) else tso.MAX_TS

    def ack(self, step: ReplayStep) -> None:
        """Record that `step` is durable on a pump."""
        with self._lock:
            self._acked[step.index] = 1
            while self._prefix < len(self._prewrites) and self._acked[self._prewrites[self._prefix]]:
                self._prefix += 1

    def may_write(self, step: ReplayStep) -> bool:
        """Whether everything that must be durable before `step` is durable."""
        with self._lock:
            return self._prefix >= step.needs


def _read_steps(capture: Capture, outcomes: Outcomes) -> Iterable[ReplayStep]:
    prewrites = 0
    known: set[int] = set()
    for index, payload in enumerate(capture.read_binlogs()):
        binlog = parse_binlog(capture, index, payload)
        start = binlog.start_ts
        if binlog.tp == pb.Prewrite:
            prewrites += 1
            known.add(start)
            # The pump itself writes an orphan's C after asking the source; until then its P holds the clock.
            yield ReplayStep(index, binlog.tp, start, 0, 0, outcomes.look_up_orphan_commit_ts(start))
        elif start not in known:
            where = {"capture": capture.name, "binlog": index, "start_ts": start}
            raise WireError("a commit or rollback comes before its prewrite", where=where)
        else:
            held = binlog.commit_ts if binlog.tp == pb.Commit else 0
            yield ReplayStep(index, binlog.tp, start, binlog.commit_ts, prewrites, held)


def parse_binlog(capture: Capture, index: int, payload: bytes) -> pb.Binlog:
    """The binlog at `index`. Raises WireError."""
    try:
        binlog = pb.Binlog.FromString(payload)
    except DecodeError as error:
        where = {"capture": capture.name, "binlog": index}
        raise WireError(f"a payload is not a binlog: {error}", where=where) from error
    return binlog


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
