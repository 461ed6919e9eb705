"""Spans of OpenTelemetry: off unless `OTEL_TRACES_EXPORTER` names one of OTLP, and then by the standard environment.

Rule: a span is passed to what happens in it, as any other value; while traces are off it is NO_SPAN, which does nothing
and needs no package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

Values = Mapping[str, str | int | float | bool]
"""Attributes of a span. A commit_ts is a text: programs that read JSON round large numbers."""

EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
EXPORTERS = {"otlp": "", "otlp_proto_http": "http/protobuf", "otlp_proto_grpc": "grpc"}
"""The exporters of OTLP by the names of OpenTelemetry's Python packages, and the protocol that a name decides. Airflow
speaks gRPC for the plain name, whatever `OTEL_EXPORTER_OTLP_PROTOCOL` says."""
PARENT_VARIABLE = "TRACEPARENT"
"""The span to which those of this process belong, as W3C's Trace Context writes it: set by who started it."""


class Span(Protocol):
    """Something that takes time; thread-safe."""

    def begin(
        self, name: str, values: Values, tolerated: tuple[type[BaseException], ...] = ()
    ) -> AbstractContextManager[Span]:
        """A span inside this one, for as long as the context. An error that leaves it is noted, if not `tolerated`."""

    def note(self, values: Values) -> None:
        """Add attributes."""

    def add(self, name: str, values: Values, began_ns: int, ended_ns: int) -> None:
        """A span inside this one that is over: it was elsewhere. Its times are in Unix nanoseconds."""


class NoSpan:
    """What happens is not traced."""

    def begin(
        self, name: str, values: Values, tolerated: tuple[type[BaseException], ...] = ()
    ) -> AbstractContextManager[Span]:
        """As Span."""
        del name, values, tolerated
        return nullcontext(self)

    def note(self, values: Values) -> None:
        """As Span."""

    def add(self, name: str, values: Values, began_ns: int, ended_ns: int) -> None:
        """As Span."""


NO_SPAN = NoSpan()


def are_traces_wanted() -> bool:
    """Whether the environment asks for traces by OTLP."""
    return find_exporter() is not None and os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"


def find_exporter() -> str | None:
    """The first exporter of OTLP that the environment names."""
    wanted = (name.strip().lower() for name in os.environ.get(EXPORTER_VARIABLE, "").split(","))
    return next((name for name in wanted if name in EXPORTERS), None)
