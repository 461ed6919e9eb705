"""Character sets of MySQL and MariaDB: their collation ids in the log, and their texts as UTF-8, which TiDB stores.

Texts are decoded as the servers decode them. Python's codecs match the servers' tables except for a few letters, which
are listed here; a test checks each against a server. Codes that a server shows as U+FFFD are decoded to the letters
that they stand for.

Texts in which bytes without a character became question marks (`invalid-text = "replace"`) are counted by table. There
is one count for the process: the writers of rows are cached for all batches of all sources, and a feeder's sources
never have two tables of one name. A batch that is encoded again after an error is counted again.
"""

from __future__ import annotations

import codecs
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Literal

import structlog

from binlake.errors import SchemaError, SourceRefused, WireError
from binlake.rows.codec import datum as d
from binlake.rows.codec.values import decode_latin1, find_key_columns, format_bytes
from binlake.rows.schema import ColumnInfo, TableDef

Decode = Callable[[bytes], str]
"""Raises UnicodeDecodeError for undecodable bytes."""

UTF8 = frozenset(("utf8", "utf8mb3", "utf8mb4"))
"""Character sets whose texts already are UTF-8. (A column of ascii may have any bytes.)"""

_ONE_BYTE = {
    "ascii": "ascii", "latin2": "iso8859-2", "latin5": "iso8859-9", "latin7": "iso8859-13", "greek": "iso8859-7",
    "hebrew": "iso8859-8", "tis620": "cp874", "koi8r": "koi8-r", "koi8u": "koi8-u", "macce": "mac-latin2",
    "macroman": "mac-roman", "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "cp1250": "cp1250",
    "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
}  # fmt: skip
_WIDER = {
    "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "big5": "big5", "sjis": "shift_jis", "cp932": "cp932",
    "ujis": "euc_jp", "euckr": "cp949", "ucs2": "utf-16-be", "utf16": "utf-16-be",
    "utf16le": "utf-16-le", "utf32": "utf-32-be",
}  # fmt: skip
_WITHOUT_ASCII = frozenset(("ucs2", "utf16", "utf16le", "utf32"))

_OTHER_BYTES = {
    "cp866": {0xFC: "ⁿ", 0xFD: "²"},
    "greek": {0xA1: "ʽ", 0xA2: "ʼ"},
    "hebrew": {0xAF: "‾"},
    "koi8u": {0x95: "•"},
    "tis620": {byte: chr(byte) for byte in range(0x80, 0xA0)},
}
_OTHER_LETTERS = {
    "gb18030": {0xE7C7: "ḿ", 0x1E3F: "\ue7c7"},
    "sjis": {0xFF3C: "\\"},
    "ujis": {0xFF3C: "\\"},
}
"""By character set: the letter that Python decodes, and the server's letter for it."""
_BIG5_MORE = {0xD6 + offset: letter for offset, letter in enumerate("碁銹裏墻恒粧嫺")}
_OWN_ROWS, _OWN_COLUMNS = 0xF5, 0xA1
"""Where user-defined letters begin in EUC: rows of 94, from U+E000 and, after 8F, from U+E3AC."""
_WHOLE = frozenset(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"))
_BASIC = frozenset(("utf8", "utf8mb3", "ucs2"))
"""Character sets that have all letters, and those that have all up to U+FFFF."""
_LACKING = {
    "big5": "\u02cd\u2574\uffe3", "cp1256": "\u0679\u0688\u0691\u06a9\u06ba\u06be\u06c1\u06d2",
    "cp932": "\x80\xa2\xa3\xac\u2016\u2212\u301c\uf8f0\uf8f1\uf8f2\uf8f3", "greek": "\u037a\u20ac\u20af",
    "sjis": "\xa5\u203e", "tis620": "\xa0", "ujis": "\xa5\u203e",
}  # fmt: skip
_MORE_LETTERS = {"big5": "\ufffd", "tis620": "\ufffd"}
"""By character set: letters that Python's codec writes and the servers lack, and the reverse."""
_CHANGED_LETTERS = {("cp932", "\u6661"): "\u6659"}
"""Letters that the servers write with the code of another one."""
log = structlog.get_logger(__name__)
InvalidText = Literal["refuse", "replace"]
"""What becomes of bytes that are no character of their column's charset (`invalid-text` of a source): the source stops,
or each is a question mark, as in the server's own conversions."""
_AS_IT_IS = UTF8 | {"binary", ""}
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


def has_ascii(charset: str) -> bool:
    """True if a text of ASCII letters has the same bytes in UTF-8."""
    return charset not in _WITHOUT_ASCII


@cache
def find_decoder(charset: str) -> Decode | None:
    """The decoder of a character set by its name at the server; None for an unknown one."""
    if charset in UTF8:
        return bytes.decode
    if charset == "latin1":
        return lambda data: data.decode() if data.isascii() else decode_latin1(data)
    if charset in _ONE_BYTE:
        return _build_table_decoder(charset)
    return _build_codec_decoder(charset) if charset in _WIDER else None


def _build_table_decoder(charset: str) -> Decode:
    # U+FFFE is not a letter: a byte mapped to it is refused.
    letters = [bytes((byte,)).decode(_ONE_BYTE[charset], "ignore") or "\ufffe" for byte in range(256)]
    for byte, letter in _OTHER_BYTES.get(charset, {}).items():
        letters[byte] = letter
    table = "".join(letters)
    return lambda data: codecs.charmap_decode(data, "strict", table)[0]


def _build_codec_decoder(charset: str) -> Decode:
    codec, errors = _WIDER[charset], f"binlake-{charset}" if charset in _MORE else "strict"
    other = _OTHER_LETTERS.get(charset)
    if errors != "strict":
        codecs.register_error(errors, _MORE[charset])
    if other is None:
        return lambda data: data.decode(codec, errors)
    return lambda data: data.decode(codec, errors).translate(other)


def _decode_more_big5(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    start = error.start
    letter = _BIG5_MORE.get(int.from_bytes(error.object[start + 1 : start + 2]))
    if error.object[start] != 0xF9 or letter is None:
        raise error
    return letter, start + 2


def _decode_more_euc(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    start = error.start
    long = error.object[start] == 0x8F
    pair = error.object[start + long : start + long + 2]
    if len(pair) < 2 or not _OWN_ROWS <= pair[0] < 0xFF or not _OWN_COLUMNS <= pair[1] < 0xFF:
        raise error
    first = 0xE3AC if long else 0xE000
    return chr(first + (pair[0] - _OWN_ROWS) * 94 + pair[1] - _OWN_COLUMNS), start + long + 2


_MORE: dict[str, Callable[[UnicodeError], tuple[str, int]]] = {
    "big5": _decode_more_big5,
    "ujis": _decode_more_euc,
}
"""Decoders for codes that the servers have and Python's codecs refuse."""


def replace_missing_letters(charset: str, text: str) -> str:
    """`text` as a session that is not strict stores it: a letter that `charset` lacks becomes a question mark.

    Raises LookupError for an unknown character set, unless `text` is ASCII.
    """
    if text.isascii() or charset in _WHOLE:
        return text
    known = (letter if _has_letter(charset, letter) else "?" for letter in text)
    return "".join(_CHANGED_LETTERS.get((charset, old), new) for old, new in zip(text, known, strict=True))


@cache
def _has_letter(charset: str, letter: str) -> bool:
    if letter in _LACKING.get(charset, "") or letter in _MORE_LETTERS.get(charset, ""):
        return letter in _MORE_LETTERS.get(charset, "")
    if charset in _BASIC:
        return letter <= "\uffff"
    if charset in _WIDER:
        return _has_coded_letter(charset, letter)
    return letter in _list_letters(charset)


def _has_coded_letter(charset: str, letter: str) -> bool:
    shown = {own: chr(other) for other, own in _OTHER_LETTERS.get(charset, {}).items()}
    if ord(letter) in _OTHER_LETTERS.get(charset, {}) and letter not in shown:
        return False
    try:
        shown.get(letter, letter).encode(_WIDER[charset])
    except UnicodeEncodeError:
        return _has_more(charset, letter)
    return True


def _has_more(charset: str, letter: str) -> bool:
    if charset == "big5":
        return letter in _BIG5_MORE.values()
    return charset in _MORE and "\ue000" <= letter < "\ue758"


@cache
def _list_letters(charset: str) -> frozenset[str]:
    """The letters of a character set of one byte."""
    if charset == "latin1":
        return frozenset(decode_latin1(bytes(range(256))))
    if charset not in _ONE_BYTE:
        raise LookupError(f"the letters of the character set {charset} are not known")
    decode, letters = _build_table_decoder(charset), set[str]()
    for byte in range(256):
        with suppress(UnicodeDecodeError):
            letters.add(decode(bytes((byte,))))
    return frozenset(letters)


class ReplacedTexts:
    """The number of such texts by `db.table`; safe in threads."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, table: str, column: str) -> None:
        """Count a text of `table`. The 1st, 10th, 100th ... of a table are logged: a table may have millions."""
        with self._lock:
            self._counts[table] += 1
            count = self._counts[table]
        if str(count).strip("0") == "1":
            log.warning("invalid_texts_replaced", table=table, column=column, texts=count)

    def get_counts(self) -> dict[str, int]:
        """The counts so far, of the tables that have any."""
        with self._lock:
            return dict(self._counts)


REPLACED = ReplacedTexts()
"""This process's count."""


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
