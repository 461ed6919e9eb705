"""Texts of MySQL's charsets to UTF-8, which is all that TiDB stores."""

from __future__ import annotations

from collections.abc import Callable

from binlake.errors import SchemaError
from binlake.rows.codec.latin1 import latin1_text
from binlake.rows.codec.values import shown_bytes

_AS_IT_IS = frozenset(("utf8", "utf8mb3", "utf8mb4", "ascii", "binary", ""))
_CODECS = {
    "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5", "ujis": "euc_jp", "eucjpms": "euc_jp",
    "sjis": "shift_jis", "cp932": "cp932", "euckr": "cp949", "latin2": "iso8859_2", "latin5": "iso8859_9",
    "latin7": "iso8859_13", "greek": "iso8859_7", "hebrew": "iso8859_8", "cp1250": "cp1250", "cp1251": "cp1251",
    "cp1256": "cp1256", "cp1257": "cp1257", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "koi8r": "koi8_r",
    "koi8u": "koi8_u", "tis620": "cp874", "macroman": "mac_roman", "macce": "mac_latin2", "ucs2": "utf_16_be",
    "utf16": "utf_16_be", "utf16le": "utf_16_le", "utf32": "utf_32_be",
}  # fmt: skip
"""MySQL's charset to Python's codec."""
_WIDE = frozenset(("ucs2", "utf16", "utf16le", "utf32"))


def utf8_writer(charset: str) -> Callable[[bytes], bytes] | None:
    """Text of `charset` to UTF-8; None where it is UTF-8 already, or bytes. Raises SchemaError for other charsets.

    What it gives raises UnicodeDecodeError for bytes that are no text.
    """
    if charset in _AS_IT_IS:
        return None
    if charset == "latin1":
        return lambda raw: raw if raw.isascii() else latin1_text(raw).encode()
    codec = _CODECS.get(charset)
    if codec is None:
        raise SchemaError(
            f"texts of the charset {charset} cannot be replicated",
            hint="convert the column to utf8mb4 at the source, or leave the table out at the feeder",
        )
    return lambda raw: raw.decode(codec).encode()


def has_ascii(charset: str) -> bool:
    """True when a text of ASCII letters is the same bytes in UTF-8."""
    return charset not in _WIDE


def no_text(charset: str, raw: bytes) -> str:
    """What is wrong with bytes that `charset` does not have."""
    return f"bytes that are no text of {charset}: {shown_bytes(raw)}"
