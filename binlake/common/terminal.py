"""What people see on a terminal: tables, values, durations in words, and one line of progress.

Values are verbatim, folded on a terminal, unfolded elsewhere, without markup. NULL is shown without quotes; a text that
could be mistaken for it, or has invisible characters, is quoted as in JSON.

The line of progress is written by a thread of its own: the work only names what it does, which costs nothing. The
cursor stays at the line's beginning, so whatever is printed next takes its place (`logs` erases the rest of
the line). Nothing is written if stderr is no terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

_NO_TERMINAL = 1_000_000
"""Width in characters of output to a pipe or file."""


def format_value(value: str | None) -> str:
    """A value as text; different values give different texts."""
    if value is None:
        return "NULL"
    strange = value == "NULL" or value != value.strip(" ") or value.startswith('"') or not value.isprintable()
    return escape_invisible(json.dumps(value, ensure_ascii=False)) if strange or not value else value


def escape_invisible(text: str) -> str:
    """`text` with control and invisible characters escaped."""
    return text if text.isprintable() else "".join(map(_escape_char, text))


def _escape_char(sign: str) -> str:
    if sign.isprintable():
        return sign
    code = ord(sign)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, whole: Sequence[str] = (), empty: str = ""
) -> None:
    """Print a table; on a terminal the columns `whole` are folded last. A cell may have several lines.

    `empty`: what is printed instead of a table without rows.
    """
    rows = list(rows)
    if empty and not rows:
        print(escape_invisible(empty))
        return
    # Imported here: it takes a tenth of a second of CPU, and most programs that could print a table do not.
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE)
    for name in columns:
        table.add_column(
            Text(_escape_lines(name)), overflow="fold", no_wrap=False, min_width=20 if name in whole else None
        )
    for row in rows:
        table.add_row(*(Text(_escape_lines(cell)) for cell in row))
    out = sys.stdout
    width = None if out.isatty() else _NO_TERMINAL
    Console(file=out, width=width, markup=False, highlight=False, emoji=False).print(table)


def _escape_lines(text: str) -> str:
    return "\n".join(map(escape_invisible, text.split("\n")))


_UNITS = ((86_400, "d", 3), (3_600, "h", 2), (60, "min", 2))
"""Seconds of a unit, its name, and from how many of it on it is used."""


def format_duration(seconds: float) -> str:
    """`seconds` in the greatest unit of which there are at least two or three: "4 s", "26 h"."""
    for size, unit, least in _UNITS:
        if seconds >= size * least:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def format_pace(rows_per_second: float, seconds_left: float | None) -> str:
    """`, 1,200 rows/s, 3 min left`: what follows the state of a full load; "" if neither is known."""
    pace = f", {rows_per_second:,.0f} rows/s" if rows_per_second else ""
    return pace + (f", {format_duration(seconds_left)} left" if seconds_left else "")


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
