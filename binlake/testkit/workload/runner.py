"""Writes a workload through the pump client as TiDB would: P, then a commit_ts fetched after its ack, then C.

(Invariant 2; hazards R-09.) The status port knows every outcome before its binlog is sent. DDL runs while all
writers pause between two rounds.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from binlake.errors import SourceUnavailable
from binlake.pump_service.statusport import StatusJobs
from binlake.testkit.workload.catalog import WorkloadCatalog, WorkloadDdl
from binlake.testkit.workload.generator import Draft, Generator
from binlake.testkit.workload.source import LiveTransactions
from binlake.testkit.workload.spec import Spec
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

_STEP = math.log(1.05)


class Latencies:
    """Seconds of many calls, in little memory; thread-safe."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self._lock = threading.Lock()

    def add(self, seconds: float) -> None:
        """Record a call that took `seconds`."""
        bucket = math.floor(math.log(max(seconds, 1e-6)) / _STEP)
        with self._lock:
            self._buckets[bucket] += 1

    def compute_quantile(self, share: float) -> float:
        """The seconds that `share` (0 to 1) of the calls did not exceed, accurate to 5 %; 0 without calls."""
        with self._lock:
            buckets = sorted(self._buckets.items())
        left = share * sum(count for _, count in buckets)
        for bucket, count in buckets:
            left -= count
            if left <= 0:
                return math.exp((bucket + 1) * _STEP)
        return 0.0


class CallPace:
    """Lets `rate` callers a second pass, over all threads; 0 = without a limit."""

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate if rate else 0.0
        self._next = 0.0
        self._lock = threading.Lock()

    def wait(self, stopped: threading.Event) -> None:
        """Return when it is the caller's turn, or at once when `stopped` is set."""
        if not self._gap:
            return
        with self._lock:
            turn = max(self._next, time.monotonic())
            self._next = turn + self._gap
        stopped.wait(max(0.0, turn - time.monotonic()))


log = structlog.get_logger()

_AGAIN_S = 0.5  # before a retry, when PD or all pumps were unavailable


class WorkloadClient(Protocol):
    """The pump client."""

    def write_prewrite(self, binlog: pb.Binlog) -> str:
        """Store a P. Raises SourceUnavailable when no pump took it."""

    def send_commit(self, binlog: pb.Binlog) -> str:
        """Send a C in the background."""

    def send_rollback(self, binlog: pb.Binlog) -> str:
        """Send an R in the background."""

    def forget(self, start_ts: int) -> None:
        """Expect no C or R for this P."""


class WorkloadJournal(Protocol):
    """Receives everything that was written: the recording, or a test's checker."""

    def record_binlog(self, binlog: pb.Binlog) -> None:
        """A binlog was acked (P), or handed to the pump client (C, R)."""

    def record_job(self, job: dict[str, object]) -> None:
        """A DDL job has finished."""

    def record_orphan(self, start_ts: int, commit_ts: int) -> None:
        """The transaction's C, or if `commit_ts` is 0 its R, was lost on purpose."""


class NoJournal:
    """Records nothing."""

    def record_binlog(self, binlog: pb.Binlog) -> None:
        """Do nothing."""

    def record_job(self, job: dict[str, object]) -> None:
        """Do nothing."""

    def record_orphan(self, start_ts: int, commit_ts: int) -> None:
        """Do nothing."""


@dataclass
class Tally:
    """Counts of what was written so far; thread-safe. `counts`: transactions by outcome, rows, ddl."""

    counts: Counter[str] = field(default_factory=Counter)
    last_ts: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, commit_ts: int = 0, rows: int = 0) -> None:
        """Count one more `name`."""
        with self.lock:
            self.counts[name] += 1
            self.counts["rows"] += rows
            self.last_ts = max(self.last_ts, commit_ts)


@dataclass
class _Held:
    """A transaction that stays open during `left` more transactions of its writer."""

    draft: Draft
    prewrite: pb.Binlog
    left: int


class Runner:
    """One run. After `run`, `catalog` holds the expected state."""

    def __init__(
        self,
        spec: Spec,
        client: WorkloadClient,
        fetch_ts: Callable[[], int],
        transactions: LiveTransactions,
        history: StatusJobs,
        journal: WorkloadJournal | None = None,
    ) -> None:
        self._spec = spec
        self._client = client
        self._fetch_ts = fetch_ts
        self._transactions = transactions
        self._history = history
        self._journal = journal or NoJournal()
        self.catalog = WorkloadCatalog(spec)
        self.tally = Tally()
        self.latencies = Latencies()
        self.seconds = 0.0
        self._trouble = ""
        self._pace = CallPace(spec.rate)
        self._stopped = threading.Event()
        self._deadline = float("inf")
        self._rounds = 0
        self._barrier = threading.Barrier(spec.writers, self._run_between_rounds)
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Create the tables and write everything. Raises errors that a retry cannot fix."""
        for ddl in self.catalog.create_initial_tables():
            self._write_ddl(ddl)
        began = time.monotonic()
        self._deadline = began + self._spec.seconds if self._spec.seconds else float("inf")
        threads = [
            threading.Thread(target=self._write_all, args=(number,), name=f"workload-{number}", daemon=True)
            for number in range(self._spec.writers)
        ]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            self.stop()
            self.seconds = time.monotonic() - began
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop soon: open transactions are finished, so that the state is complete."""
        self._stopped.set()

    def find_trouble(self) -> list[str]:
        """Why the last write or timestamp failed; empty once one has succeeded."""
        return [self._trouble] if self._trouble else []

    @property
    def _is_over(self) -> bool:
        return self._stopped.is_set() or time.monotonic() > self._deadline

    def _write_all(self, number: int) -> None:
        try:
            generator, held = Generator(self._spec, number), list[_Held]()
            left = self._compute_share(number)
            while True:
                for _ in range(min(left, self._spec.round_size) if self._spec.ddl_every else left):
                    if self._is_over:
                        break
                    self._pace.wait(self._stopped)
                    self._write_one(generator, held)
                    left -= 1
                for one in held:
                    self._commit(generator, one.draft, one.prewrite)
                held.clear()
                self._barrier.wait()
                if self._stopped.is_set():
                    return
        except threading.BrokenBarrierError:
            return  # another writer failed, and raises its own error
        except BaseException as error:  # noqa: BLE001 - carried to run(), which raises it
            self._failure = self._failure or error
            self._barrier.abort()

    def _compute_share(self, number: int) -> int:
        if not self._spec.transactions:
            return 1 << 62
        each, more = divmod(self._spec.transactions, self._spec.writers)
        return each + (number < more)

    def _run_between_rounds(self) -> None:
        """Run by one writer while all others wait: execute the next DDL, or end the run."""
        self._rounds += 1
        most = -(-self._spec.transactions // self._spec.writers)
        finished = self._spec.transactions and self._rounds * self._spec.round_size >= most
        if self._is_over or not self._spec.ddl_every or finished:
            self.stop()
            return
        ddl = self.catalog.execute_next()
        if ddl is not None:
            self._write_ddl(ddl)

    def _write_one(self, generator: Generator, held: list[_Held]) -> None:
        draft = generator.draft(self.catalog.tables)
        prewrite = self._write_prewrite(draft)
        if prewrite is None:
            generator.end(draft, committed=False)
            self.tally.add("failed")
            self._stopped.wait(_AGAIN_S)
        elif draft.fate == "hold":
            held.append(_Held(draft, prewrite, draft.holds))
        elif draft.fate in ("rollback", "lose_rollback"):
            self._roll_back(generator, draft, prewrite)
        else:
            self._commit(generator, draft, prewrite)
        for one in held:
            one.left -= 1
        for one in [one for one in held if one.left < 0]:
            held.remove(one)
            self._commit(generator, one.draft, one.prewrite)

    def _write_prewrite(self, draft: Draft) -> pb.Binlog | None:
        """The P once a pump has it; None if no pump took it: then the transaction counts as rolled back."""
        try:
            start_ts = self._fetch_ts()
        except SourceUnavailable as error:
            self._trouble = str(error)
            log.warning("transaction_failed", error=str(error))
            return None
        self._transactions.begin(start_ts)
        key = self._transactions.build_key(start_ts)
        prewrite = build.build_prewrite(start_ts, key, draft.encode_value(self.catalog.version))
        try:
            for _ in range(2 if draft.fate == "double" else 1):
                began = time.monotonic()
                self._client.write_prewrite(prewrite)
                self.latencies.add(time.monotonic() - began)
                self._journal.record_binlog(prewrite)
        except SourceUnavailable as error:
            self._transactions.end(start_ts, 0)
            self._trouble = str(error)
            log.warning("transaction_failed", start_ts=start_ts, error=str(error))
            return None
        self._trouble = ""
        return prewrite

    def _commit(self, generator: Generator, draft: Draft, prewrite: pb.Binlog) -> None:
        try:
            commit_ts = self._fetch_ts()
        except SourceUnavailable as error:
            log.warning("commit_failed", start_ts=prewrite.start_ts, error=str(error))
            self._roll_back(generator, draft, prewrite)
            return
        self._transactions.end(prewrite.start_ts, commit_ts)
        generator.end(draft, committed=True)
        self._send_end(prewrite, build.build_commit(prewrite, commit_ts), lost=draft.fate == "lose_commit")
        self.tally.add(draft.fate if draft.fate != "rollback" else "commit", commit_ts, len(draft.changes))

    def _roll_back(self, generator: Generator, draft: Draft, prewrite: pb.Binlog) -> None:
        self._transactions.end(prewrite.start_ts, 0)
        generator.end(draft, committed=False)
        self._send_end(prewrite, build.build_rollback(prewrite), lost=draft.fate == "lose_rollback")
        self.tally.add(draft.fate if draft.fate == "lose_rollback" else "rollback")

    def _send_end(self, prewrite: pb.Binlog, end: pb.Binlog, *, lost: bool) -> None:
        if lost:
            self._client.forget(prewrite.start_ts)
            self._journal.record_orphan(prewrite.start_ts, end.commit_ts)
            return
        self._journal.record_binlog(end)
        (self._client.send_commit if end.tp == pb.Commit else self._client.send_rollback)(end)

    def _write_ddl(self, ddl: WorkloadDdl) -> None:
        for state in ddl.states:
            start_ts, commit_ts = self._write_ddl_binlog(ddl, state)
        job = ddl.job(start_ts, self._retry_fetch_ts())
        self._history.add(job)
        self._journal.record_job(job)
        self.tally.add("ddl", commit_ts)
        log.info("workload_ddl", query=ddl.query, commit_ts=commit_ts)

    def _write_ddl_binlog(self, ddl: WorkloadDdl, state: int) -> tuple[int, int]:
        """(start_ts, commit_ts); tried until a pump has it, as TiDB's DDL owner does."""
        while True:
            start_ts = self._retry_fetch_ts()
            self._transactions.begin(start_ts)
            prewrite = build.build_prewrite(
                start_ts, self._transactions.build_key(start_ts), ddl_query=ddl.query.encode(),
                ddl_job_id=ddl.job_id, ddl_schema_state=state,
            )  # fmt: skip
            try:
                self._client.write_prewrite(prewrite)
            except SourceUnavailable as error:
                self._transactions.end(start_ts, 0)
                self._wait_again("ddl_tried_again", error)
                continue
            self._journal.record_binlog(prewrite)
            commit_ts = self._retry_fetch_ts()
            self._transactions.end(start_ts, commit_ts)
            self._send_end(prewrite, build.build_commit(prewrite, commit_ts), lost=False)
            return start_ts, commit_ts

    def _retry_fetch_ts(self) -> int:
        """A fresh timestamp, as soon as PD answers."""
        while True:
            try:
                return self._fetch_ts()
            except SourceUnavailable as error:
                self._wait_again("timestamp_tried_again", error)

    def _wait_again(self, event: str, error: SourceUnavailable) -> None:
        self._trouble = str(error)
        log.warning(event, error=str(error))
        if self._stopped.wait(_AGAIN_S):
            raise error
