"""Where events are written, and how: a traceback shows lines of code, never the values in them.

structlog's own choice shows the local variables of each frame where `rich` is installed: rows and passwords.
"""

from __future__ import annotations

from typing import TextIO

import structlog


def write_events_to(stream: TextIO) -> None:
    """Events of this process go to `stream`, with plain tracebacks."""
    renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    before = structlog.get_config()["processors"][:-1]
    structlog.configure(processors=[*before, renderer], logger_factory=structlog.PrintLoggerFactory(stream))
