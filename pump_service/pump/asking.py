"""Who is asked what became of a transaction, and how strongly (tidb-binlog 2.6, hazards R-07).

TiKV first, where the cluster has one: a young P is looked for and nothing is changed; beyond the transaction timeout,
or when a writer says that it is rolled back, TiKV is asked to end it. A lock whose time was over long ago is rolled
back before that: who held it is gone, and any reader would do so. For those that TiKV does not answer for, the status
port is asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from binlake import tso
from binlake.cluster.source import Status, Unknown, Unreachable
from binlake.cluster.source.tikv import How, Question, TikvStatus, is_expired
from binlake.errors import SourceUnavailable
from pump_service.pump.sorter import Entry

_THREADS = 8
_GONE_MS = 30_000  # after the end of a lock's time: writers prolong it every few seconds while they live
_HOLD_S = 60.0  # between two words to PD about GC


class StatusSource(Protocol):
    """Who knows what became of a transaction: the part of binlake.cluster.source.Source that a pump needs."""

    def transaction_status(self, start_ts: int, key: bytes) -> Status:
        """The status of transaction `start_ts` with primary key `key`. Raises SourceUnavailable."""


class NoStatusSource:
    """No source to ask: every orphan prewrite blocks until its commit or rollback arrives."""

    def transaction_status(self, start_ts: int, key: bytes) -> Status:
        """Always Unknown."""
        del start_ts, key
        return Unknown("no status source is configured (--status-url)")


class Asking:
    """Asks for many at once; thread-safe. `clock`: a fresh TSO; TiKV is not asked without one."""

    def __init__(
        self,
        source: StatusSource,
        tikv: TikvStatus | None = None,
        *,
        clock: Callable[[], int] | None = None,
        timeout_s: float,
    ) -> None:
        self._source = source
        self._tikv = tikv if clock is not None else None
        self._clock = clock
        self._timeout_ms = timeout_s * 1000
        self._holding = threading.Lock()
        self._held_at = -_HOLD_S
        self._pool: ThreadPoolExecutor | None = None
        self._stopped = threading.Event()

    def ask(self, entries: Sequence[Entry], doubted: Collection[int]) -> list[Status]:
        """What became of each P; `doubted`: the start_ts of those that a writer says are rolled back."""
        found = self._ask_tikv(entries, doubted) if self._tikv is not None else []
        if not found:
            return self._ask_source(entries)
        if not isinstance(self._source, NoStatusSource):
            again = [place for place, status in enumerate(found) if isinstance(status, Unreachable)]
            for place, status in zip(again, self._ask_source([entries[place] for place in again]), strict=True):
                found[place] = status
        return found

    def transaction_status(self, start_ts: int, key: bytes) -> Status:
        """As a StatusSource: what is known of one, and nothing is changed by the question. Raises SourceUnavailable."""
        if self._tikv is not None and self._clock is not None:
            found = self._tikv.ask([Question(start_ts, key, How.LOOK)], self._clock())[0]
            if not isinstance(found, Unreachable):
                return found
        return self._source.transaction_status(start_ts, key)

    def hold(self, oldest: int) -> None:
        """Keep GC from taking away the records of the transaction `oldest` and those above; 0 = nothing waits.

        Told to PD once a minute, and at once when `oldest` is not covered. Failures show in what is not proved.
        """
        if self._tikv is None:
            return
        with self._holding:
            due = time.monotonic() - self._held_at > _HOLD_S
            if not due and (not oldest or self._tikv.protects(oldest)):
                return
            self._held_at = time.monotonic()
            try:
                self._tikv.protect(oldest)
            except SourceUnavailable:
                # Nothing is proved by absence until PD has said yes.
                self._held_at -= _HOLD_S

    def stop(self) -> None:
        """Ask nothing more: a question on its way ends soon."""
        self._stopped.set()
        if self._tikv is not None:
            self._tikv.stop()

    def close(self) -> None:
        """End threads and connections; nothing is asked any more."""
        self.stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._tikv is not None:
            self._tikv.close()

    def _ask_tikv(self, entries: Sequence[Entry], doubted: Collection[int]) -> list[Status]:
        assert self._tikv is not None
        assert self._clock is not None
        try:
            now_ts = self._clock()
        except SourceUnavailable as error:
            return [Unreachable(str(error))] * len(entries)
        questions = [self._question(entry, now_ts, entry.start_ts in doubted) for entry in entries]
        found = self._tikv.ask(questions, now_ts)
        gone = [
            place
            for place, (question, status) in enumerate(zip(questions, found, strict=True))
            if question.how is How.LOOK and is_expired(status, question.start_ts, now_ts, _GONE_MS)
        ]
        stronger = [Question(questions[place].start_ts, questions[place].key, How.EXPIRE) for place in gone]
        for place, status in zip(gone, self._tikv.ask(stronger, now_ts), strict=True):
            found[place] = status
        return found

    def _question(self, entry: Entry, now_ts: int, doubted: bool) -> Question:
        old = tso.physical(now_ts) - tso.physical(entry.start_ts) > self._timeout_ms
        return Question(entry.start_ts, entry.key, How.END if old or doubted else How.LOOK)

    def _ask_source(self, entries: Sequence[Entry]) -> list[Status]:
        if len(entries) < 2:
            return [self._status(entry) for entry in entries]
        self._pool = self._pool or ThreadPoolExecutor(_THREADS, "pump-status")
        return list(self._pool.map(self._status, entries))

    def _status(self, entry: Entry) -> Status:
        if self._stopped.is_set():
            return Unreachable("the pump stops")
        try:
            return self._source.transaction_status(entry.start_ts, entry.key)
        except SourceUnavailable as error:
            return Unreachable(str(error))
