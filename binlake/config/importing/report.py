"""What became of each key of an imported file, and the files that are made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from binlake.config.importing.document import Entry

Fate = Literal["taken", "differs", "none"]
FATES: Mapping[Fate, str] = {
    "taken": "means the same here",
    "differs": "means something else here",
    "none": "has no counterpart here",
}


@dataclass(frozen=True)
class Line:
    """One key: what became of it, in words."""

    file: str
    line: int
    key: str
    fate: Fate
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}  {self.fate:<7}  {self.key}: {self.text}"


@dataclass
class Outcome:
    """The values of the replication's and the feeder's file so far, and a line about each key."""

    replication: dict[str, Any] = field(default_factory=dict)
    feeder: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)

    def say(self, entry: Entry, fate: Fate, text: str) -> None:
        """A line about `entry`, once; what several instances share comes here for each."""
        line = Line(entry.file, entry.line, entry.key, fate, text)
        if line not in self.lines:
            self.lines.append(line)

    def take(self, entry: Entry, key: str, value: Any) -> None:
        """`key` of the replication, as `target.worker-count`, is `value`."""
        put(self.replication, key, value)
        self.say(entry, "taken", f"{key} = {shown(value)}")

    def take_secret(self, entry: Entry, values: dict[str, Any], variable: str) -> None:
        """A password is not copied: it is read from the environment."""
        if not entry.text():
            self.say(entry, "taken", "empty")
            return
        values["password"] = f"env:{variable}"
        self.secrets.append(variable)
        self.say(entry, "differs", f"not copied: put it, decrypted, into the environment variable {variable}")


def put(values: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted `key` in nested tables."""
    *sections, last = key.split(".")
    for name in sections:
        values = values.setdefault(name, {})
    values[last] = value


def shown(value: Any) -> str:
    """A value as TOML spells it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


Note = tuple[Fate, str]


def say_notes(outcome: Outcome, found: Mapping[str, Entry], notes: Mapping[str, Note]) -> None:
    """A line for each key that only has a remark."""
    for name, entry in found.items():
        if name in notes:
            outcome.say(entry, *notes[name])
