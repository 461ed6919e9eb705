"""Where and how events are written: a traceback shows lines of code, never values of variables.

If `rich` is installed, structlog's default shows the local variables of each frame, and so rows and passwords.
`BINLAKE_LOG_FORMAT=json` writes one JSON object a line, for whatever collects logs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from binlake.common.terminal import ERASE
from binlake.errors import ConfigError

FORMAT_VARIABLE = "BINLAKE_LOG_FORMAT"


def write_events_to(stream: TextIO) -> None:
    """Write the events of this process to `stream`, with plain tracebacks. Raises ConfigError for an unknown format."""
    wanted = os.environ.get(FORMAT_VARIABLE, "")
    if wanted not in ("", "text", "json"):
        raise ConfigError("unknown format of the log", where={FORMAT_VARIABLE: wanted[:40]}, hint="text or json")
    processors = _list_json_processors() if are_logs_json() else _list_text_processors(stream)
    structlog.configure(processors=processors, logger_factory=structlog.PrintLoggerFactory(stream))


def are_logs_json() -> bool:
    """Whether this process writes its events as JSON."""
    return os.environ.get(FORMAT_VARIABLE) == "json"


def _list_json_processors() -> Sequence[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.JSONRenderer(sort_keys=True),
    ]


def _list_text_processors(stream: TextIO) -> Sequence[Processor]:
    renderer = structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)
    last = _erase_line_before(renderer) if stream.isatty() else renderer
    return [*structlog.get_config()["processors"][:-1], last]


def _erase_line_before(render: structlog.dev.ConsoleRenderer) -> Processor:
    """An event takes the place of a progress line."""

    def render_alone(logger: WrappedLogger, method: str, event: EventDict) -> str:
        return f"{ERASE}{render(logger, method, event)}"

    return render_alone
