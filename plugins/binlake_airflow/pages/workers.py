"""Runs the work of requests in separate threads with a deadline, so that neither the API server nor other pages wait.

Reads end by themselves (binlake.lake.seek.TimeBudget); the deadline is for reads that hang, for example on a lost file
system. A hanging read occupies a thread until it ends, so each subject (a replication's lake) has its own threads and
can block only itself. The threads are daemons, not a ThreadPoolExecutor's, for which the interpreter would wait at
exit.

In the overview of all replications, a lake that fails or hangs hides no other, and is not asked again for a while.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog

from binlake.config import Replication
from binlake.errors import BinlakeError

Result = TypeVar("Result")

SEARCH_S = 2.0
"""Seconds after which a search in the lake returns what it has found so far."""
DEADLINE_S = 15.0
"""Seconds after which a request is answered without the result of its work."""
WORKERS = 2
"""Requests of one subject that are processed at a time."""
WAITING = 8
"""Requests of one subject that may wait for a worker; more are rejected at once."""


_Job = tuple[Future[Any], Callable[[], Any]]


class TooBusy(Exception):
    """All workers of the subject are busy and its queue is full."""


class BoundedWorkers:
    """A few threads, a short queue and a deadline for each subject. Subjects are a fixed, small set of names."""

    def __init__(self, workers: int = WORKERS, waiting: int = WAITING, deadline_s: float = DEADLINE_S) -> None:
        self._workers = workers
        self._most = workers + waiting
        self._deadline_s = deadline_s
        self._waiting: defaultdict[str, deque[_Job]] = defaultdict(deque)
        self._threads: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.inside: Counter[str] = Counter()
        """Requests running or waiting, by subject, including running ones whose deadline has passed."""

    async def run(self, work: Callable[[], Result], subject: str = "", deadline_s: float | None = None) -> Result:
        """What `work` returns or raises. Raises TooBusy, and TimeoutError if it takes too long.

        After a timeout, work that still waits for a worker is dropped; the result of running work is ignored.
        """
        job = self._submit(work, subject)
        try:
            # Shielded, so that a timeout cancels only the job (below), which works only while it waits.
            waited = asyncio.shield(asyncio.wrap_future(job))
            return await asyncio.wait_for(waited, self._deadline_s if deadline_s is None else deadline_s)
        finally:
            job.cancel()

    def _submit(self, work: Callable[[], Result], subject: str) -> Future[Result]:
        job: Future[Result] = Future()
        try:
            with self._lock:
                self._enqueue(job, work, subject)
        except BaseException:
            # Not under the lock: cancelling a queued job takes the lock in `_leave`.
            job.cancel()
            raise
        return job

    def _enqueue(self, job: Future[Any], work: Callable[[], Any], subject: str) -> None:
        entry = (job, work)
        if self.inside[subject] >= self._most:
            raise TooBusy
        self.inside[subject] += 1
        job.add_done_callback(lambda _: self._leave(subject, entry))
        self._waiting[subject].append(entry)
        if self._threads[subject] < self._workers:
            name = f"binlake-page-{subject}"
            threading.Thread(target=self._run_waiting_jobs, args=(subject,), name=name, daemon=True).start()
            # Counted only after it has started; the thread needs the lock before it can decrement the count.
            self._threads[subject] += 1

    def _run_waiting_jobs(self, subject: str) -> None:
        """Run the waiting jobs; end when no job waits."""
        while (entry := self._take_next(subject)) is not None:
            job, work = entry
            if not job.set_running_or_notify_cancel():
                continue
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed to the waiting request
                job.set_exception(error)
            else:
                job.set_result(result)

    def _take_next(self, subject: str) -> _Job | None:
        with self._lock:
            if self._waiting[subject]:
                return self._waiting[subject].popleft()
            self._threads[subject] -= 1
            return None

    def _leave(self, subject: str, entry: _Job) -> None:
        with self._lock:
            self.inside[subject] -= 1
            # The job was cancelled before it was started.
            if entry in self._waiting[subject]:
                self._waiting[subject].remove(entry)


log = structlog.get_logger(__name__)

LAKE_S = 4.0
"""Seconds that one lake has to answer."""
REST_S = 15.0
"""Seconds for which the list does not ask a lake again that did not answer."""
_NO_ANSWER = f"its lake did not answer within {LAKE_S:g} s"


class Overview:
    """The list of replications; remembers which lakes did not answer."""

    def __init__(self, bounded: BoundedWorkers, lake_s: float = LAKE_S, rest_s: float = REST_S) -> None:
        self._bounded = bounded
        self._lake_s, self._rest_s = lake_s, rest_s
        self._silent: dict[str, float] = {}

    async def read_all(
        self, replications: Sequence[Replication], read: Callable[[Replication], dict[str, Any]]
    ) -> dict[str, Any]:
        """What `read` returns for each replication, in their order; a row with `problem` if it did not answer."""
        rows = await asyncio.gather(*(self._read_row(replication, read) for replication in replications))
        return {"replications": list(rows)}

    async def _read_row(
        self, replication: Replication, read: Callable[[Replication], dict[str, Any]]
    ) -> dict[str, Any]:
        if time.monotonic() < self._silent.get(replication.name, 0.0):
            return _build_problem_row(replication, _NO_ANSWER)
        try:
            return await self._bounded.run(lambda: read(replication), replication.name, self._lake_s)
        except (TimeoutError, TooBusy):
            self._silent[replication.name] = time.monotonic() + self._rest_s
            return _build_problem_row(replication, _NO_ANSWER)
        except BinlakeError as error:
            return _build_problem_row(replication, error.message)
        except Exception:
            log.exception("lake_not_readable", replication=replication.name)
            return _build_problem_row(replication, "its lake cannot be read: see the API server's log")


def _build_problem_row(replication: Replication, text: str) -> dict[str, Any]:
    return {"name": replication.name, "problem": text}
