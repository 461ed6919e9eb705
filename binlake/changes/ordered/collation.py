"""Fold texts so that all values that a collation treats as equal have the same text.

Different values may share a text too: two changes with the same folded value run in order, so this only costs time. For
characters whose equals are unknown (rare scripts, circled or small forms) the folding gives no text, and the change
runs alone. Sources: data-migration 1.4 (DM lower-cases, which misses accents and padding), hazards R-13. A test
compares with a server's sort keys.
"""

from __future__ import annotations

import unicodedata

_KNOWN = (
    (0x20, 0x7E),  # ASCII
    (0xA1, 0x13E),  # Latin of Europe
    (0x141, 0x17F),
    (0x386, 0x3CE),  # Greek
    (0x400, 0x45F),  # Cyrillic
    (0x5D0, 0x5EA),  # Hebrew
    (0x621, 0x63A),  # Arabic
    (0x641, 0x64A),
    (0x660, 0x669),
    (0xE01, 0xE3A),  # Thai
    (0x2010, 0x2026),  # punctuation
    (0x3001, 0x3002),
    (0x3041, 0x3093),  # kana
    (0x30A1, 0x30F6),
    (0x4E00, 0x9FFF),  # ideographs
    (0xAC00, 0xD7A3),  # Hangul
    (0xFF01, 0xFF5E),  # full width
    (0x1F300, 0x1FAFF),  # emoji: equal only to each other
)
_LETTERS = {"æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "ł": "l", "ħ": "h", "ı": "i", "þ": "th", "ŧ": "t"}
_FINAL = {"ך": "כ", "ם": "מ", "ן": "נ", "ף": "פ", "ץ": "צ", "ґ": "г", "ŋ": "n", "ĸ": "q"}
_KANA = str.maketrans("ぁぃぅぇぉっゃゅょゎゕゖ", "あいうえおつやゆよわかけ")
_EQUALS = str.maketrans({**_LETTERS, **_FINAL, **{chr(code): chr(code - 0x60) for code in range(0x30A1, 0x30F7)}})
_IGNORED = frozenset({"Mn", "Me", "Mc", "Cc", "Cf"})


def fold(text: str, collation: str) -> str | None:
    """The representative of `text` in `collation` (TiDB's name); trailing spaces are ignored. None = unknown."""
    text = text.rstrip(" ")
    if collation.endswith("_bin") or collation == "binary":
        return text
    if text.isascii() and text.isprintable():
        return text.lower()
    if not all(_is_known(char) for char in text):
        return None
    return "".join(_fold_char(char, single_weight=collation.endswith("general_ci")) for char in text).rstrip(" ")


def _is_known(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _KNOWN)


def _fold_char(char: str, *, single_weight: bool) -> str:
    """The folded form of `char`; `single_weight`: one letter, as in general_ci, where ß equals s."""
    if ord(char) > 0xFFFF:
        return "\ufffd"
    text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", char).casefold())
    text = text.translate(_EQUALS).translate(_KANA)
    text = "".join(str(unicodedata.digit(c, c)) for c in text if unicodedata.category(c) not in _IGNORED)
    return text[:1] if single_weight and not 0xAC00 <= ord(char) <= 0xD7A3 else text
