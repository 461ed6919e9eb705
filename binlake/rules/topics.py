"""Choose topic and partition of a table's messages (reference/data-migration-and-ticdc.md 2.6, MISSION S2-41 to 43).

The first dispatcher whose matcher matches decides. With Avro, a topic contains one table; with the other protocols,
tables may share a topic, because the messages name the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlake.errors import ConfigError
from binlake.rules.tables import TableMatcher

MOST_TOPIC_CHARACTERS = 249
"""Kafka's limit for the length of a topic's name."""
PARTITION_RULES = ("default", "table", "ts", "index-value")

OWN_TOPICS = "{schema}_{table}"
"""The topics of a feed without dispatchers."""

_EXPRESSION = re.compile(r"[A-Za-z0-9._-]*\{schema\}[A-Za-z0-9._-]*\{table\}[A-Za-z0-9._-]*")
_SHARED_EXPRESSION = re.compile(r"([A-Za-z0-9._-]|\{schema\}|\{table\})+")
_ILLEGAL = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Dispatcher:
    """`matcher`: patterns of tables; `topic`: with {schema} and {table}; `partition`: one of PARTITION_RULES."""

    matcher: tuple[str, ...]
    topic: str
    partition: str = "index-value"


class Topics:
    """Topic and partition rule of each table."""

    def __init__(self, dispatchers: Sequence[Dispatcher], *, default: str = "", shared: bool = False) -> None:
        """`default`: the topic of tables that no dispatcher matches, empty = none; `shared`: tables may share a topic.

        Raises ConfigError for an unshared topic without both placeholders (S2-43), an invalid pattern, or an invalid
        partition rule.
        """
        self._shared = shared
        if default:
            dispatchers = [*dispatchers, Dispatcher(("*.*",), default)]
        for dispatcher in dispatchers:
            _require_expression(dispatcher.topic, shared)
            if dispatcher.partition not in PARTITION_RULES:
                raise ConfigError(
                    "a dispatcher names an unknown partition rule",
                    where={"partition": dispatcher.partition},
                    hint=f"use one of {', '.join(PARTITION_RULES)}",
                )
        self._rules = [(TableMatcher(dispatcher.matcher), dispatcher) for dispatcher in dispatchers]

    def find_dispatcher(self, db: str, table: str) -> Dispatcher:
        """The first dispatcher that matches. Raises ConfigError if none does."""
        for matcher, dispatcher in self._rules:
            if matcher.matches(db, table):
                return dispatcher
        raise ConfigError(
            "no dispatcher matches a table",
            where={"table": f"{db}.{table}"},
            hint='add {matcher = ["*.*"], topic = "..."} as the last dispatcher, or exclude the table by `rules`',
        )

    def find_topic(self, db: str, table: str) -> str:
        """The topic of the table's messages. Raises ConfigError if no dispatcher matches."""
        return format_topic_name(self.find_dispatcher(db, table).topic, db, table)

    def require_own_topics(self, tables: Iterable[tuple[str, str]]) -> None:
        """Raises ConfigError naming two of `tables` (db, table) that would share a topic but must not (S2-42)."""
        if self._shared:
            return
        owners: dict[str, tuple[str, str]] = {}
        for db, table in tables:
            topic = self.find_topic(db, table)
            owner = owners.setdefault(topic, (db, table))
            if owner != (db, table):
                raise ConfigError(
                    "two tables have the same topic, but a topic may contain only one table",
                    where={"topic": topic, "tables": f"{'.'.join(owner)}, {db}.{table}"},
                    hint="give one of them another topic by a separate dispatcher",
                )


def format_topic_name(expression: str, db: str, table: str) -> str:
    """`expression` with the names inserted; `_` replaces characters that Kafka refuses; cut to 249 characters."""
    name = expression.replace("{schema}", _ILLEGAL.sub("_", db)).replace("{table}", _ILLEGAL.sub("_", table))
    return {".": "_", "..": "__"}.get(name, name[:MOST_TOPIC_CHARACTERS])


def format_subject(topic: str, part: str) -> str:
    """The registry's subject of a topic's `part`, "key" or "value": TopicNameStrategy, `.` as `_` (reference 2.5)."""
    return f"{topic.replace('.', '_')}-{part}"


def _require_expression(topic: str, shared: bool) -> None:
    if shared and not _SHARED_EXPRESSION.fullmatch(topic):
        raise ConfigError(
            "a topic may contain only letters, digits, `.`, `_`, `-`, {schema} and {table}", where={"topic": topic}
        )
    if not shared and not _EXPRESSION.fullmatch(topic):
        raise ConfigError(
            "a topic must contain {schema} and then {table}; besides these only letters, digits, `.`, `_` and `-`",
            where={"topic": topic},
            hint="write for example tidb_{schema}_{table}",
        )
