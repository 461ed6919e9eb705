"""Begins and ends the traces of a process (`spans`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from binlake.common.spans import NO_SPAN, PARENT_VARIABLE, Span, are_traces_wanted


@contextmanager
def open_traces(trace: str = "") -> Iterator[Span]:
    """What spans of this process begin in; at the end of the context they are sent.

    They belong to the span that `TRACEPARENT` names, if it does. If not, each is a trace of its own; with `trace`, one
    of the trace that follows from this text, so that several processes write one trace. Raises ConfigError for an
    unknown protocol, ModuleNotFoundError if the packages of OpenTelemetry are missing.
    """
    if not are_traces_wanted():
        yield NO_SPAN
        return
    # Imported late: it takes half a second, and most processes have no traces.
    from binlake.common.otlpspans import open_exported

    with open_exported(trace, os.environ.get(PARENT_VARIABLE, "")) as root:
        yield root
