"""What the workload's TiDB knows: timestamps, outcomes of transactions, finished DDL jobs.

An outcome is recorded here before its binlog is sent, so a pump that asks always gets the true state.
"""

from __future__ import annotations

import struct
import threading
from concurrent.futures import Future

from binlake.pump_service.statusport import Json, PrewrittenTransaction, build_mvcc_body, lock_record, write_record
from binlake.tso import Clock

_OPEN = -1
_START = struct.Struct(">Q")
_KEY = b"t" + bytes(8) + b"_r"


class SharedClock:
    """Timestamps for many threads: callers that come while a request is in flight share the next request.

    No timestamp is fetched ahead: PD is asked only after all callers of that request have asked (hazards R-09).
    """

    def __init__(self, oracle: Clock) -> None:
        self._oracle = oracle
        self._changed = threading.Condition()
        self._asking: list[Future[int]] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="workload-clock", daemon=True)
        self._thread.start()

    def fetch_ts(self) -> int:
        """A fresh timestamp. Raises what the oracle raises."""
        future: Future[int] = Future()
        with self._changed:
            self._asking.append(future)
            self._changed.notify()
        return future.result()

    def close(self) -> None:
        """End the thread; the oracle stays open."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asking or self._stopped)
                asking, self._asking = self._asking, []
                if not asking:
                    return
            try:
                first = self._oracle.fetch_ts(len(asking)) - len(asking) + 1
            except BaseException as error:  # noqa: BLE001 - raised by each caller
                for one in asking:
                    one.set_exception(error)
                continue
            for number, one in enumerate(asking):
                one.set_result(first + number)


class LiveTransactions:
    """The transactions so far; thread-safe. Memory: some 150 bytes each."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}

    @staticmethod
    def build_key(start_ts: int) -> bytes:
        """The primary key of a transaction: each has a different one, so that answers stay short."""
        return _KEY + _START.pack(start_ts)

    def begin(self, start_ts: int) -> None:
        """Record that the transaction has its locks."""
        self._ends[start_ts] = _OPEN

    def end(self, start_ts: int, commit_ts: int) -> None:
        """Record the transaction's end: committed at `commit_ts`, 0 = rolled back."""
        self._ends[start_ts] = commit_ts

    def answer(self, key: bytes, now: int) -> Json:
        """The body of `/mvcc/hex/KEY`; a running TiDB shows its present state, whatever `now` is."""
        del now
        start_ts = _START.unpack(key[len(_KEY) :])[0] if len(key) == len(_KEY) + _START.size else 0
        commit_ts = self._ends.get(start_ts)
        if commit_ts is None:
            return build_mvcc_body(key, {})
        if commit_ts == _OPEN:
            return build_mvcc_body(key, {"lock": lock_record(start_ts, key)})
        return build_mvcc_body(key, {"writes": [write_record(PrewrittenTransaction(start_ts, key, commit_ts, False))]})
