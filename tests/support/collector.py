"""A collector of OpenTelemetry: takes spans by OTLP over HTTP."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Seen:
    """A span that came: ids in hex, `parent` empty without one; `error` the text of its status, None = not failed."""

    name: str
    trace: str
    id: str
    parent: str
    values: dict[str, Any]
    error: str | None
    seconds: float
    service: str


class Collector:
    """Use as a context manager. `spans`: what came so far, in order of arrival."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._build_handler())
        self._server.daemon_threads = True

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that send traces here."""
        host, port = self._server.server_address[:2]
        return {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{host!s}:{port}"}

    def find(self, name: str) -> list[Seen]:
        """The spans of this name."""
        return [span for span in self.spans if span.name == name]

    def _take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            service = {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_read_span(span, service) for span in scope.spans]

    def _build_handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                collector._take(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

        return Handler


def _read_span(span: Any, service: str) -> Seen:
    values = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
    error = span.status.message if span.status.code == span.status.STATUS_CODE_ERROR else None
    seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    ids = span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex()
    return Seen(span.name, *ids, values, error, seconds, service)
