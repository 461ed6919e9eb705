"""The feeder's metrics, read from its workers when the page is requested."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from binlake.mysqlbinlog.charsets import REPLACED
from binlake.pump_service.feeder.publisher import SourcePublisher
from binlake.pump_service.feeder.snapshot.progress import SnapshotProgress
from binlake.pump_service.feeder.worker import Worker
from binlake.pump_service.monitoring import METRICS_CONTENT_TYPE, Instrument, Reading, render_page

_LABEL = "source"


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
