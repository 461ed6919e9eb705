"""Distinct names for the databases of several sources: each database is called `{source}_{schema}`.

Rule: DM applies a pattern to a database's name at its source; the converted pattern applies to the name with the source
as prefix, and matches the same databases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from binlake.extras.importing.document import DocumentEntry
from binlake.rules.patterns import compile_wildcard

TEMPLATE = "{source}_{schema}"
SYSTEM = "mysql|sys|information_schema|performance_schema|dm_heartbeat"
_CLASS = re.compile(r"\\.|\[\^?\]?[^\]]*\]")


def escape_name(name: str) -> str:
    """A source's name, escaped for a regular expression."""
    return name.replace(".", r"\.")


@dataclass(frozen=True)
class Scope:
    """The `prefix` of the names of a source's databases; empty if they are not renamed."""

    prefix: str = ""

    @classmethod
    def of(cls, source: str, *, distinct: bool) -> Scope:
        """The scope of a source; `distinct`: its databases are renamed."""
        return cls(TEMPLATE.format(source=source, schema="") if distinct else "")

    def rename_database(self, schema: str) -> str:
        """The new name of a database."""
        return self.prefix + schema

    def convert_pattern(self, entry: DocumentEntry) -> str:
        """Convert a pattern of databases, wildcards or ~regex. Raises ConfigError."""
        text = entry.read_text()
        if not self.prefix or not text.startswith("~"):
            return self.prefix + text
        return f"~^{escape_name(self.prefix)}{convert_to_regex(entry)}"

    def build_exclusion(self, entries: Sequence[DocumentEntry]) -> str:
        """A pattern of all databases except those that `entries` match and those of the server. Raises ConfigError."""
        others = [*map(convert_to_regex, entries), *([f"(?:{SYSTEM})$"] if self.prefix else [])]
        return f"~^{escape_name(self.prefix)}(?!{'|'.join(others)})" if others else "*"

    def convert_capture(self, entry: DocumentEntry) -> str:
        """Convert a regular expression that captures parts of a database's name. Raises ConfigError."""
        return (
            f"^{escape_name(self.prefix)}{_remove_anchor(entry, entry.read_text())}"
            if self.prefix
            else entry.read_text()
        )


def convert_to_regex(entry: DocumentEntry) -> str:
    """A pattern as a regular expression that is matched at the beginning of a name. Raises ConfigError."""
    text = entry.read_text()
    if text.startswith("~"):
        return _remove_anchor(entry, text[1:])
    return compile_wildcard(text).regex.pattern.removeprefix("^")


def _remove_anchor(entry: DocumentEntry, regex: str) -> str:
    outside = _CLASS.sub("", regex)
    if regex.startswith("^") and "^" not in outside[1:] and "|" not in outside:
        return regex[1:]
    if "^" not in outside:
        return f".*?(?:{regex})"
    raise entry.build_error(
        f"`{entry.key}` cannot be combined with the source's name as prefix",
        "use a single ^, at its beginning, and no |; or pass --keep-schema-names",
    )
