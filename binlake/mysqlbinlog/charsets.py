"""Character sets of MySQL and MariaDB by collation id, as the log names them."""

from __future__ import annotations

from binlake.errors import WireError
from binlake.mysqlbinlog.rowimage.charsets import build_utf8_writer, describe_undecodable

BINARY = 63

_IDS = {
    "big5": (1, 84),
    "cp850": (4, 80),
    "latin1": (5, 8, 15, 31, 47, 48, 49, 94),
    "latin2": (2, 9, 21, 27, 77),
    "ascii": (11, 65),
    "ujis": (12, 91),
    "sjis": (13, 88),
    "cp1251": (14, 23, 50, 51, 52),
    "hebrew": (16, 71),
    "tis620": (18, 89),
    "euckr": (19, 85),
    "latin7": (20, 41, 42, 79),
    "koi8u": (22, 75),
    "koi8r": (7, 74),
    "gb2312": (24, 86),
    "greek": (25, 70),
    "cp1250": (26, 34, 44, 66, 99),
    "gbk": (28, 87),
    "cp1257": (29, 58, 59),
    "latin5": (30, 78),
    "utf8mb3": (33, 76, 83, *range(192, 224)),
    "ucs2": (35, 90, *range(128, 152), 159),
    "cp866": (36, 68),
    "macce": (38, 43),
    "macroman": (39, 53),
    "cp852": (40, 81),
    "utf8mb4": (45, 46, *range(224, 248), *range(255, 512)),
    "utf16": (54, 55, *range(101, 125)),
    "utf16le": (56, 62),
    "cp1256": (57, 67),
    "utf32": (60, 61, *range(160, 184)),
    "binary": (BINARY,),
    "cp932": (95, 96),
    "eucjpms": (97, 98),
    "gb18030": (248, 249, 250),
}
_BY_ID = {number: name for name, ids in _IDS.items() for number in ids}
_UCA1400 = {8: "utf8mb3", 9: "utf8mb4", 10: "ucs2", 11: "utf16", 12: "utf32"}
"""MariaDB's newest collations: 256 ids per character set, from 2048 on."""
_NOPAD = 1024
"""Offset that MariaDB adds to a collation's id for its NO PAD variant."""


def look_up_charset(collation: int) -> str:
    """The character set's name (`utf8mb4`, `binary`) of a collation id. Raises WireError for an unknown one."""
    if collation >= 2048:
        name = _UCA1400.get(collation >> 8)
    else:
        name = _BY_ID.get(collation - _NOPAD if collation > _NOPAD else collation)
    if name is None:
        raise WireError(f"collation id {collation} belongs to no known character set")
    return name


def decode_text(data: bytes, collation: int) -> str:
    """Decode a text of the server in the character set of `collation`; `binary` is read as UTF-8.

    Raises WireError, and SchemaError for an unsupported character set.
    """
    name = look_up_charset(collation)
    to_utf8 = build_utf8_writer(name)
    try:
        return (to_utf8(data) if to_utf8 else data).decode("utf-8")
    except UnicodeDecodeError as error:
        # Not the statement's beginning, which says nothing, and may have values of rows.
        invalid = data[error.start : error.end]
        if name == "binary":
            raise WireError(
                f"a statement of a session without a character set (SET NAMES binary) has"
                f" {describe_undecodable('UTF-8', invalid)}",
                hint="the log does not say which characters they are: set in [[source.replace]] of feeder.toml what to"
                " follow instead, with X'…' for bytes",
            ) from None
        raise WireError(f"a statement has {describe_undecodable(name, invalid)}") from None
