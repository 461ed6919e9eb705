"""The INSERT statements of a dump's data file, cut without a parse: strings and comments are passed over whole.

Rule: a statement is the bytes of the file from one `;` outside strings to the next, and the parentheses outside strings
behind its VALUES are its rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from binlake.errors import ConfigError
from binlake.mysqlbinlog.dumpfolder import damaged_file_error

_BLOCK = 1 << 20
_PLAIN = re.compile(
    rb"""(?:[^'"`;(/-]++|-(?!-)|/(?!\*)"""
    rb"""|'[^'\\]*+(?:(?:\\.|'')[^'\\]*+)*+'|"[^"\\]*+(?:(?:\\.|"")[^"\\]*+)*+"|`(?:[^`]++|``)*+`)++""",
    re.S,
)
"""What neither ends a statement nor begins a row. A string that goes on in the next block is none."""
_COMMENT = re.compile(rb"/\*.*?\*/|--(?=[ \t\r\n])[^\n]*\n|--(?![ \t\r\n])", re.S)
_LEADING = re.compile(rb"(?:\s+|/\*.*?\*/|--[ \t\r\n][^\n]*\n)*", re.S)
_INSERT = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:IGNORE\s+)?INTO\s+(?:(?:`(?:[^`]|``)+`|[\w$]+)\s*\.\s*)?(?:`(?:[^`]|``)+`|[\w$]+)",
    re.I,
)
_COLUMNS = re.compile(rb"\s*\(")
_PASSED_OVER = re.compile(rb"(?:SET|USE|LOCK|UNLOCK|START|BEGIN|COMMIT)\b", re.I)


@dataclass(frozen=True)
class DumpedRows:
    """An INSERT of a dump: its text behind the table's name, and how many `rows` it has."""

    rest: bytes
    rows: int


def read_inserts(file: Path, stream: BinaryIO) -> Iterator[DumpedRows]:
    """The INSERT statements of `file` in order. Raises ConfigError for a file that is cut off, damaged or no dump."""
    for text, parentheses in _cut_statements(file, stream):
        start = _LEADING.match(text)
        body = text[start.end() :] if start is not None else text
        if not body or _PASSED_OVER.match(body):
            continue
        head = _INSERT.match(body)
        if head is None:
            raise ConfigError(
                "a data file of the dump has a statement that is not an INSERT",
                where={"file": file, "statement": body[:80].decode("utf-8", "replace")},
                hint="give the folder that mydumper or dumpling wrote",
            )
        rest = body[head.end() :]
        yield DumpedRows(rest, parentheses - (_COLUMNS.match(rest) is not None))


def _cut_statements(file: Path, stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """(text without its semicolon, parentheses outside strings and comments) of each statement."""
    buffer, at, ended, parentheses = b"", 0, False, 0
    while True:
        match = _PLAIN.match(buffer, at) or _COMMENT.match(buffer, at)
        mark = buffer[at : at + 1]
        # What reaches the end of the block may go on in the next one.
        if match is not None and (match.end() < len(buffer) or ended):
            at = match.end()
        elif match is None and mark == b";":
            yield buffer[:at], parentheses
            buffer, at, parentheses = buffer[at + 1 :], 0, 0
        elif match is None and mark == b"(":
            at, parentheses = at + 1, parentheses + 1
        elif not ended:
            # Twice as much each time: a long string is looked at again from its start.
            more = _read_block(file, stream, max(_BLOCK, len(buffer)))
            buffer, ended = buffer + more, not more
        else:
            break
    rest = _LEADING.sub(b"", buffer, count=1)
    if rest:
        raise ConfigError(
            "a data file of the dump is cut off: its last statement does not end",
            where={"file": file, "from": rest[:80].decode("utf-8", "replace")},
            hint="copy the file again from the dump; nothing of it was loaded that is not recorded",
        )


def _read_block(file: Path, stream: BinaryIO, size: int) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError as error:
        raise damaged_file_error(file, error) from error
