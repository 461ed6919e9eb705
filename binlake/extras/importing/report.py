"""The report about each key of an imported file, and the values of the resulting files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from binlake.extras.importing.document import DocumentEntry

Fate = Literal["taken", "differs", "none"]
FATES: Mapping[Fate, str] = {
    "taken": "same meaning in Binlake",
    "differs": "other meaning in Binlake",
    "none": "no counterpart in Binlake",
}


@dataclass(frozen=True)
class ImportLine:
    """One key, and a text about how it was imported."""

    file: str
    line: int
    key: str
    fate: Fate
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}  {self.fate:<7}  {self.key}: {self.text}"


@dataclass
class ImportOutcome:
    """The values for the replication's and the feeder's file so far, and a line about each key."""

    replication: dict[str, Any] = field(default_factory=dict)
    feeder: dict[str, Any] = field(default_factory=dict)
    lines: list[ImportLine] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)

    def say(self, entry: DocumentEntry, fate: Fate, text: str) -> None:
        """Add a line about `entry`; an entry that several instances share gets one line."""
        line = ImportLine(entry.file, entry.line, entry.key, fate, text)
        if line not in self.lines:
            self.lines.append(line)

    def take(self, entry: DocumentEntry, key: str, value: Any) -> None:
        """Set `key` of the replication, such as `target.worker-count`, to `value`."""
        set_value(self.replication, key, value)
        self.say(entry, "taken", f"{key} = {format_value(value)}")

    def take_secret(self, entry: DocumentEntry, values: dict[str, Any], variable: str) -> None:
        """Set a password to be read from the environment; it is not copied."""
        if not entry.read_text():
            self.say(entry, "taken", "empty")
            return
        values["password"] = f"env:{variable}"
        self.secrets.append(variable)
        self.say(entry, "differs", f"not copied; put the decrypted password into the environment variable {variable}")


def set_value(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted `key` in nested tables."""
    *sections, last = key.split(".")
    for name in sections:
        values = values.setdefault(name, {})
    values[last] = value


def format_value(value: Any) -> str:
    """A value in TOML's spelling."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


Note = tuple[Fate, str]


def say_notes(outcome: ImportOutcome, entries: Mapping[str, DocumentEntry], notes: Mapping[str, Note]) -> None:
    """Add a line for each key that only has a remark."""
    for name, entry in entries.items():
        if name in notes:
            outcome.say(entry, *notes[name])
