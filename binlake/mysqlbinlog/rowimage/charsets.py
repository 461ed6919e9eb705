"""Converts texts of MySQL's charsets to UTF-8, the only encoding that TiDB stores."""

from __future__ import annotations

from collections.abc import Callable

from binlake.errors import SchemaError
from binlake.mysqlbinlog.texts import UTF8, find_decoder
from binlake.rows.codec.values import format_bytes

_AS_IT_IS = UTF8 | {"binary", ""}


def make_utf8_writer(charset: str) -> Callable[[bytes], bytes] | None:
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


def describe_undecodable(charset: str, raw: bytes) -> str:
    """Describe bytes that are not valid in `charset`."""
    return f"bytes that are not valid {charset}: {format_bytes(raw)}"
