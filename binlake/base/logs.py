"""Where and how events are written: a traceback shows lines of code, never values of variables.

If `rich` is installed, structlog's default shows the local variables of each frame, and so rows and passwords.
"""

from __future__ import annotations

from typing import TextIO

import structlog


def write_events_to(stream: TextIO) -> None:
    """Write the events of this process to `stream`, with plain tracebacks."""
    renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    before = structlog.get_config()["processors"][:-1]
    structlog.configure(processors=[*before, renderer], logger_factory=structlog.PrintLoggerFactory(stream))
