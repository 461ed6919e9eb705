"""A child's spans join Airflow's trace only if Airflow exports the task's span."""

from __future__ import annotations

import pytest
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, use_span

from binlake_airflow.operators.base import find_trace_parent

SAMPLED = f"00-{'ab' * 16}-{'cd' * 8}-01"


def span(*, sampled: bool) -> NonRecordingSpan:
    """The span of a task, as Airflow makes it the current one."""
    return NonRecordingSpan(
        SpanContext(int("ab" * 16, 16), int("cd" * 8, 16), is_remote=True, trace_flags=TraceFlags(int(sampled)))
    )


@pytest.mark.parametrize(
    ("exporter", "sampled", "found"),
    [("otlp", True, {"TRACEPARENT": SAMPLED}), ("otlp", False, {}), ("none", True, {}), ("", True, {})],
)
def test_parent_is_given_if_both_sides_trace(
    monkeypatch: pytest.MonkeyPatch, exporter: str, sampled: bool, found: dict[str, str]
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", exporter)
    with use_span(span(sampled=sampled)):
        assert find_trace_parent() == found


def test_without_a_span_there_is_no_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    assert find_trace_parent() == {}
