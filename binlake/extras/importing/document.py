"""A YAML or TOML file of DM or the drainer as entries with their position in the file, and the report about each key.

Rule: a key that is unknown to DM or the drainer is an error that names the most similar key (S4-52).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from binlake.common.tomlfile import WITH_MARK
from binlake.errors import ConfigError

_Kind = TypeVar("_Kind")
_HEADER = re.compile(r"\s*\[\[?\s*([^\]]+?)\s*\]\]?")
_KEY = re.compile(r"\s*([A-Za-z0-9_-]+)\s*=")
Fate = Literal["taken", "differs", "none"]
FATES: Mapping[Fate, str] = {
    "taken": "same meaning in Binlake",
    "differs": "other meaning in Binlake",
    "none": "no counterpart in Binlake",
}
Note = tuple[Fate, str]


@dataclass(frozen=True)
class DocumentEntry:
    """A value and its position: `key` is its path in the file, `line` is 0 if unknown.

    `value`: text, a number, a boolean or None; a mapping of names to entries; a tuple of entries.
    """

    file: str
    key: str
    line: int
    value: Any

    def read_table(self, known: Collection[str]) -> Mapping[str, DocumentEntry]:
        """Its keys that have a value. Raises ConfigError for a key that is not in `known`."""
        entries = self.read_mapping()
        for name, entry in entries.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean `{close[0]}`?" if close else f"known keys here: {', '.join(sorted(known))}"
                raise entry.build_error(f"unknown key `{entry.key}`", hint)
        return {name: entry for name, entry in entries.items() if entry.value is not None}

    def read_mapping(self) -> Mapping[str, DocumentEntry]:
        """Its entries as a mapping with any names. Raises ConfigError."""
        if self.value is None:
            return {}
        if not isinstance(self.value, Mapping):
            raise self.build_error(f"`{self.key}` must be a table of keys", "write `key: value` lines below it")
        return self.value

    def read_items(self) -> tuple[DocumentEntry, ...]:
        """The entries of a list. Raises ConfigError."""
        return self._require_kind(tuple, "a list")

    def read_text(self) -> str:
        """Its text; a number as it is written. Raises ConfigError."""
        return str(self.value) if type(self.value) in (int, float) else self._require_kind(str, "a text")

    def read_number(self) -> int:
        """Its whole number, quoted or not. Raises ConfigError."""
        if isinstance(self.value, str) and self.value.isdecimal():
            return int(self.value)
        if isinstance(self.value, bool):
            raise self.build_error(f"`{self.key}` must be a number, not {str(self.value).lower()}")
        return self._require_kind(int, "a whole number")

    def read_boolean(self) -> bool:
        """Its boolean. Raises ConfigError."""
        return self._require_kind(bool, "true or false")

    def read_texts(self) -> list[str]:
        """Its list of texts. Raises ConfigError."""
        return [entry.read_text() for entry in self.read_items()]

    def strip_positions(self) -> Any:
        """Its value without positions."""
        if isinstance(self.value, Mapping):
            return {name: entry.strip_positions() for name, entry in self.value.items()}
        return [entry.strip_positions() for entry in self.value] if isinstance(self.value, tuple) else self.value

    def build_error(self, message: str, hint: str = "") -> ConfigError:
        """An error at this position."""
        return ConfigError(message, where={"file": self.file, "line": self.line}, hint=hint)

    def _require_kind(self, kind: type[_Kind], words: str) -> _Kind:
        if not isinstance(self.value, kind):
            raise self.build_error(f"`{self.key}` must be {words}")
        return self.value


def read_yaml(path: Path) -> DocumentEntry:
    """The file as one entry. Raises ConfigError."""
    text = _read(path)
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        return DocumentEntry(str(path), "", 1, None) if node is None else _convert_node(loader, node, str(path), "")
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = 0 if where is None else where.line + 1
        problem = getattr(error, "problem", None) or str(error)
        raise ConfigError(f"not valid YAML: {problem}", where={"file": path, "line": line}) from None
    finally:
        loader.dispose()


def read_toml_entries(path: Path) -> DocumentEntry:
    """The file as one entry. Raises ConfigError."""
    text = _read(path)
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"not valid TOML: {error}", where={"file": path}, hint="fix the line shown") from None
    return _convert_value(raw, str(path), "", _find_key_lines(text))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding=WITH_MARK)
    except OSError as error:
        raise ConfigError(f"the file cannot be read: {error.strerror}", where={"file": path}) from None
    except UnicodeDecodeError:
        raise ConfigError("the file is not UTF-8", where={"file": path}) from None


def _convert_node(loader: yaml.SafeLoader, node: yaml.Node, file: str, key: str) -> DocumentEntry:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        return DocumentEntry(file, key, line, _convert_mapping(loader, node, file, key))
    if isinstance(node, yaml.SequenceNode):
        items = (_convert_node(loader, child, file, f"{key}[{number}]") for number, child in enumerate(node.value))
        return DocumentEntry(file, key, line, tuple(items))
    return DocumentEntry(file, key, line, loader.construct_object(node))


def _convert_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode, file: str, key: str) -> dict[str, DocumentEntry]:
    names = [str(name.value) for name, _ in node.value]
    loader.flatten_mapping(node)  # keys from `<<` come first, so that the mapping's own keys override them
    entries: dict[str, DocumentEntry] = {}
    for name_node, value in node.value:
        name = str(name_node.value)
        path = f"{key}.{name}" if key else name
        line = name_node.start_mark.line + 1
        entries[name] = DocumentEntry(file, path, line, _convert_node(loader, value, file, path).value)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise entries[twice].build_error(f"the key `{entries[twice].key}` is given twice", "remove one of the two")
    return entries


def _convert_value(value: Any, file: str, key: str, lines: Mapping[str, int]) -> DocumentEntry:
    line = lines.get(key, 0)
    if isinstance(value, dict):
        named = {
            name: _convert_value(item, file, f"{key}.{name}" if key else name, lines) for name, item in value.items()
        }
        return DocumentEntry(file, key, line, named)
    if isinstance(value, list):
        return DocumentEntry(file, key, line, tuple(_convert_value(item, file, key, lines) for item in value))
    return DocumentEntry(file, key, line, value)


def _find_key_lines(text: str) -> Mapping[str, int]:
    """By path, the line where a key is first written, which tomllib does not return."""
    lines: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            section = header[1].replace('"', "")
            lines.setdefault(section, number)
        elif key := _KEY.match(line):
            lines.setdefault(f"{section}.{key[1]}" if section else key[1], number)
    return lines


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


def say_notes(outcome: ImportOutcome, entries: Mapping[str, DocumentEntry], notes: Mapping[str, Note]) -> None:
    """Add a line for each key that only has a remark."""
    for name, entry in entries.items():
        if name in notes:
            outcome.say(entry, *notes[name])
