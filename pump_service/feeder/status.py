"""What the feeder shows on its status port, from the journal: outcomes and DDL jobs as TiDB does, and positions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from binlake.pump_service.feeder.journal import FeederJournal, ReadPosition
from binlake.pump_service.feeder.publisher import read_key
from binlake.pump_service.feeder.worker import Worker
from binlake.pump_service.statusport import (
    MAX_HISTORY,
    Json,
    PrewrittenTransaction,
    build_mvcc_body,
    lock_record,
    write_record,
)


class JournalTransactions:
    """Outcomes by prewrite_key. A key of another feeder, or a forgotten one, has no record, so it proves nothing."""

    def __init__(self, journal: FeederJournal, sources: frozenset[str]) -> None:
        self._journal = journal
        self._sources = sources

    def answer(self, key: bytes, now: int) -> Json:
        """The body of `/mvcc/hex/KEY`: the current state, whatever `now` is."""
        del now
        start_ts, tail = read_key(key) or (0, "")
        if tail.partition("|")[0] not in self._sources:
            return build_mvcc_body(key, {})
        commit_ts = self._journal.find_outcome(start_ts)
        if commit_ts is None:
            return build_mvcc_body(key, {})
        if commit_ts < 0:
            return build_mvcc_body(key, {"lock": lock_record(start_ts, key)})
        return build_mvcc_body(
            key, {"writes": [write_record(PrewrittenTransaction(start_ts, key, commit_ts, orphan=False))]}
        )


class JournalHistory:
    """The DDL jobs of the journal, read page by page."""

    def __init__(self, journal: FeederJournal) -> None:
        self._journal = journal

    def list_finished_jobs(self, now: int, start_job_id: int = 0, limit: int = 0) -> list[Json]:
        """As `/ddl/history`: the newest `limit` first, from `start_job_id` downwards; 0, 0 = all, oldest first."""
        del now  # a job is in the journal once it is finished
        if not limit and not start_job_id:
            return self._journal.read_jobs()[::-1]
        return self._journal.read_jobs(start_job_id + 1 if start_job_id else 0, limit or MAX_HISTORY)


def find_unread_sources(workers: Iterable[Worker]) -> list[str]:
    """Each source that makes no progress, and why; a load that goes on, or a source without changes, is none."""
    reasons = []
    for worker in workers:
        is_silent = worker.state == "reading" and not worker.is_heard
        if text := worker.trouble or (f"silent for {worker.compute_silence_s():.0f} s" if is_silent else ""):
            reasons.append(f"source {worker.source.name}: {text}")
    return reasons


def describe_position(position: ReadPosition | None) -> dict[str, Any]:
    """Where reading a source resumes, and its last published transaction, for JSON."""
    if position is None:
        return {}
    at = position.position
    return {
        "file": at.file, "offset": at.offset, "gtids": at.gtids,
        "last_id": position.last_id, "last_time_ms": position.time_ms, "last_commit_ts": str(position.commit_ts),
    }  # fmt: skip
