"""Convert patterns of LIKE and REGEXP to Python's, as far as all servers interpret them in the same way."""

from __future__ import annotations

import re
from collections.abc import Callable

from binlake.rules.terms import Unsupported

_LIKE_PARTS = re.compile(r"(%)|(_)|\\([%_\\])|([^\\])", re.DOTALL)


def compile_like_pattern(text: str, weigh: Callable[[str], str]) -> re.Pattern[str]:
    """The pattern of LIKE over weighed texts. Raises Unsupported."""
    pieces, at = [""], 0
    while at < len(text):
        match = _LIKE_PARTS.match(text, at)
        if match is None:
            raise Unsupported(r"in LIKE a backslash may only precede %, _ or another backslash")
        many, single, escaped, plain = match.groups()
        if many:
            pieces.append("")
        else:
            pieces[-1] += "." if single else re.escape(weigh(escaped or plain))
        at = match.end()
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    first, *middle, last = pieces
    # The first match of a piece is the best, because it leaves the most text for the rest. So no backtracking is
    # needed.
    first_matches = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{first}{first_matches}.*{last}", re.DOTALL)


_CLASS = r"\[\^?(?:[^\]\[\\^&~-]-[^\]\[\\^&~-]|[^\]\[\\^&~-])+-?\]"
_REGEXP_PARTS = re.compile(
    rf"(?P<class>{_CLASS})|(?P<open>\((?!\?))|(?P<close>\))|(?P<many>[*+?]|\{{\d{{1,3}}(?:,\d{{0,3}})?\}})"
    r"|(?P<end>\$)|(?P<start>\^)|(?P<or>\|)|(?P<any>\.)|(?P<escaped>\\[.*+?()|^$\\\[\]{}/-])|(?P<plain>[^\\\[\](){}*+?|^$.])",
    re.DOTALL | re.ASCII,
)
_PUT = {"any": r"[^\n]", "end": r"\Z"}


def compile_regexp_pattern(text: str) -> re.Pattern[str]:
    """The pattern of REGEXP: characters, classes, groups, repetitions and alternatives. Raises Unsupported."""
    parts = _split_regexp(text)
    kinds = [kind for kind, _ in parts]
    before: list[str] = ["start", *kinds]
    repeats_nothing = any(
        kind == "many" and last in ("start", "open", "or", "many", "end")
        for last, kind in zip(before, kinds, strict=False)
    )
    if not parts or repeats_nothing or _repeats_repetition(kinds):
        raise Unsupported(f"servers interpret the pattern '{text}' differently, or reject it")
    try:
        return re.compile("".join(_PUT.get(kind, part) for kind, part in parts))
    except (re.error, OverflowError):
        raise Unsupported(f"'{text}' is not a pattern") from None


def _split_regexp(text: str) -> list[tuple[str, str]]:
    parts, at = [], 0
    while at < len(text):
        match = _REGEXP_PARTS.match(text, at)
        if match is None or match.lastgroup is None:
            raise Unsupported(f"servers interpret '{text[at : at + 12]}' in a pattern differently")
        parts.append((match.lastgroup, match[0]))
        at = match.end()
    return parts


def _repeats_repetition(kinds: list[str]) -> bool:
    """True for nested repetitions such as (a+)+, which can take extremely long on some texts."""
    opened: list[bool] = []
    for kind, following in zip(kinds, [*kinds[1:], ""], strict=True):
        if kind == "open":
            opened.append(False)
        elif kind == "close":
            if not opened:
                return False
            inner = opened.pop()
            if inner and following == "many":
                return True
            if opened:
                opened[-1] |= inner or following == "many"
        elif kind in ("many", "or") and opened:
            opened[-1] = True
    return False
