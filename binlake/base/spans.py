"""Spans of OpenTelemetry: off unless `OTEL_TRACES_EXPORTER` is `otlp`, and then by the standard `OTEL_*` environment.

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
    wanted = {name.strip().lower() for name in os.environ.get(EXPORTER_VARIABLE, "").split(",")}
    return "otlp" in wanted and os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() != "true"
