"""What the feeder shows: on its status port outcomes and DDL jobs as TiDB does, positions, and its metrics.

All of it is read from the journal and the workers when it is requested.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from binlake.mysqlbinlog.charsets import REPLACED
from binlake.pump_service.feeder.journal import FeederJournal, ReadPosition
from binlake.pump_service.feeder.publisher import SourcePublisher, read_key
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.worker import Worker
from binlake.pump_service.monitoring import METRICS_CONTENT_TYPE, Instrument, Reading, render_page
from binlake.pump_service.statusport import (
    MAX_HISTORY,
    Json,
    PrewrittenTransaction,
    build_mvcc_body,
    lock_record,
    write_record,
)

_LABEL = "source"
_READINGS: tuple[tuple[str, str, str, Callable[[Worker], float]], ...] = (
    ("lag_seconds", "Age of the oldest transaction that was read and is not published.", "gauge", Worker.compute_lag_s),
    ("up", "1 while nothing blocks this source.", "gauge", lambda worker: float(not worker.trouble)),
    ("transactions_total", "Published transactions with rows.", "counter", lambda worker: worker.counts.transactions),
    ("rows_total", "Rows of published transactions.", "counter", lambda worker: worker.counts.rows),
    ("batches_total", "Groups of transactions published together.", "counter", lambda worker: worker.counts.batches),
    (
        "last_transaction_seconds", "When the source committed the last published transaction (Unix seconds).", "gauge",
        lambda worker: worker.counts.last_ms / 1000,
    ),
    ("ddls_total", "Published changes of the schema.", "counter", lambda worker: worker.counts.ddls),
    ("left_out_total", "Transactions without anything to publish.", "counter", lambda worker: worker.counts.left_out),
    (
        "log_bytes_total", "Bytes of the source's log that were published.", "counter",
        lambda worker: worker.counts.log_bytes,
    ),
    ("connections_total", "Connections made to the source.", "counter", lambda worker: worker.connections),
)  # fmt: skip
_LOADS = (
    ("rows", "Rows that a full load has read."),
    ("rows_estimated", "Rows that a full load will have, as the source estimates."),
    ("bytes", "Bytes of the prewrites of a full load."),
    ("tables", "Tables of a full load."),
    ("tables_done", "Tables that a full load has read."),
    ("rows_per_second", "Rows per second of a full load, since it was last begun or continued."),
    ("seconds_left", "Seconds until a full load has read all rows, at its present rate."),
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


def render_metrics_page(
    workers: Sequence[Worker], publisher: SourcePublisher, loads: Mapping[str, SnapshotProgress]
) -> tuple[str, str]:
    """The page and its content type; `loads`: the progress of each source's full load."""
    instruments: list[Instrument] = [
        Reading(f"binlake_feeder_{name}", text, _build_reader_by_source(workers, read), _LABEL, kind)
        for name, text, kind, read in _READINGS
    ]
    names = [worker.source.name for worker in workers]
    instruments += [
        Reading(
            "binlake_feeder_retries_total",
            'Calls to PD and pumps that were made again (source "": those of the start).',
            lambda: {name: publisher.retries[name] for name in ("", *names)}, _LABEL, "counter",
        ),
        Reading(
            "binlake_feeder_unsent_batches", "Batches with commits that are not on their pumps yet.",
            lambda: {**dict.fromkeys(names, 0), **publisher.count_unsent_by_source()}, _LABEL,
        ),
        Reading(
            "binlake_feeder_replaced_texts_total",
            "Texts in which bytes without a character became question marks (invalid-text).",
            REPLACED.get_counts, "table", "counter",
        ),
    ]  # fmt: skip
    states = {name: progress.to_json() for name, progress in loads.items()}
    instruments += [
        Reading(
            f"binlake_feeder_load_{name}", text, functools.partial(_read_numbers, states, name), _LABEL,
        )
        for name, text in _LOADS
    ]  # fmt: skip
    return render_page(instruments).decode(), METRICS_CONTENT_TYPE


def _read_numbers(states: Mapping[str, Mapping[str, Any]], key: str) -> dict[str, float]:
    """The number of each source's load that is known."""
    return {name: float(state[key]) for name, state in states.items() if state[key] is not None}


def _build_reader_by_source(
    workers: Sequence[Worker], read: Callable[[Worker], float]
) -> Callable[[], Mapping[str, float]]:
    return lambda: {worker.source.name: read(worker) for worker in workers}
