"""Spans: nothing happens unless the environment asks for them, and a collector's trouble is never the work's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from support.collector import Collector

from binlake.common import otlpspans
from binlake.common.spans import NO_SPAN, Span, are_traces_wanted
from binlake.common.tracing import open_traces
from binlake.errors import ConfigError, LeaseHeld, Permanent
from deploy.local.ports import free_port

HOSTILE = 'na\x1b[31mme"\n</script>\U0001f600'


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    for name in [name for name in os.environ if name.startswith("OTEL_") or name == "TRACEPARENT"]:
        monkeypatch.delenv(name)
    with Collector() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


def test_spans_are_nested_and_say_what_failed(collector: Collector) -> None:
    def fail(window: Span) -> None:
        window.note({"binlake.rows": 3})
        with pytest.raises(LeaseHeld), window.begin("finalize", {}, tolerated=(LeaseHeld,)):
            raise LeaseHeld("held")
        window.add("elsewhere", {"binlake.task": 1}, 1_000_000_000, 3_500_000_000)
        with pytest.raises(ValueError, match="s3cret"), window.begin("merge", {}):
            raise ValueError("s3cret row")
        raise Permanent("the table is gone", where={"table": "d.t"})

    with (
        open_traces() as root,
        pytest.raises(Permanent),
        root.begin("window", {"binlake.replication": HOSTILE}) as window,
    ):
        fail(window)
    [window_seen] = collector.find("window")
    assert (window_seen.parent, window_seen.error, window_seen.service) == ("", "the table is gone", "binlake")
    assert window_seen.values == {"binlake.replication": HOSTILE, "binlake.rows": 3, "error.type": "Permanent"}
    inner = {span.name: (span.error, span.values.get("error.type")) for span in collector.spans if span.parent}
    # Errors that are not Binlake's may quote rows.
    assert inner == {
        "finalize": (None, "LeaseHeld"), "elsewhere": (None, None), "merge": ("", "ValueError"),
    }  # fmt: skip
    assert {(span.trace, span.parent) for span in collector.spans if span.parent} == {
        (window_seen.trace, window_seen.id)
    }
    assert collector.find("elsewhere")[0].seconds == 2.5


def test_processes_of_one_text_write_one_trace_and_others_their_own(collector: Collector) -> None:
    for text in ("orders run-1", "orders run-1", "orders run-2", "", ""):
        with open_traces(text) as root, root.begin("stage", {}):
            pass
    traces = [span.trace for span in collector.find("stage")]
    assert traces[0] == traces[1]
    assert len(set(traces)) == 4


def test_the_span_of_the_caller_is_the_parent(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{'ab' * 16}-{'cd' * 8}-01")
    with open_traces("orders run-1") as root, root.begin("land", {}):
        pass
    [span] = collector.spans
    assert (span.trace, span.parent) == ("ab" * 16, "cd" * 8)


@pytest.mark.parametrize(
    "settings",
    [
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_TRACES_EXPORTER": ""},
        {"OTEL_SDK_DISABLED": "true"},
        # The sampler is the SDK's own.
        {"OTEL_TRACES_SAMPLER": "always_off"},
    ],
)
def test_nothing_is_sent_unless_it_is_asked_for(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with open_traces() as root, root.begin("window", {}):
        pass
    assert not collector.spans
    assert (root is NO_SPAN) == ("OTEL_TRACES_SAMPLER" not in settings)


@pytest.mark.process
def test_without_traces_no_package_of_opentelemetry_is_loaded() -> None:
    program = (
        "import sys, binlake.spark_jobs.commands.main\nfrom binlake.common.tracing import open_traces\n"
        "with open_traces() as root, root.begin('a', {}): pass\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    where = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=where)
    assert done.stdout.strip() == "[]"


@pytest.mark.usefixtures("collector")
def test_a_collector_that_is_gone_is_one_warning_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(otlpspans, "FLUSH_S", 0.3)
    with structlog.testing.capture_logs() as logs, open_traces() as root, root.begin("window", {}):
        pass
    assert ("traces_not_sent", 0.3) in [(line["event"], line.get("waited_s")) for line in logs]


@pytest.mark.parametrize(
    ("named", "module"), [("otlp", ".grpc."), ("otlp_proto_http", ".http."), ("console, otlp_proto_grpc", ".grpc.")]
)
def test_the_exporters_name_decides_the_protocol_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, named: str, module: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", named)
    assert are_traces_wanted()
    assert module in type(otlpspans._build_exporter()).__module__


@pytest.mark.usefixtures("collector")
def test_the_protocol_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    exporter = otlpspans._build_exporter()
    assert ".grpc." in type(exporter).__module__
    exporter.shutdown()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/xml")
    with pytest.raises(ConfigError, match="unknown protocol"), open_traces():
        pass
