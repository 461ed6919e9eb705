"""A window's figures as Airflow metrics, and the alert rules that query them. The jobs are scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk._shared.observability.metrics import stats
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from airflow.sdk._shared.observability.metrics.otel_logger import SafeOtelLogger
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, MetricExportResult, PeriodicExportingMetricReader
from support import alert_rules
from support.dag_runs import BLOCKED, FEED, LO, LOWERED, Runner, answer, failure, window_of_feeds

from binlake import tso
from binlake_airflow.telemetry import metrics

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("airflow_db")]


class Recorder(NoStatsLogger):
    """Keeps the last value of each metric."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[str, Any]] = {}

    def incr(self, stat: str, count: int = 1, *_: Any, **__: Any) -> None:
        self.seen[stat] = ("incr", count)

    def gauge(self, stat: str, value: float, *_: Any, **__: Any) -> None:
        self.seen[stat] = ("gauge", value)

    def timing(self, stat: str, dt: Any, *_: Any, **__: Any) -> None:
        self.seen[stat] = ("timing", dt)


class Sent(MetricExporter):
    """Keeps the names of the metrics that OpenTelemetry sends."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def export(self, metrics_data: Any, *_: Any, **__: Any) -> MetricExportResult:
        scopes = [scope for one in metrics_data.resource_metrics for scope in one.scope_metrics]
        self.names |= {metric.name for scope in scopes for metric in scope.metrics}
        return MetricExportResult.SUCCESS

    def force_flush(self, *_: Any, **__: Any) -> bool:
        return True

    def shutdown(self, *_: Any, **__: Any) -> None:
        """Nothing to close."""


@pytest.fixture
def backend() -> Iterator[Callable[[Any], None]]:
    """Replaces Airflow's metrics backend."""
    before = stats._factory
    yield lambda logger: stats.initialize(factory=lambda: logger, export_legacy_names=False)
    stats.initialize(factory=before, export_legacy_names=False)


def test_metrics_are_named_after_the_replication_and_match_the_alert_rules(
    run: Runner, backend: Callable[[Any], None]
) -> None:  # U-02
    recorder = Recorder()
    backend(recorder)
    skipped = {"feed": "b", "feed_state": "error", "reason": "409", "checkpoint": LO}
    window = window_of_feeds("a", "b", bytes=700)
    run({**window, "encode-b": [answer("encode", LO, LOWERED, "skipped", detail=skipped)]},
        feeds=[FEED.format("a"), FEED.format("b")])  # fmt: skip
    assert recorder.seen["binlake.orders.feed.a.state"] == ("gauge", 0)
    assert recorder.seen["binlake.orders.feed.a.messages"] == ("incr", 3)
    assert recorder.seen["binlake.orders.feed.a.bytes"] == ("incr", 700)
    assert recorder.seen["binlake.orders.feed.a.timestamp_seconds"] == (
        "gauge",
        tso.extract_physical(int(LOWERED)) / 1000,
    )
    # A stopped feed grows old.
    assert recorder.seen["binlake.orders.feed.b.state"] == ("gauge", 2)
    assert recorder.seen["binlake.orders.feed.b.timestamp_seconds"] == ("gauge", tso.extract_physical(int(LO)) / 1000)
    assert recorder.seen["binlake.orders.feed.b.lag_seconds"][1] > 0
    for name in ("lag_seconds", "landed_lag_seconds", "mirror_lag_seconds"):
        kind, value = recorder.seen[f"binlake.orders.{name}"]
        assert (kind, value >= 0) == ("gauge", True)
    for name in ("checkpoint", "landed", "mirror"):
        place = recorder.seen[f"binlake.orders.{name}_timestamp_seconds"]
        assert place == ("gauge", tso.extract_physical(int(LOWERED)) / 1000)
    assert recorder.seen["binlake.orders.blocked"] == ("gauge", 0)
    assert recorder.seen["binlake.orders.set_aside"] == ("gauge", 0)
    assert recorder.seen["binlake.orders.land.rows"] == ("incr", 3)
    run({"plan": [BLOCKED]})
    assert recorder.seen["binlake.orders.blocked"] == ("gauge", 1)
    detail = {"found": 1, "errors": 3, "pending": 2, "listed": [], "compared": 5}
    validated = {"stage": "validate", "state": "done", "lo": LO, "hi": LOWERED, "rows": 5, "seconds": 0.1,
                 "detail": detail}  # fmt: skip
    metrics.emit("orders", validated)
    # A run without new figures emits none.
    metrics.emit("orders", {**validated, "state": "postponed", "detail": {"errors": 0}})
    assert recorder.seen["binlake.orders.validation_errors"] == ("gauge", 3)
    assert recorder.seen["binlake.orders.validation_pending"] == ("gauge", 2)
    merged = {**validated, "stage": "merge", "detail": {"shard_locks": [{"seconds": 7}, {"seconds": 90}]}}
    metrics.emit("orders", merged)
    assert recorder.seen["binlake.orders.shard_lock_seconds"] == ("gauge", 90)
    # Airflow's prefix precedes each name.
    exported = [alert_rules.series_of(f"airflow.{name}") for name in recorder.seen if name.startswith("binlake.")]
    # In the form in which the exporter shows a timing.
    quantile = frozenset({'quantile="0.9"'})
    shown = [(name, labels | quantile if name == "binlake_stage_seconds" else labels) for name, labels in exported]
    assert alert_rules.find_missing_series("binlake-replications", shown) == {}
    assert alert_rules.find_missing_on_board("replication", shown) == {}


def test_lags_are_by_the_clock_of_pd(
    run: Runner, backend: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:  # U-02
    recorder = Recorder()
    backend(recorder)
    now_s = tso.extract_physical(int(LO)) / 1000 + 70
    monkeypatch.setattr(metrics, "time", SimpleNamespace(time=lambda: now_s))
    window = window_of_feeds("a")
    plan = answer("plan", LO, LOWERED, "ready", detail={"skew_ms": 30_000})
    run({**window, "plan": [plan]}, feeds=[FEED.format("a")])
    for name in ("lag_seconds", "landed_lag_seconds", "mirror_lag_seconds", "feed.a.lag_seconds"):
        assert recorder.seen[f"binlake.orders.{name}"] == ("gauge", pytest.approx(100)), name
    metrics.send_waiting("orders", {**plan["results"][0], "detail": {"skew_ms": -60_000}})
    assert recorder.seen["binlake.orders.landed_lag_seconds"] == ("gauge", pytest.approx(10))
    # A clock that is ahead of the commit_ts by nothing: never negative.
    metrics.emit("orders", answer("finalize", LO, LOWERED)["results"][0], -999_000)
    assert recorder.seen["binlake.orders.lag_seconds"] == ("gauge", 0.0)


def test_failed_feed_reports_its_state_without_a_task_result(
    run: Runner, backend: Callable[[Any], None]
) -> None:  # U-02
    recorder = Recorder()
    backend(recorder)
    window = window_of_feeds("a", "b")
    refused, away = failure("Permanent", "SchemaRefused"), failure("Transient", "Transient")
    run({**window, "publish-a": [refused], "publish-b": [away]}, feeds=[FEED.format("a"), FEED.format("b")])
    assert recorder.seen["binlake.orders.feed.a.state"] == ("gauge", 2)
    assert recorder.seen["binlake.orders.feed.b.state"] == ("gauge", 0)
    assert "binlake.orders.feed.a.messages" not in recorder.seen


def test_opentelemetry_metrics_are_sent_before_the_tasks_process_ends(
    run: Runner, backend: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Sent()
    provider = MeterProvider(metric_readers=[PeriodicExportingMetricReader(sent, export_interval_millis=3_600_000)])
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", lambda: provider)
    backend(SafeOtelLogger(provider))
    try:
        run({"plan": [BLOCKED]})
        assert sent.names >= {"airflow.binlake.orders.blocked", "airflow.binlake.orders.landed_timestamp_seconds"}
    finally:
        provider.shutdown()
