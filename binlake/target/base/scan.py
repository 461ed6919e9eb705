"""Splits a dump's data file into its INSERT statements. Strings and comments are skipped whole, without parsing.

Rule: a statement is the bytes between two `;` outside strings, and its rows are the groups in parentheses after VALUES.
Session settings in a file are either followed or refused, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from binlake.base.redaction import redact_sql
from binlake.errors import ConfigError
from binlake.mysqlbinlog.dumpfolder import build_damaged_file_error

_BLOCK = 1 << 20
# `(?>X*)`, not `X*+`: Python up to 3.11.4 matches too little where a repeated group may backtrack (gh-106052).
_STRINGS = rb"""'[^'\\]*+(?>(?:(?:\\[0nrZ'"\\]|'')[^'\\]*+)*)'|"[^"\\]*+(?>(?:(?:\\[0nrZ'"\\]|"")[^"\\]*+)*)\""""
_PIECE = rb"""[^'"`;()/-]++|-(?!-)|/(?!\*)|`(?>(?:[^`]++|``)*)`|""" + _STRINGS
_PLAIN = re.compile(rb"(?>(?:\)|" + _PIECE + rb")+)", re.S)
"""Text that neither ends a statement nor begins a row. A string that continues in the next block does not match."""
_NOTE = rb"/\*.*?\*/|--(?=[ \t\r\n])[^\n]*\n|--(?![ \t\r\n])"
_COMMENT = re.compile(_NOTE, re.S)
_INSIDE = _PIECE + rb"|" + _NOTE
_ROW = re.compile(rb"\((?>(?:%b|\((?>(?:%b|\((?>(?:%b)*)\))*)\))*)\)" % (_INSIDE, _INSIDE, _INSIDE), re.S)
"""A row or a list of columns in parentheses, which may contain function calls (CONVERT of mydumper)."""
_ODD_ESCAPE = re.compile(
    rb"(?>(?:[();]|" + _PIECE + rb"|" + _NOTE + rb""")*)"""
    rb"""(?:'(?>(?:[^'\\]|\\[0nrZ'"\\]|'')*)|"(?>(?:[^"\\]|\\[0nrZ'"\\]|"")*))"""
    rb"""\\[^0nrZ'"\\]""",
    re.S,
)
"""A string with a backslash that begins no known escape: such a file uses backslashes as ordinary characters."""
_LEADING = re.compile(rb"(?:\s+|/\*.*?\*/|--[ \t\r\n][^\n]*\n)*", re.S)
_INSERT = re.compile(
    rb"(?:INSERT|REPLACE)\s+(?:IGNORE\s+)?INTO\s+(?:(?:`(?:[^`]|``)+`|[\w$]+)\s*\.\s*)?(?:`(?:[^`]|``)+`|[\w$]+)",
    re.I,
)
_COLUMNS = re.compile(rb"\s*\(")
_NAME = re.compile(rb"`((?:[^`]|``)+)`$|([\w$]+)$")
_SETTINGS = (
    (re.compile(rb"\bSET\s+NAMES\s+'?(\w+)", re.I), rb"binary|utf8|utf8mb3|utf8mb4"),
    (re.compile(rb"(?<!@)\bTIME_ZONE\s*=\s*'([^']*)'", re.I), rb"[+-]0?0:00|UTC"),
    (re.compile(rb"(?<!@)\bSQL_MODE\s*=\s*'([^']*)'", re.I), rb"(?!.*(?:NO_BACKSLASH_ESCAPES|ANSI)).*"),
)
"""Session settings that a file may contain, with the values that are supported here."""
_PASSED_OVER = re.compile(rb"(?:SET|USE|LOCK|UNLOCK|START|BEGIN|COMMIT)\b", re.I)


@dataclass(frozen=True)
class DumpedRows:
    """An INSERT of a dump: its text after the table's name, and how many `rows` it has."""

    rest: bytes
    rows: int


def read_inserts(file: Path, stream: BinaryIO, table: str) -> Iterator[DumpedRows]:
    """The INSERT statements of `file`, in order. All must insert into `table`.

    Raises ConfigError for a file that is cut off, damaged or not a dump, or that needs other session settings.
    """
    for text, groups in _cut_statements(file, stream):
        start = _LEADING.match(text)
        body = text[start.end() :] if start is not None else text
        if not body or _PASSED_OVER.match(body):
            _require_usual_settings(file, text)
            continue
        head = _INSERT.match(body)
        if head is None:
            raise _build_refused_error(file, "has a statement that is not an INSERT", body)
        if _read_table_name(head[0]) != table:
            raise _build_refused_error(file, "has rows of a table other than the one in its name", body)
        rest = body[head.end() :]
        yield DumpedRows(rest, groups - (_COLUMNS.match(rest) is not None))


def _read_table_name(head: bytes) -> str:
    name = _NAME.search(head)
    table = b"" if name is None else name[2] or name[1].replace(b"``", b"`")
    return table.decode("utf-8", "surrogateescape")


def _require_usual_settings(file: Path, text: bytes) -> None:
    for setting, usual in _SETTINGS:
        asked = setting.search(text)
        if asked is not None and not re.fullmatch(usual, asked[1], re.I):
            raise _build_refused_error(file, "has a session setting that is not supported", text)


def _cut_statements(file: Path, stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """(text without its semicolon, groups in parentheses) of each statement."""
    buffer, at, ended, groups = b"", 0, False, 0
    while True:
        match = _PLAIN.match(buffer, at) or _COMMENT.match(buffer, at)
        row = _ROW.match(buffer, at) if match is None else None
        mark = buffer[at : at + 1]
        # A match that reaches the end of the block may continue in the next one.
        if match is not None and (match.end() < len(buffer) or ended):
            at = match.end()
        elif row is not None:
            at, groups = row.end(), groups + 1
        elif match is None and mark == b";":
            yield buffer[:at], groups
            buffer, at, groups = buffer[at + 1 :], 0, 0
        elif not ended:
            _require_escapes(file, buffer, at)
            # Double the buffer each time, because a long string is scanned again from its start.
            more = _read_block(file, stream, max(_BLOCK, len(buffer)))
            buffer, ended = buffer + more, not more
        else:
            break
    rest = _LEADING.sub(b"", buffer, count=1)
    if rest:
        raise ConfigError(
            "a data file of the dump is cut off: its last statement does not end",
            where={"file": file, "from": _shorten(rest)},
            hint="copy the file again from the dump; whatever was loaded from it is recorded",
        )


def _require_escapes(file: Path, buffer: bytes, at: int) -> None:
    odd = _ODD_ESCAPE.match(buffer, at)
    if odd is not None:
        raise _build_refused_error(
            file, "has a backslash that begins no known escape", buffer[odd.end() - 2 : odd.end()]
        )


def _build_refused_error(file: Path, why: str, text: bytes) -> ConfigError:
    return ConfigError(
        f"a data file of the dump {why}",
        where={"file": file, "statement": _shorten(text)},
        hint="give a folder written by mydumper or dumpling, with backslashes escaped, names and texts in UTF-8 and"
        " times in UTC",
    )


def _shorten(text: bytes) -> str:
    return redact_sql(text[:80].decode("utf-8", "replace"))


def _read_block(file: Path, stream: BinaryIO, size: int) -> bytes:
    try:
        return bytes(stream.read(size))
    except OSError as error:
        raise build_damaged_file_error(file, error) from error
