"""Reports after a stage: a failing metrics backend cannot undo the stage."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from airflow.sdk._shared.observability.metrics import stats
from airflow.sdk._shared.observability.metrics.base_stats_logger import NoStatsLogger
from structlog.testing import capture_logs
from support import alert_rules, notified

from binlake_airflow.telemetry import alerts, metrics, reports

DONE = {"stage": "finalize", "state": "done", "lo": "1", "hi": "9", "rows": 3, "seconds": 0.5, "blocked_by": "",
        "detail": {}}  # fmt: skip


class Broken(NoStatsLogger):
    """Fails as a socket does."""

    def timing(self, *_: Any, **__: Any) -> None:
        raise OSError("no buffer space")


class Provider:
    """An OpenTelemetry provider whose readers cannot send."""

    def force_flush(self, *_: Any) -> bool:
        raise RuntimeError("MeterProvider.force_flush failed")


class Events(list[Any]):
    """The events added under an asset alias."""

    def add(self, asset: Any, extra: Any) -> None:
        self.append((asset.uri, extra))


@pytest.fixture
def context() -> dict[str, Any]:
    """The part of a task's context that a report needs."""
    return {
        "ti": SimpleNamespace(xcom_push=lambda **_: None, xcom_pull=lambda **_: None),
        "run_id": "r",
        "outlet_events": defaultdict(Events),
    }


@pytest.fixture
def task() -> Any:
    """A task at the end of the SQL sink's window."""
    airflow = SimpleNamespace(on_lag=None, on_silence=None, on_failure=None)
    settings = SimpleNamespace(name="orders", airflow=airflow)
    return SimpleNamespace(
        replication="orders", moves_assets="finalize", read_settings=lambda: settings, log=structlog.get_logger()
    )


@pytest.fixture
def no_backend() -> Iterator[None]:
    """Removes Airflow's metrics backend, and restores it afterwards."""
    before = stats._factory
    yield
    stats.initialize(factory=before or NoStatsLogger, export_legacy_names=False)


@pytest.mark.usefixtures("no_backend")
@pytest.mark.parametrize("backend", [Broken, NoStatsLogger])
def test_asset_is_updated_although_metrics_cannot_be_sent(
    task: Any, context: dict[str, Any], backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stats.initialize(factory=backend, export_legacy_names=False)
    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", Provider)
    with capture_logs() as logs:
        reports.report_stages(task, [DONE], [("shop", "item")], context)
    (events,) = context["outlet_events"].values()
    assert [uri for uri, _ in events] == ["binlake://orders/", "binlake://orders/shop/item"]
    assert "metrics_not_sent" in [line["event"] for line in logs]


def test_unresponsive_collector_delays_a_task_only_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, ended = threading.Event(), threading.Event()

    class Retries:
        """An OTLP exporter that keeps retrying, whatever timeout it gets."""

        def force_flush(self, _timeout_ms: float) -> bool:
            answers.wait(120)
            ended.set()
            return True

    monkeypatch.setattr("opentelemetry.metrics.get_meter_provider", Retries)
    monkeypatch.setattr(metrics, "FLUSH_S", 0.05)
    try:
        with capture_logs() as logs:
            metrics.flush()
        assert not ended.is_set()
        assert ("metrics_not_sent", 0.05) in [(line["event"], line.get("waited_s")) for line in logs]
    finally:
        answers.set()
    assert ended.wait(120)


def test_restarted_exporter_does_not_silence_age_alerts() -> None:  # U-02
    found = alert_rules.rules("binlake-replications")
    for alert, side in [("BinlakeCheckpointOld", "checkpoint"), ("BinlakeLandingOld", "landed"),
                        ("BinlakeMirrorOld", "mirror")]:  # fmt: skip
        assert f"last_over_time(binlake_{side}_timestamp_seconds[1d])" in found[alert]
    # Also after that day. Every replication lands, but not every one has both sinks.
    assert found["BinlakeFiguresGone"] == "absent(binlake_landed_timestamp_seconds)"
    shown = [(f"binlake_{side}_timestamp_seconds", frozenset[str]()) for side in ("checkpoint", "landed", "mirror")]
    assert not {"BinlakeCheckpointOld", "BinlakeLandingOld", "BinlakeMirrorOld", "BinlakeFiguresGone"} & set(
        alert_rules.find_missing_series("binlake-replications", shown)
    )


def test_successful_run_reports_tables_that_differ_from_the_source(
    task: Any, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # U-16
    told: list[Any] = []
    monkeypatch.setattr(metrics, "send", lambda *_: None)
    monkeypatch.setattr(reports.alerts, "notify", lambda rule, given: told.append((rule, given["binlake"])))
    detail = {
        "put_aside": ["d.a"],
        "verified_after_ddl": [{"table": "d.b", "state": "different"}, {"table": "d.c", "state": "equal"}],
    }
    task.read_settings().airflow.on_failure = "somebody"
    reports.report_stages(task, [DONE | {"detail": detail}], [], context)
    assert told == [
        ("somebody", {"replication": "orders", "what": "set-aside", "tables": ["d.a"]}),
        ("somebody", {"replication": "orders", "what": "different", "tables": ["d.b"]}),
    ]
    reports.report_stages(task, [DONE], [], context)
    assert len(told) == 2
    # A window that ends below a DDL which needs a person ends well, but tells.
    waits = {"waits_for_ddl": {"commit_ts": "5", "text": "a DDL cannot be expressed"}}
    reports.report_stages(task, [DONE | {"stage": "compact", "detail": waits}], [], context)
    assert told[2:] == [("somebody", {"replication": "orders", "what": "ddl-waits", "commit_ts": "5",
                                      "reason": "a DDL cannot be expressed"})]  # fmt: skip


def test_rows_found_by_validation_are_reported_once(
    task: Any, context: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(metrics, "send", lambda *_: None)
    monkeypatch.setattr(reports.alerts, "notify", lambda rule, given: told.append((rule, given["binlake"])))
    task.read_settings().airflow.on_failure = "somebody"
    detail = {"found": 2, "errors": 5, "listed": [{"table": "d.b"}, {"table": "d.a"}, {"table": "d.b"}]}
    validated = {**DONE, "stage": "validate"}
    reports.report_stages(task, [validated | {"detail": detail}], [], context)
    expected = {"replication": "orders", "what": "validation", "errors": 5, "tables": ["d.a", "d.b"]}
    assert told == [("somebody", expected)]
    # The same errors after the next window, and a postponed run.
    reports.report_stages(task, [validated | {"detail": {**detail, "found": 0}}], [], context)
    reports.report_stages(task, [validated | {"state": "postponed", "detail": {"reason": "a lock"}}], [], context)
    assert len(told) == 1


TS = "470583292723200001"


@pytest.mark.parametrize(
    "result",
    [
        # Nothing has landed: a start at 0 is not a lag of 56 years.
        {"stage": "plan", "state": "blocked", "lo": "0", "hi": "0"},
        # An earlier window, done again.
        {"stage": "plan", "state": "ready", "lo": TS, "hi": TS, "detail": {"again": True}},
        {"stage": "finalize", "state": "already", "lo": TS, "hi": TS},
    ],
    ids=["nothing landed", "earlier window again", "already applied"],
)
def test_result_without_a_current_position_reports_no_lag(
    task: Any, context: dict[str, Any], result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:  # U-02
    told: list[Any] = []
    monkeypatch.setattr(reports.alerts, "notify_lag", lambda *asked: told.append(asked))
    monkeypatch.setattr("airflow.sdk.observability.stats.gauge", lambda name, *_, **__: told.append(name))
    task.read_settings().airflow.on_lag = SimpleNamespace(seconds=1)
    whole = {"rows": 0, "seconds": 0.1, "blocked_by": "", "detail": {}, **result}
    reports._warn(task, [whole], 0, context)
    metrics.emit("orders", whole)
    assert [one for one in told if one != "binlake.orders.blocked"] == []
    now = {**whole, "state": "done", "lo": TS, "hi": TS, "detail": {}}
    reports._warn(task, [now], 0, context)
    metrics.emit("orders", now)
    assert len(told) > 2


@pytest.mark.parametrize(("state", "what"), [("running", ["deadline"]), ("failed", []), ("success", [])])
def test_deadline_of_an_ended_run_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, what: list[str]
) -> None:
    # Airflow drops the deadline of successful runs only; without this check, each failed run would be reported again.
    own = '[airflow]\ndeadline-s = 60\n[airflow.on-failure]\nnotifier = "support.notified.by_call"\n'
    file = tmp_path / "r.toml"
    file.write_text(f'name = "orders"\n[lake]\npath = "{tmp_path}/lake"\n{own}kwargs = {{ channel = "c" }}\n')
    monkeypatch.setenv("BINLAKE_TEST_TOLD", str(tmp_path / "told"))
    run = {"dag_run_id": "r1", "dag_id": "orders", "state": state}
    alerts.notify_failure(str(file), {"dag_run": run, "deadline": {"id": "1", "deadline_time": "then"}})
    told = notified.read_messages()
    assert [one["binlake"]["what"] for one in told] == what
    said = "orders: run r1 has taken longer than 60 s\nWhat to do: "
    assert all(one["binlake"]["text"].startswith(said) for one in told)


@pytest.mark.usefixtures("no_backend")
def test_several_windows_of_a_run_are_reported_as_one(task: Any, context: dict[str, Any]) -> None:
    pushed: dict[str, str] = {}
    context["ti"] = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))
    pieces = [
        DONE | {"stage": stage, "lo": lo, "hi": hi, "rows": rows, "detail": {"changed": [["shop", table]]}}
        for lo, hi, rows, table in (("1", "5", 1_000, "item"), ("5", "9", 2_000, "orders"))
        for stage in ("compact", "finalize")
    ]
    changed = reports.find_changed_tables(task, pieces, context)
    assert changed == [("shop", "item"), ("shop", "orders")]
    reports.report_run(task, pieces, context)
    assert pushed["window"] == "1-9"
    assert "finalize 3,000 rows" in pushed[reports.NOTE_KEY]
    assert pushed[reports.NOTE_KEY].startswith("window (1 = ")


@pytest.mark.usefixtures("no_backend")
@pytest.mark.parametrize("fused", [True, False])
def test_note_names_the_ddl_that_the_window_ends_before(fused: bool, task: Any, context: dict[str, Any]) -> None:
    found = {"commit_ts": "470583292723200001", "query": "RECOVER TABLE `b`", "text": "no", "ways": "replace it"}
    compacted = DONE | {"stage": "compact", "detail": {"waits_for_ddl": found}}
    pushed: dict[str, str] = {}
    context["ti"] = SimpleNamespace(
        xcom_push=lambda key, value: pushed.update({key: value}),
        xcom_pull=lambda task_ids: {"compact": compacted}[task_ids],
    )
    reports.report_run(task, [compacted, DONE] if fused else [DONE], context)
    assert pushed[reports.NOTE_KEY].endswith(
        "; the window ends before the DDL at commit_ts 470583292723200001, which waits, and all later changes with it:"
        " no (RECOVER TABLE `b`). Hint: replace it"
    )


def test_merge_reports_how_long_rows_have_waited_for_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:  # S4-53
    told: list[tuple[str, float]] = []
    monkeypatch.setattr("airflow.sdk.observability.stats.gauge", lambda name, value, **_: told.append((name, value)))
    merged = {"stage": "merge", "state": "done", "lo": "1", "hi": "2", "rows": 0, "seconds": 0.0}
    for detail in ({}, {"shard_locks": [{"seconds": "60"}, {"seconds": "7200"}]}, {"shard_locks": []}):
        metrics.emit("orders", {**merged, "detail": detail})
    assert told == [("binlake.orders.shard_lock_seconds", 7200), ("binlake.orders.shard_lock_seconds", 0)]
