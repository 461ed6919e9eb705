"""A window that a real Airflow runs is one trace: Airflow's spans of the run and its task, below them Binlake's."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.airflow_world import SLOW_PACE
from support.collector import Collector, Seen
from support.live import LiveSource
from test_e2e_window import set_up, some_changes, toml

from deploy.local.airflow import Airflow
from deploy.local.airflow_client import AirflowClient

pytestmark = [pytest.mark.airflow, pytest.mark.e2e, pytest.mark.soak]
PATIENCE_S = 300.0


def test_spans_of_a_window_are_below_that_of_airflows_task(tmp_path: Path) -> None:
    with LiveSource(tmp_path / "source", pumps=1) as source, Collector() as collector:
        set_up(source.workload)
        some_changes(source.workload, 1)
        source.settle()
        own = {"airflow": {"schedule": "", "layout": "fused"}, "window": {"engine": "local"}}
        values = source.replication(**own).model_dump(mode="json", by_alias=True, exclude_none=True)
        (tmp_path / "replications").mkdir()
        (tmp_path / "replications" / "live.toml").write_text(toml(values))
        env = {
            "BINLAKE_REPLICATIONS": str(tmp_path / "replications"),
            "AIRFLOW__TRACES__OTEL_ON": "True",
            **SLOW_PACE,
            **collector.environment,
            # For `otlp` Airflow speaks gRPC.
            "OTEL_TRACES_EXPORTER": "otlp_proto_http",
        }
        with Airflow(tmp_path / "home", env) as airflow:
            client = AirflowClient(airflow.url, airflow.user, airflow.password)
            client.wait_for_dag("live", PATIENCE_S)
            client.set_paused("live", False)
            run = client.trigger("live")
            assert client.wait_for_run("live", run, PATIENCE_S)["state"] == "success"
            client.close()
            # Airflow's parts send their spans by and by, at the latest when they end.
        spans = {span.id: span for span in _wait_for_run(collector)}
    [window] = [span for span in spans.values() if span.name == "window"]
    above = _list_above(spans, window)
    assert window.service == "binlake"
    assert above, sorted((span.name, span.service, span.parent in spans) for span in spans.values())
    assert "binlake" not in {span.service for span in above}
    assert {span.trace for span in above} == {window.trace}
    assert any("task" in span.name for span in above), [span.name for span in above]
    stages = {span.name for span in spans.values() if span.parent == window.id}
    assert {"plan", "land", "merge"} <= stages
    assert {span.trace for span in spans.values() if span.service == "binlake"} == {window.trace}


def _wait_for_run(collector: Collector) -> list[Seen]:
    """All spans, once that of the run has come: it is the last one to end."""
    until = time.monotonic() + 30
    while time.monotonic() < until and not any("dag_run" in span.name for span in collector.spans):
        time.sleep(0.1)
    return list(collector.spans)


def _list_above(spans: dict[str, Seen], span: Seen) -> list[Seen]:
    """The spans around `span`, from the inner to the outer."""
    above = []
    while span.parent in spans:
        span = spans[span.parent]
        above.append(span)
    return above
