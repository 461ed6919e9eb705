"""Patterns of names as in the drainer and in DM, always case-insensitive. A leading `~` marks a regular expression.

Regular expressions are in Go's syntax (goregex.py). Drainer (tidb-binlog 5.6): other text is an anchored regular
expression, so `.` is a wildcard. DM (1.11): `?` matches one character, `[a-z]` and `[!a-z]` one character in or outside
a range, `*` any text, but only at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from binlake.errors import ConfigError
from binlake.rules.goregex import compile_go_regex


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
