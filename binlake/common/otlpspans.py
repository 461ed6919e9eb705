"""Spans that OpenTelemetry's SDK exports by OTLP (`tracing.open_traces`).

Sampler, endpoint, headers, certificates, batches and limits are the SDK's, from its `OTEL_*` variables. Whatever fails
about the export is logged, and never fails the work.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace import StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from binlake.common.spans import EXPORTERS, Span, Values, find_exporter
from binlake.errors import BinlakeError, ConfigError

FLUSH_S = 5.0
"""Seconds that the end of a process waits for its spans to be sent."""
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")

log = structlog.get_logger(__name__)


class _ExportedSpan:
    """A span, or with `span` None the place where the first ones begin."""

    def __init__(self, tracer: Tracer, context: Context, span: OtelSpan | None = None) -> None:
        self._tracer = tracer
        self._context = context
        self._span = span

    @contextmanager
    def begin(self, name: str, values: Values, tolerated: tuple[type[BaseException], ...] = ()) -> Iterator[Span]:
        """As Span. An error of Binlake is noted with its message, which never has values of rows; others by name."""
        inner = self._tracer.start_span(name, self._context, attributes=dict(values))
        try:
            yield _ExportedSpan(self._tracer, set_span_in_context(inner, self._context), inner)
        except BaseException as error:
            inner.set_attribute("error.type", type(error).__name__)
            if not isinstance(error, tolerated):
                inner.set_status(StatusCode.ERROR, error.message if isinstance(error, BinlakeError) else "")
            raise
        finally:
            inner.end()

    def note(self, values: Values) -> None:
        """As Span."""
        if self._span is not None:
            self._span.set_attributes(dict(values))

    def add(self, name: str, values: Values, began_ns: int, ended_ns: int) -> None:
        """As Span."""
        self._tracer.start_span(name, self._context, attributes=dict(values), start_time=began_ns).end(ended_ns)


class _OneTrace(RandomIdGenerator):
    """All spans without a parent are of the trace that follows from a text."""

    def __init__(self, text: str) -> None:
        self._trace_id = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16]) or 1

    def generate_trace_id(self) -> int:
        """The trace of all of them."""
        return self._trace_id


class _ToLog(logging.Handler):
    """What the SDK says, as events: a collector that does not answer."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line of the SDK."""
        log.warning("traces_not_sent", reason=record.getMessage()[:500])


@contextmanager
def open_exported(trace: str, parent: str) -> Iterator[Span]:
    """As `tracing.open_traces`, if traces are wanted."""
    ids = _OneTrace(trace) if trace else RandomIdGenerator()
    provider = TracerProvider(id_generator=ids, resource=_build_resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_build_exporter()))
    context = TraceContextTextMapPropagator().extract({"traceparent": parent}) if parent else Context()
    said = logging.getLogger("opentelemetry")
    handler, propagates = _ToLog(), said.propagate
    said.addHandler(handler)
    said.propagate = False
    try:
        yield _ExportedSpan(provider.get_tracer("binlake"), context)
    finally:
        _shut_down(provider)
        said.removeHandler(handler)
        said.propagate = propagates


def _build_resource() -> Resource:
    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create(None if named else {"service.name": "binlake"})


def _build_exporter() -> SpanExporter:
    """The exporter of the protocol that the environment names; without one, HTTP, as the specification says."""
    named = EXPORTERS[find_exporter() or "otlp"]
    protocol = named or next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter

        return HttpExporter()
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter

        return GrpcExporter()
    raise ConfigError(
        "unknown protocol for traces", where={"protocol": protocol[:40]}, hint=f"{_PROTOCOLS[0]}: http/protobuf or grpc"
    )


def _shut_down(provider: TracerProvider) -> None:
    """Send what is left, in a thread: an exporter retries a collector that does not answer for longer than it may."""
    sending = threading.Thread(target=provider.shutdown, name="binlake-traces", daemon=True)
    sending.start()
    sending.join(FLUSH_S)
    if sending.is_alive():
        log.warning("traces_not_sent", waited_s=FLUSH_S, reason="the collector has not answered; the work is done")
