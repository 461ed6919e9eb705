"""One line on a terminal that says what a long command does and for how long; nothing if stderr is no terminal.

The line is written by a thread of its own: the work only names what it does, which costs nothing. The cursor stays at
the line's beginning, so whatever is printed next takes its place (binlake.base.logs erases the rest of the line).
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from binlake.base.durations import format_duration
from binlake.base.terminal import escape_invisible

Tell = Callable[[str], None]
ERASE = "\x1b[K"
"""Erases from the cursor to the end of the line."""
_EVERY_S = 0.5


def tell_nobody(_text: str) -> None:
    """Show nothing."""


@contextmanager
def show_progress(what: str, stream: TextIO | None = None) -> Iterator[Tell]:
    """A function that shows how far `what` is; the line is gone when the context ends."""
    stream = stream or sys.stderr
    if not stream.isatty():
        yield tell_nobody
        return
    line = _Line(what, stream)
    thread = threading.Thread(target=line.run, name="binlake-progress", daemon=True)
    thread.start()
    try:
        yield line.tell
    finally:
        line.ended.set()
        thread.join()
        line.erase()


class _Line:
    def __init__(self, what: str, stream: TextIO) -> None:
        self.ended = threading.Event()
        self._what, self._text, self._stream, self._began = what, "", stream, time.monotonic()

    def tell(self, text: str) -> None:
        """Show `text` from now on."""
        self._text = text

    def run(self) -> None:
        """Write the line until the work has ended; never for work that is done at once."""
        while not self.ended.wait(_EVERY_S):
            self._write(self.format())

    def format(self) -> str:
        """The line, not wider than the terminal."""
        age = format_duration(time.monotonic() - self._began)
        text = ", ".join(part for part in (self._text, age) if part)
        return escape_invisible(f"{self._what}: {text}")[: shutil.get_terminal_size().columns - 1]

    def erase(self) -> None:
        """Remove the line."""
        self._write("")

    def _write(self, text: str) -> None:
        self._stream.write(f"{text}{ERASE}\r")
        self._stream.flush()
