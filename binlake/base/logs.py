"""Where and how events are written: a traceback shows lines of code, never values of variables.

If `rich` is installed, structlog's default shows the local variables of each frame, and so rows and passwords.
"""

from __future__ import annotations

from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from binlake.base.progressline import ERASE


def write_events_to(stream: TextIO) -> None:
    """Write the events of this process to `stream`, with plain tracebacks."""
    renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    last = _erase_line_before(renderer) if stream.isatty() else renderer
    before = structlog.get_config()["processors"][:-1]
    structlog.configure(processors=[*before, last], logger_factory=structlog.PrintLoggerFactory(stream))


def _erase_line_before(render: structlog.dev.ConsoleRenderer) -> Processor:
    """An event takes the place of a progress line."""

    def render_alone(logger: WrappedLogger, method: str, event: EventDict) -> str:
        return f"{ERASE}{render(logger, method, event)}"

    return render_alone
