"""Texts of the servers' character sets, decoded as the servers decode them.

Python's codecs match the servers' tables except for a few letters, which are listed here; a test checks each against a
server. Codes that a server shows as U+FFFD are decoded to the letters that they stand for.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from contextlib import suppress
from functools import cache

from binlake.rows.codec.latin1 import decode_latin1

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
_WHOLE = frozenset(("utf8mb4", "utf16", "utf16le", "utf32", "gb18030"))
_BASIC = frozenset(("utf8", "utf8mb3", "ucs2"))
"""Character sets that have all letters, and those that have all up to U+FFFF."""
_LACKING = {
    "big5": "\u02cd\u2574\uffe3", "cp1256": "\u0679\u0688\u0691\u06a9\u06ba\u06be\u06c1\u06d2",
    "cp932": "\x80\xa2\xa3\xac\u2016\u2212\u301c\uf8f0\uf8f1\uf8f2\uf8f3", "greek": "\u037a\u20ac\u20af",
    "sjis": "\xa5\u203e", "tis620": "\xa0", "ujis": "\xa5\u203e",
}  # fmt: skip
_MORE_LETTERS = {"big5": "\ufffd", "cp932": "\u6661", "tis620": "\ufffd"}
"""By character set: letters that Python's codec writes and the servers lack, and the reverse."""


def replace_missing_letters(charset: str, text: str) -> str:
    """`text` as a session that is not strict stores it: each letter that `charset` lacks becomes a question mark.

    Raises LookupError for an unknown character set, unless `text` is ASCII.
    """
    if text.isascii() or charset in _WHOLE:
        return text
    return "".join(letter if _has_letter(charset, letter) else "?" for letter in text)


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
