"""Refuses timestamps from the future: nothing above PD's clock plus a small slack is stored (invariant 2).

A commit_ts above every timestamp that PD has issued would raise the watermark past transactions that are still open,
and at the next start PD's clock would appear to be behind the data. Writers get their timestamps from PD, so a valid
timestamp is below any that PD issues after the write arrived.

Most writes are checked against the newest timestamp known here, without a call to PD; a background thread renews it
before it is too old. Only a write above it waits for a fresh one. While PD does not answer, its clock is assumed to
advance in real time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from binlake import tso
from binlake.errors import BinlakeError, Permanent, Transient

log = structlog.get_logger()

SLACK_S = tso.extract_physical(tso.FUTURE_SLACK) / 1000
_WAITING = 4096  # writes that may wait for PD's answer at the same time
_RETRY_S = 1.0  # seconds between two requests to a PD that does not answer

OnJudged = Callable[[BinlakeError | None], None]
"""Called once, on a thread of the ceiling: None = the timestamp may be stored, otherwise the reason to refuse it."""


class Ceiling:
    """Checks timestamps; thread-safe.

    `clock`: returns a fresh TSO or raises SourceUnavailable. `slack_s`: how far above it a timestamp may be.
    `monotonic`: a clock in seconds. `refused`: how many timestamps were refused.
    """

    def __init__(
        self, clock: Callable[[], int], slack_s: float = SLACK_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._slack = tso.compose(int(slack_s * 1000))
        self._monotonic = monotonic
        self._known, self._known_at = 0, 0.0
        self._calm = 0  # timestamps up to this one are admitted without asking PD
        self._answers = True
        self._asked_at = float("-inf")
        self._waiting: list[tuple[int, OnJudged]] = []
        self._asking = False
        self._lock = threading.Lock()
        self.refused = 0

    def fetch_ts(self) -> int:
        """A fresh timestamp. Raises SourceUnavailable."""
        now = self._clock()
        self._learn(now)
        return now

    def estimate_now(self) -> int:
        """PD's clock as last read, plus the real time that has passed since."""
        with self._lock:
            return self._known + self._compute_elapsed_ts()

    def admits(self, ts: int) -> bool:
        """Whether `ts` may be stored according to the newest known timestamp. If False, call `ask`. Never blocks."""
        return ts <= self._calm or self._admits_recent(ts)

    def ask(self, ts: int, on_judged: OnJudged) -> None:
        """Check `ts` against a fresh timestamp, on a thread. Raises Transient when too many writes wait for one."""
        with self._lock:
            if len(self._waiting) >= _WAITING:
                raise Transient("too many writes wait for PD's clock", where={"ts": ts})
            self._waiting.append((ts, on_judged))
            self._start_asking()

    def compute_highest_allowed(self) -> int:
        """The greatest timestamp that may be stored now; while PD is unreachable it advances in real time."""
        with self._lock:
            return self._compute_highest_allowed()

    def _compute_highest_allowed(self) -> int:
        return self._known + (0 if self._answers else self._compute_elapsed_ts()) + self._slack

    def _compute_elapsed_ts(self) -> int:
        return tso.compose(int((self._monotonic() - self._known_at) * 1000))

    def _admits_recent(self, ts: int) -> bool:
        with self._lock:
            if ts > self._compute_highest_allowed():
                return False
            if self._answers or self._monotonic() - self._asked_at >= _RETRY_S:
                self._start_asking()
            return True

    def _start_asking(self) -> None:
        if not self._asking:
            self._asking = True
            threading.Thread(target=self._run, name="pump-ceiling", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                waiting, self._waiting = self._waiting, []
                self._asked_at = self._monotonic()
            failure = self._renew()
            for ts, on_judged in waiting:
                self._answer(on_judged, ts, failure)
            with self._lock:
                if not self._waiting:
                    self._asking = False
                    return

    def _answer(self, on_judged: OnJudged, ts: int, failure: BinlakeError | None) -> None:
        try:
            on_judged(self._judge(ts, failure))
        except Exception:  # the callback of one write failed; the other writes still need their answers
            log.exception("verdict_not_delivered", ts=ts)

    def _renew(self) -> BinlakeError | None:
        try:
            self.fetch_ts()
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

    def _judge(self, ts: int, failure: BinlakeError | None) -> BinlakeError | None:
        with self._lock:
            line, known = self._compute_highest_allowed(), self._known
            if ts <= line:
                return None
            self.refused += 1
        where = {"ts": ts, "pd_ts": known, "ahead_s": (tso.extract_physical(ts) - tso.extract_physical(known)) // 1000}
        if failure is not None:
            return Transient(f"the timestamp is above PD's clock as last read: {failure.message}", where=where)
        return Permanent(
            "the timestamp is in the future: PD has not issued it",
            where=where,
            hint="send the commit_ts unchanged, as issued by this cluster's PD",
        )
