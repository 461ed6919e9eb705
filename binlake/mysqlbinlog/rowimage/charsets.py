"""Converts texts of MySQL's charsets to UTF-8, the only encoding that TiDB stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from binlake.errors import SchemaError, SourceRefused
from binlake.mysqlbinlog.rowimage.replaced import REPLACED
from binlake.mysqlbinlog.texts import UTF8, Decode, find_decoder
from binlake.rows.codec import datum as d
from binlake.rows.codec.latin1 import find_key_columns
from binlake.rows.codec.values import format_bytes
from binlake.rows.schema import ColumnInfo, TableDef

InvalidText = Literal["refuse", "replace"]
"""What becomes of bytes that are no character of their column's charset (`invalid-text` of a source): the source stops,
or each is a question mark, as in the server's own conversions."""

_AS_IT_IS = UTF8 | {"binary", ""}


def build_utf8_writer(charset: str) -> Callable[[bytes], bytes] | None:
    """A function that converts text of `charset` to UTF-8; None if it already is UTF-8, or bytes.

    Raises SchemaError for unsupported charsets. The function raises UnicodeDecodeError for undecodable bytes.
    """
    if charset in _AS_IT_IS:
        return None
    decode = find_decoder(charset)
    if decode is None:
        raise SchemaError(
            f"texts of the charset {charset} cannot be replicated",
            hint="convert the column to utf8mb4 at the source, or exclude the table at the feeder",
        )
    return lambda raw: decode(raw).encode()


def build_text_writer(info: ColumnInfo, *, replaced_in: str) -> Callable[[bytes], bytes]:
    """Writes the datum of a text from its bytes in the column's charset. Raises SchemaError for a charset that cannot
    be read; the function raises SourceRefused for bytes without a character, unless they are
    replaced: `replaced_in` is then the table (`db.table`) that counts such texts, otherwise empty."""
    if info.charset in _AS_IT_IS:
        return d.write_bytes
    to_utf8, decode = build_utf8_writer(info.charset), find_decoder(info.charset)
    assert to_utf8 is not None
    assert decode is not None

    def write(raw: bytes) -> bytes:
        try:
            return d.write_bytes(to_utf8(raw))
        except UnicodeDecodeError as error:
            if replaced_in:
                REPLACED.add(replaced_in, info.name)
                return d.write_bytes(_replace_invalid(raw, decode).encode())
            invalid = raw[error.start : error.end]
        raise SourceRefused(
            f"column {info.name} holds {describe_undecodable(info.charset, invalid)}",
            hint='change these values at the source, or set `invalid-text = "replace"` for the source in feeder.toml:'
            " they become question marks (never in a unique key, where two values could become one)",
        )

    return write


def find_replaced_columns(table: TableDef, invalid_text: InvalidText) -> frozenset[str]:
    """Names of the columns whose invalid bytes become question marks: those that no unique key depends on."""
    if invalid_text == "refuse":
        return frozenset()
    return frozenset(column.name for column in table.all_columns) - find_key_columns(table)


def _replace_invalid(raw: bytes, decode: Decode) -> str:
    text, rest = "", raw
    while rest:
        try:
            return text + decode(rest)
        except UnicodeDecodeError as error:
            text += decode(rest[: error.start]) + "?"
            rest = rest[max(error.end, error.start + 1) :]
    return text


def describe_undecodable(charset: str, raw: bytes) -> str:
    """Describe bytes that are not valid in `charset`."""
    return f"bytes that are not valid {charset}: {format_bytes(raw)}"
