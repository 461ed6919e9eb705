"""No timestamp from the future is stored: nothing above PD's clock plus a little, from any writer (invariant 2).

A commit_ts above every timestamp that PD has given would lift the watermark over transactions that are still open, and
PD's clock would seem to be behind the data at the next start. A writer has its timestamps from PD, so each is below
one that PD gives after it came.

Most writes are judged by the newest timestamp known here, without a call; it is renewed beside them before it is too
old. Only what lies above it waits for a fresh one. While PD does not answer it counts as moving on at real pace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from binlake import tso
from binlake.errors import BinlakeError, Permanent, Transient

log = structlog.get_logger()

SLACK_S = tso.physical(tso.FUTURE_SLACK) / 1000
_WAITING = 4096  # writes that may wait for PD's answer at a time
_RETRY_S = 1.0  # between two questions to a PD that does not answer

Told = Callable[[BinlakeError | None], None]
"""Told once whether a timestamp may be stored, on a thread of the ceiling."""


class Ceiling:
    """Judges timestamps. `clock`: a fresh TSO, or SourceUnavailable. `slack_s`: how far above it one may lie.

    Thread-safe; `monotonic` is in seconds. `refused` counts.
    """

    def __init__(
        self, clock: Callable[[], int], slack_s: float = SLACK_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._slack = tso.compose(int(slack_s * 1000))
        self._monotonic = monotonic
        self._known, self._known_at = 0, 0.0
        self._calm = 0  # up to here nothing is asked
        self._answers = True
        self._asked_at = float("-inf")
        self._waiting: list[tuple[int, Told]] = []
        self._asking = False
        self._lock = threading.Lock()
        self.refused = 0

    def fresh(self) -> int:
        """A fresh timestamp. Raises SourceUnavailable."""
        now = self._clock()
        self._learn(now)
        return now

    def admits(self, ts: int) -> bool:
        """Whether `ts` may be stored by what is known; False = ask. Never blocks."""
        return ts <= self._calm or self._admits_near(ts)

    def ask(self, ts: int, told: Told) -> None:
        """Judge `ts` by a fresh timestamp, on a thread. Raises Transient when too many wait for PD's answer."""
        with self._lock:
            if len(self._waiting) >= _WAITING:
                raise Transient("too many writes wait for PD's clock", where={"ts": ts})
            self._waiting.append((ts, told))
            self._begin()

    def line(self) -> int:
        """The greatest timestamp that may be stored by what is known: while PD is away, at real pace from there."""
        with self._lock:
            return self._line()

    def _line(self) -> int:
        passed_ms = 0 if self._answers else int((self._monotonic() - self._known_at) * 1000)
        return self._known + tso.compose(passed_ms) + self._slack

    def _admits_near(self, ts: int) -> bool:
        with self._lock:
            if ts > self._line():
                return False
            if self._answers or self._monotonic() - self._asked_at >= _RETRY_S:
                self._begin()
            return True

    def _begin(self) -> None:
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._run, name="pump-ceiling", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                self._asked_at = self._monotonic()
            failure = self._renew()
            for ts, told in waiting:
                self._tell(told, ts, failure)
            with self._lock:
                if not self._waiting:
                    self._asking = False
                    return

    def _tell(self, told: Told, ts: int, failure: BinlakeError | None) -> None:
        try:
            told(self._verdict(ts, failure))
        except Exception:  # it is the fault of that write: the others wait for theirs
            log.exception("verdict_not_told", ts=ts)

    def _renew(self) -> BinlakeError | None:
        try:
            self.fresh()
        except BinlakeError as error:
            with self._lock:
                self._answers = False
            log.warning("clock_not_renewed", error=str(error))
            return error
        return None

    def _learn(self, now: int) -> None:
        with self._lock:
            self._answers = True
            if now >= self._known:
                self._known, self._known_at = now, self._monotonic()
                self._calm = now + self._slack // 2

    def _verdict(self, ts: int, failure: BinlakeError | None) -> BinlakeError | None:
        with self._lock:
            line, known = self._line(), self._known
            if ts <= line:
                return None
            self.refused += 1
        where = {"ts": ts, "pd_ts": known, "ahead_s": (tso.physical(ts) - tso.physical(known)) // 1000}
        if failure is not None:
            return Transient(f"the timestamp is above PD's clock as last read: {failure.message}", where=where)
        return Permanent(
            "the timestamp is in the future: PD has not given it out",
            where=where,
            hint="send the commit_ts unchanged, as this cluster's PD gave it",
        )
