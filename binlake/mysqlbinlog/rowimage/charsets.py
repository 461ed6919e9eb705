"""Texts of MySQL's charsets to UTF-8, which is all that TiDB stores."""

from __future__ import annotations

from collections.abc import Callable

from binlake.errors import SchemaError
from binlake.mysqlbinlog.texts import UTF8, decoder_of
from binlake.rows.codec.values import shown_bytes

_AS_IT_IS = UTF8 | {"binary", ""}


def utf8_writer(charset: str) -> Callable[[bytes], bytes] | None:
    """Text of `charset` to UTF-8; None where it is UTF-8 already, or bytes. Raises SchemaError for other charsets.

    What it gives raises UnicodeDecodeError for bytes that are no text.
    """
    if charset in _AS_IT_IS:
        return None
    decode = decoder_of(charset)
    if decode is None:
        raise SchemaError(
            f"texts of the charset {charset} cannot be replicated",
            hint="convert the column to utf8mb4 at the source, or leave the table out at the feeder",
        )
    return lambda raw: decode(raw).encode()


def no_text(charset: str, raw: bytes) -> str:
    """What is wrong with bytes that `charset` does not have."""
    return f"bytes that are no text of {charset}: {shown_bytes(raw)}"
