"""One action of a replication's page: what it asks for, by which DAG it runs, and the command that does the same.

What a person types into its fields is checked before anything is done. Nothing typed is ever part of a shell's text: a
value becomes one word of a command, which cannot begin like an option. `actiontable` has all actions.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from binlake import tso
from binlake.config import Replication

Value = str | bool | list[str]
Values = Mapping[str, Value]
"""The checked values of an action's fields by name: text (empty if not given), flags, lists of lines."""
LONGEST = 4096
"""Characters of one value."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")


@dataclass(frozen=True)
class Field:
    """One field of a form. `kind`: a key of KINDS; `choices`: of a choice, the first one is the default."""

    name: str
    label: str
    kind: str = "text"
    about: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()


class InvalidFields(Exception):
    """Values that cannot be used; `problems`: what is wrong, by field."""

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{name}: {text}" for name, text in problems.items()))
        self.problems = dict(problems)


def parse_fields(fields: Sequence[Field], typed: Mapping[str, str]) -> dict[str, Value]:
    """The values of `fields` from what was typed. Raises InvalidFields with all that is wrong at once."""
    values: dict[str, Value] = {}
    problems: dict[str, str] = {}
    for field in fields:
        try:
            values[field.name] = _parse(field, typed.get(field.name, "").strip())
        except ValueError as error:
            problems[field.name] = str(error)
    unknown = sorted(set(typed) - {field.name for field in fields})
    problems |= {name: "this action has no such field" for name in unknown}
    if problems:
        raise InvalidFields(problems)
    return values


def format_typed(fields: Sequence[Field], values: Values) -> dict[str, str]:
    """The values as a form shows them; `parse_fields` reads the same back."""
    return {field.name: _format(values.get(field.name, "")) for field in fields}


def _format(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return value if isinstance(value, str) else "\n".join(value)


def _parse(field: Field, text: str) -> Value:
    if len(text) > LONGEST:
        raise ValueError(f"is longer than {LONGEST} characters")
    if any(sign < " " and sign not in "\n\r\t" for sign in text) or "\x7f" in text:
        raise ValueError("has a control character")
    if field.required and not text:
        raise ValueError("is needed")
    if not text and field.kind not in ("flag", "lines", "choice"):
        return ""
    return KINDS[field.kind](field, text)


def _parse_text(_: Field, text: str) -> str:
    if "\n" in text or "\r" in text:
        raise ValueError("must be one line")
    return text


def _parse_sql(_: Field, text: str) -> str:
    return text.replace("\r\n", "\n")


def _parse_name(_: Field, text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is not a name")
    return text


def _parse_table(field: Field, text: str) -> str:
    db, _, table = _parse_text(field, text).partition(".")
    if not db or not table or text.startswith("-"):
        raise ValueError(f"{text[:80]!r} does not name a table: write it as db.table")
    return text


def _parse_tables(field: Field, text: str) -> list[str]:
    return [_parse_table(field, line.strip()) for line in text.splitlines() if line.strip()]


def _parse_ts(_: Field, text: str) -> str:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 63):
        raise ValueError(f"{text[:80]!r} is not a commit_ts or start_ts in decimal")
    return text


def _parse_moment(_: Field, text: str) -> str:
    try:
        return str(tso.parse(text))
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _parse_choice(field: Field, text: str) -> str:
    if not text:
        return field.choices[0]
    if text not in field.choices:
        raise ValueError(f"must be one of: {', '.join(field.choices)}")
    return text


def _parse_flag(_: Field, text: str) -> bool:
    if text not in ("", "yes"):
        raise ValueError("must be yes, or left out")
    return text == "yes"


KINDS: Mapping[str, Callable[[Field, str], Value]] = {
    "text": _parse_text, "sql": _parse_sql, "name": _parse_name, "table": _parse_table, "lines": _parse_tables,
    "ts": _parse_ts, "moment": _parse_moment, "choice": _parse_choice, "flag": _parse_flag,
}  # fmt: skip
"""How what was typed becomes a value, by kind; each raises ValueError."""


ACT = "act"
"""The kind of the DAG whose runs do what no other DAG does."""
PAUSE, UNPAUSE, PAUSE_FEED, RESUME_FEED = "pause", "unpause", "pause-feed", "resume-feed"
AT_ONCE = (PAUSE, UNPAUSE, PAUSE_FEED, RESUME_FEED)
"""Ways that are done within the request: one write to Airflow's database, or to the lake's control table."""
FILE = "FILE"
"""What a command says for the replication's file, which a page must not show."""
PUMP_FLAGS = ("--pd-urls", "PD-URLS")
"""What a command to a pump says for `source.pd-urls`, which a page must not show either."""


def _need_nothing(_: Values) -> Mapping[str, str]:
    return {}


def _build_no_params(_: Values) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class PageAction:
    """`name`: in addresses; `way`: the kind of the DAG that runs it, or one of AT_ONCE; `about`: what happens, as
    sentences; `grave`: it cannot be undone; `target`: only for replications that have one.

    `build_command`: the words of the command that does the same; `build_params`: the params of the DAG's run;
    `check`: what is wrong with the values together, by field.
    """

    name: str
    title: str
    about: str
    way: str
    build_command: Callable[[Values], Sequence[str]]
    fields: tuple[Field, ...] = ()
    build_params: Callable[[Values], dict[str, Any]] = _build_no_params
    check: Callable[[Values], Mapping[str, str]] = _need_nothing
    grave: bool = False
    target: bool = False
    feeds: bool = False

    @property
    def at_once(self) -> bool:
        """Whether it is done within the request, without a run."""
        return self.way in AT_ONCE

    def fits(self, replication: Replication) -> bool:
        """Whether the replication has what the action is about."""
        return (replication.target is not None or not self.target) and (bool(replication.feed) or not self.feeds)

    def parse(self, typed: Mapping[str, str]) -> dict[str, Value]:
        """The values of what was typed. Raises InvalidFields."""
        values = parse_fields(self.fields, typed)
        if problems := self.check(values):
            raise InvalidFields(problems)
        return values

    def format_command(self, values: Values, dag_id: str) -> str:
        """The command line that does the same."""
        return shlex.join(word.replace(DAG, dag_id) for word in self.build_command(values))

    def build_conf(self, values: Values) -> dict[str, Any]:
        """The conf of the DAG's run."""
        if self.way == ACT:
            return {"action": self.name, "fields": {k: v for k, v in format_typed(self.fields, values).items() if v}}
        return {name: value for name, value in self.build_params(values).items() if value not in (None, "")}


DAG = "\0dag"
"""In a command's words: the id of the replication's DAG."""


def add(option: str, value: Value) -> list[str]:
    """The words of an option: none without a value; free text never looks like an option of its own."""
    if isinstance(value, list):
        return [word for one in value for word in add(option, one)]
    if isinstance(value, bool):
        return [option] if value else []
    if not value:
        return []
    return [f"{option}={value}"] if value.startswith("-") else [option, value]


def read_text(values: Values, name: str) -> str:
    """The text of a field."""
    value = values.get(name, "")
    if not isinstance(value, str):
        raise TypeError(f"the field {name} is no text")
    return value
