"""Patterns of names as in the drainer and in DM, always case-insensitive. A leading `~` marks a regular expression.

Drainer (tidb-binlog 5.6): other text is an anchored regular expression, so `.` is a wildcard. DM (1.11): `?` matches
one character, `[a-z]` and `[!a-z]` one character in or outside a range, `*` any text, but only at the end.

Regular expressions are in Go's syntax (RE2), as the drainer, DM and TiCDC read them. Rule: what Python reads
differently is translated, and refused where it cannot be. Python takes `[[:digit:]]` for a set of these characters:
such a rule would match nothing, without a word. What only Python has (`(?!...)`) stays allowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from binlake.errors import ConfigError

_SETS = {
    "alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f", "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9", "graph": "!-~", "lower": "a-z", "print": " -~", "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ", "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f",
}  # fmt: skip
# Without Unicode: Go's \d is [0-9].
_LETTERS = {"d": "0-9", "s": r"\t\n\f\r ", "w": "0-9A-Za-z_"}
_OUTSIDE = re.compile(
    r"\\Q(?P<literal>.*?)(?:\\E|\Z)|\\x\{(?P<code>[0-9A-Fa-f]{1,6})\}|\\(?P<letter>[dswDSW])|\\(?P<edge>[bB])"
    r"|(?P<end>\\z)|\\.|(?P<fold>\(\?i\))|(?P<brace>\{(?=,\d*\}))|(?P<open>\[\^?)|.",
    re.DOTALL,
)
_INSIDE = re.compile(
    r"\[:(?P<name>\^?\w+):\]|\\x\{(?P<code>[0-9A-Fa-f]{1,6})\}|\\(?P<letter>[dswDSW])|\\.|(?P<special>[\[&~|])"
    r"|(?P<close>\])|.",
    re.DOTALL,
)
HINT = "the syntax is Go's (RE2), as in the original; write for example ~^db[0-9]+$"


def compile_go_regex(regex: str, text: str) -> re.Pattern[str]:
    """`regex`, which may match anywhere in a name, in any letter case; `text`: the configured text. Raises
    ConfigError."""
    try:
        return re.compile(_translate(regex, text), re.IGNORECASE)
    except (re.error, ValueError, OverflowError) as error:
        raise ConfigError(f"not a regular expression: {error}", where={"filter": text}, hint=HINT) from None


def translate_class(inside: str, text: str) -> str:
    """The characters of a class, without its brackets and `^`, in Python's syntax. Raises ConfigError."""
    return _translate_class(f"{inside}]", 0, text)[0]


def _translate(regex: str, text: str) -> str:
    parts, at = [], 0
    while at < len(regex):
        found = _OUTSIDE.match(regex, at)
        assert found is not None  # the last alternative is any character
        at = found.end()
        if found["open"]:
            inside, at = _translate_class(regex, at, text)
            parts.append(f"{found['open']}{inside}]")
        else:
            parts.append(_translate_outside(found))
    return "".join(parts)


def _translate_outside(found: re.Match[str]) -> str:
    if found["literal"] is not None:
        return re.escape(found["literal"])
    if found["code"]:
        return re.escape(_decode(found["code"]))
    if found["letter"]:
        letter = found["letter"]
        return f"[{'^' if letter.isupper() else ''}{_LETTERS[letter.lower()]}]"
    if found["edge"]:
        return rf"(?a:\{found['edge']})"
    if found["end"]:
        return r"\Z"
    if found["fold"]:
        # Every pattern ignores the letter case, and Python allows the flag only at the beginning.
        return "(?:)"
    return rf"\{found[0]}" if found["brace"] else found[0]


def _translate_class(regex: str, at: int, text: str) -> tuple[str, int]:
    """The inside of the class that begins at `at`, and the place after its bracket."""
    parts: list[str] = []
    while (found := _INSIDE.match(regex, at)) is not None:
        at = found.end()
        if found["close"] and parts:
            return "".join(parts), at
        parts.append(_translate_inside(found, text))
    raise ConfigError("a class of characters has no end", where={"filter": text}, hint=HINT)


def _translate_inside(found: re.Match[str], text: str) -> str:
    name, letter = found["name"], found["letter"]
    if name is not None and name in _SETS:
        return _SETS[name]
    if name is not None or (letter and letter.isupper()):
        raise ConfigError(f"the class {found[0]} inside a class is not supported", where={"filter": text}, hint=HINT)
    if letter:
        return _LETTERS[letter]
    if found["code"]:
        return re.escape(_decode(found["code"]))
    return rf"\{found[0]}" if found["special"] or found["close"] else found[0]


def _decode(code: str) -> str:
    return chr(int(code, 16))


@dataclass(frozen=True)
class Pattern:
    """A compiled pattern; it is sent to workers by pickle."""

    regex: re.Pattern[str]

    def matches(self, name: str) -> bool:
        """True if `name` matches."""
        return self.regex.search(name) is not None


def compile_drainer_pattern(text: str) -> Pattern:
    """Compile a name of the drainer's lists. Raises ConfigError."""
    return compile_regex(text[1:] if text.startswith("~") else f"^(?:{text})$", text)


def compile_wildcard(text: str) -> Pattern:
    """Compile a pattern of DM's rules. Raises ConfigError."""
    if text.startswith("~"):
        return compile_regex(text[1:], text)
    if "*" in text[:-1]:
        raise ConfigError(
            "`*` is only allowed at the end of a pattern",
            where={"pattern": text},
            hint="write a regular expression, which begins with ~",
        )
    parts: list[str] = re.findall(_PARTS, text, re.DOTALL)
    if any(len(part) > 1 and "[" in part[1:] for part in parts):
        raise ConfigError(
            "a range has a `[` inside",
            where={"pattern": text},
            hint="write `[0-9]` for `[[:digit:]]`, or a regular expression, which begins with ~",
        )
    return compile_regex(f"^{''.join(map(_build_part_regex, parts))}$", text)


def compile_regex(regex: str, text: str) -> Pattern:
    """Compile `regex`, which may match anywhere in a name; `text`: the configured text. Raises ConfigError."""
    return Pattern(compile_go_regex(regex, text))


_PARTS = r"\[[^\]]+\]|."


def _build_part_regex(part: str) -> str:
    if part in ("*", "?"):
        return ".*" if part == "*" else "."
    if len(part) == 1:
        return re.escape(part)
    inside = part[1:-1].replace("\\", r"\\").replace("^", r"\^")
    return f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]"
