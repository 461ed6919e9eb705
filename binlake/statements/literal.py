"""Write a canonical text as an SQL literal, so that the server stores the source's value.

Sources: MISSION S0-22; hazards R-12, R-44. The session uses utf8mb4 and does not set NO_BACKSLASH_ESCAPES
(`binlake.target.session.session`). These functions are the reference; `columns` does the same for whole columns.
"""

from __future__ import annotations

import struct
from enum import Enum

from binlake.rows.codec.encode import parse_flat_number
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t


class LiteralKind(Enum):
    """The form in which the canonical text of a column is written as a literal."""

    NUMBER = "number"
    FLOAT = "float"
    DOUBLE = "double"
    TEXT = "text"
    JSON = "json"
    BINARY = "binary"
    BIT = "bit"


_NUMBERS = t.INTEGERS | {t.NEWDECIMAL, t.YEAR}

FLOAT_MAX, FLOAT_MAX_LITERAL = "3.4028235e38", "3.4028234663852886e38"
"""Read as a double, the shortest text of the greatest FLOAT exceeds that FLOAT, so MariaDB refuses it as out of
range."""


def choose_literal_kind(column: ColumnInfo) -> LiteralKind:
    """The kind of a column; temporal, ENUM and SET values are quoted text."""
    if column.tp == t.BIT:
        return LiteralKind.BIT
    if column.is_binary:
        return LiteralKind.BINARY
    if column.tp in _NUMBERS:
        return LiteralKind.NUMBER
    return {t.FLOAT: LiteralKind.FLOAT, t.DOUBLE: LiteralKind.DOUBLE, t.JSON: LiteralKind.JSON}.get(
        column.tp, LiteralKind.TEXT
    )


def format_value_literal(text: str | None, kind: LiteralKind) -> str:
    """The literal that stores `text` (canonical; None = NULL) into a column of `kind`."""
    if text is None:
        return "NULL"
    if kind is LiteralKind.NUMBER:
        return text
    if kind is LiteralKind.FLOAT:
        return _format_real_literal(text.replace(FLOAT_MAX, FLOAT_MAX_LITERAL))
    if kind is LiteralKind.DOUBLE:
        return _format_real_literal(text)
    if kind is LiteralKind.BINARY:
        return f"X'{text}'"
    # X'..' is a string in MariaDB's comparisons; 0x.. is bytes for a BIT column and a number in a comparison.
    return f"0x{text}" if kind is LiteralKind.BIT else quote(text)


def format_match_literal(text: str | None, kind: LiteralKind) -> str:
    """The literal that compares equal to a stored value of `text`.

    Differs from `format_value_literal` for FLOAT: a server compares the 32-bit value widened to 64 bits, so 1.1 never
    matches while 1.100000023841858e0 does (hazards R-44, measured).
    """
    if text is None or kind is not LiteralKind.FLOAT:
        return format_value_literal(text, kind)
    return widen_float(text)


def format_match(text: str | None, column: ColumnInfo) -> str:
    """The literal that compares equal to a stored value of `column`."""
    if text is not None and column.has_empty_member:
        # As text, the value without a member equals the empty member.
        return str(parse_flat_number(column, text))
    return format_match_literal(text, choose_literal_kind(column))


def widen_float(text: str) -> str:
    """A double literal equal to the 32-bit float that `text` means."""
    return _format_real_literal(repr(struct.unpack("<f", struct.pack("<f", float(text)))[0]))


def quote(text: str) -> str:
    """A string literal of `text`, safe without NO_BACKSLASH_ESCAPES."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"


def quote_name(name: str) -> str:
    """An identifier in back quotes."""
    return "`" + name.replace("`", "``") + "`"


def quote_qualified_name(db: str, table: str) -> str:
    """`db`.`table`, quoted."""
    return f"{quote_name(db)}.{quote_name(table)}"


def _format_real_literal(text: str) -> str:
    # Without an exponent the server would read a DECIMAL: -0 would lose its sign, and long numbers be converted twice.
    return text if "e" in text or "E" in text else text + "e0"
