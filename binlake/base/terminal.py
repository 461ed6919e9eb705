"""Prints tables and values for people: values verbatim, folded on a terminal, unfolded elsewhere; without markup.

NULL is shown without quotes; a text that could be mistaken for it, or has invisible characters, is quoted as in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

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
