"""Parse CSV as TiCDC's page describes it, with a regular expression: NULL differs from text, values are canonical."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from support.feedrows import bit_text, number_text

from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_VALUE = re.compile(r'(?:"((?:[^"]|"")*)"|([^,"\r\n]*))(,|\r\n|$)')


def split_csv(text: str) -> Iterator[list[str | None]]:
    """The values of each line, for the default CSV settings."""
    at, line = 0, []
    while at <= len(text):
        match = _VALUE.match(text, at)
        assert match is not None, text[at:]
        quoted, plain, end = match.groups()
        line.append(quoted.replace('""', '"') if quoted is not None else None if plain == "\\N" else plain)
        at = match.end()
        if end != ",":
            yield line
            line = []
        if not end:
            return


def canonical_text(column: ColumnInfo, text: str | None, binary: str = "base64") -> str | None:
    """The value in the form that `mutation` stores."""
    if text is None:
        return None
    if column.tp == t.BIT:
        return bit_text(column, int(text))
    if column.tp in (t.FLOAT, t.DOUBLE):
        return number_text(column, text)
    if column.is_binary:
        return (base64.b64decode(text) if binary == "base64" else bytes.fromhex(text)).hex().upper()
    return text
