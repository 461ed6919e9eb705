"""One action: what it asks for, by which DAG it runs, and the command that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from binlake.config import Replication
from binlake_airflow.actions.fields import Field, InvalidFields, Value, Values, format_typed, parse_fields

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
