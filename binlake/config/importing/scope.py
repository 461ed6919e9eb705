"""Names of one source's databases among those of several: as `{source}_{schema}` each source has its own.

Rule: a pattern of DM judges the database's name at its source; here it judges the name with the source's in front, and
matches the same databases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from binlake.config.importing.document import Entry
from binlake.rules.patterns import compile_wildcard

TEMPLATE = "{source}_{schema}"
SYSTEM = "mysql|sys|information_schema|performance_schema|dm_heartbeat"
_CLASS = re.compile(r"\\.|\[\^?\]?[^\]]*\]")


def escape_name(name: str) -> str:
    """A source's name in a regular expression."""
    return name.replace(".", r"\.")


@dataclass(frozen=True)
class Scope:
    """`prefix` of the names of a source's databases; empty where they stay as they are."""

    prefix: str = ""

    @classmethod
    def of(cls, source: str, *, distinct: bool) -> Scope:
        """Of a source; `distinct`: its databases are renamed."""
        return cls(TEMPLATE.format(source=source, schema="") if distinct else "")

    def name(self, schema: str) -> str:
        """A database's name."""
        return self.prefix + schema

    def pattern(self, entry: Entry) -> str:
        """A pattern of databases: wildcards, or ~regex. Raises ConfigError."""
        text = entry.text()
        if not self.prefix or not text.startswith("~"):
            return self.prefix + text
        return f"~^{escape_name(self.prefix)}{rest_of_name(entry)}"

    def all_but(self, entries: Sequence[Entry]) -> str:
        """A pattern of all names except those that `entries` match, and the server's own. Raises ConfigError."""
        others = [*map(rest_of_name, entries), *([f"(?:{SYSTEM})$"] if self.prefix else [])]
        return f"~^{escape_name(self.prefix)}(?!{'|'.join(others)})" if others else "*"

    def capture(self, entry: Entry) -> str:
        """A regular expression that captures parts of a database's name. Raises ConfigError."""
        return f"^{escape_name(self.prefix)}{_rest_of_regex(entry, entry.text())}" if self.prefix else entry.text()


def rest_of_name(entry: Entry) -> str:
    """A pattern as a regular expression that matches from the beginning of a name on. Raises ConfigError."""
    text = entry.text()
    if text.startswith("~"):
        return _rest_of_regex(entry, text[1:])
    return compile_wildcard(text).regex.pattern.removeprefix("^")


def _rest_of_regex(entry: Entry, regex: str) -> str:
    outside = _CLASS.sub("", regex)
    if regex.startswith("^") and "^" not in outside[1:] and "|" not in outside:
        return regex[1:]
    if "^" not in outside:
        return f".*?(?:{regex})"
    raise entry.error(
        f"`{entry.key}` cannot be put after the source's name",
        "write one ^ at its beginning and no | beside it, or pass --keep-schema-names",
    )
