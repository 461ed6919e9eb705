"""Event filter (data-migration-and-ticdc 1.13): drop kinds of changes by rules on the source's names.

For each matching rule, in order, its events are checked, then its SQL patterns (DDL only). The first rule that drops
the change wins. An event list is read from the left, and the first word that applies to the event decides.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from binlake.common.sections import EventRule
from binlake.errors import ConfigError, Permanent
from binlake.rows.schema.job import Action
from binlake.rules.patterns import Pattern, compile_regex, compile_wildcard

DML = ("insert", "update", "delete")
ALTER_TABLE = "alter table"
INCOMPATIBLE = "incompatible ddl changes"

_NAMED: dict[str, tuple[Action, ...]] = {
    "create database": (Action.CREATE_SCHEMA,),
    "alter database": (Action.SCHEMA_CHARSET,),
    "drop database": (Action.DROP_SCHEMA,),
    "create table": (Action.CREATE_TABLE, Action.CREATE_TABLES),
    "drop table": (Action.DROP_TABLE,),
    "truncate table": (Action.TRUNCATE_TABLE,),
    "rename table": (Action.RENAME_TABLE, Action.RENAME_TABLES),
    "create index": (Action.ADD_INDEX,),
    "drop index": (Action.DROP_INDEX, Action.DROP_INDEXES),
    "create view": (Action.CREATE_VIEW,),
    "drop view": (Action.DROP_VIEW,),
    "add column": (Action.ADD_COLUMN, Action.ADD_COLUMNS),
    "drop column": (Action.DROP_COLUMN, Action.DROP_COLUMNS),
    "modify column": (Action.MODIFY_COLUMN,),
    "set default value": (Action.SET_DEFAULT,),
    "add primary key": (Action.ADD_PRIMARY_KEY,),
    "drop primary key": (Action.DROP_PRIMARY_KEY,),
    "rename index": (Action.RENAME_INDEX,),
    "alter index visibility": (Action.INDEX_VISIBILITY,),
    "modify charset": (Action.TABLE_CHARSET,),
    "modify constraint": (Action.ALTER_CHECK, Action.ADD_CHECK, Action.DROP_CHECK),
    "add table partition": (Action.ADD_PARTITION,),
    "drop table partition": (Action.DROP_PARTITION,),
    "truncate table partition": (Action.TRUNCATE_PARTITION,),
    "reorganize table partition": (Action.REORGANIZE_PARTITION,),
    "exchange table partition": (Action.EXCHANGE_PARTITION,),
    "alter ttl info": (Action.TTL,),
    "alter ttl remove": (Action.NO_TTL,),
    "multi schema change": (Action.MULTI_SCHEMA_CHANGE,),
}
_ALIASES = {
    "create schema": "create database",
    "drop schema": "drop database",
    "alter schema": "alter database",
    "add index": "create index",
    "modify default value": "set default value",
    "modify collation": "modify charset",
}
_INCOMPATIBLE = (
    "drop column", "modify column", "set default value", "drop primary key", "rename index", "modify charset",
    "modify constraint", "reorganize table partition", "exchange table partition",
)  # fmt: skip
_NOT_ALTER = (
    "create database", "alter database", "drop database", "create table", "drop table", "truncate table",
    "rename table", "create view", "drop view",
)  # fmt: skip
_CLASSES = ("all", "all dml", "all ddl", "none", "none dml", "none ddl")
_EVENT_OF = {action: name for name, actions in _NAMED.items() for action in actions}
KNOWN = (*DML, *_NAMED, *_ALIASES, ALTER_TABLE, INCOMPATIBLE, *_CLASSES)
"""Every word that `events` may contain."""

Verdict = Literal["do", "ignore"]


def look_up_ddl_event(action: int) -> str:
    """The event of a DDL job: its name, or `alter table` if it has none, or empty for sequences and similar objects."""
    named = next((name for known, name in _EVENT_OF.items() if known == action), None)
    if named is not None:
        return named
    return "" if action in _OTHER_OBJECTS else ALTER_TABLE


_OTHER_OBJECTS = (
    Action.CREATE_SEQUENCE, Action.ALTER_SEQUENCE, Action.DROP_SEQUENCE, Action.RECOVER_TABLE, Action.RECOVER_SCHEMA,
    Action.FLASHBACK_CLUSTER,
)  # fmt: skip


@dataclass(frozen=True)
class _Rule:
    schema: Pattern
    table: Pattern | None
    words: tuple[str, ...]
    sql: Pattern | None
    action: str

    @classmethod
    def of(cls, config: EventRule) -> _Rule:
        words = tuple(_normalize_event(event) for event in config.events)
        if config.action == "Do" and not words:
            raise ConfigError(
                "a rule with the action Do and without events lets nothing through",
                where={"filters": config.schema_pattern},
                hint="list in `events` the events to replicate, for example `all`",
            )
        sql = "|".join(f"(?:{pattern})" for pattern in config.sql_pattern)
        return cls(
            compile_wildcard(config.schema_pattern),
            compile_wildcard(config.table_pattern) if config.table_pattern else None,
            words,
            compile_regex(sql, sql) if sql else None,
            config.action,
        )

    def fits(self, db: str, table: str) -> bool:
        return self.schema.matches(db) and (self.table is None or (bool(table) and self.table.matches(table)))

    def drops(self, event: str, text: str) -> bool:
        """True if the rule matches the event or its SQL text, or with the action Do, if it does not."""
        checks = [self._lists_event(event)] if event else []
        if text and self.sql is not None:
            checks.append(self.sql.matches(text))
        return next((True for named in checks if named == (self.action != "Do")), False)

    def _lists_event(self, event: str) -> bool:
        kind = "dml" if event in DML else "ddl"
        for word in self.words:
            if word in ("all", f"all {kind}"):
                return True
            if word in ("none", f"none {kind}"):
                return False
            if word == event or (word == ALTER_TABLE and kind == "ddl" and event not in _NOT_ALTER):
                return True
            if word == INCOMPATIBLE and event in _INCOMPATIBLE:
                return True
        return False


class EventFilter:
    """The rules of one replication. Raises ConfigError for an unknown event."""

    def __init__(self, rules: Iterable[EventRule]) -> None:
        self._rules = _sort_rules([(rule, _Rule.of(rule)) for rule in rules])
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    def list_passed_kinds(self, db: str, table: str) -> frozenset[str]:
        """The kinds of row changes that pass, among insert, update and delete. Raises Permanent (action Error)."""
        passed_kinds = self._known.get((db, table))
        if passed_kinds is None:
            passed = (op for op in DML if not self._is_dropped(db, table, op, ""))
            passed_kinds = self._known[db, table] = frozenset(passed)
        return passed_kinds

    def passes_ddl(self, db: str, table: str, action: int, text: str) -> bool:
        """True if the DDL passes; `table` is empty for a database. Raises Permanent (action Error)."""
        return not self._is_dropped(db, table, look_up_ddl_event(action), text)

    def drops(self, db: str, table: str, event: str, text: str = "") -> bool:
        """True if a rule drops the event; `event` is empty for a statement of unknown kind."""
        return self._is_dropped(db, table, event, text)

    def _is_dropped(self, db: str, table: str, event: str, text: str) -> bool:
        for rule in self._rules:
            if not rule.fits(db, table) or not rule.drops(event, text):
                continue
            if rule.action == "Error":
                raise Permanent(
                    f"a rule of `filters` forbids the event: {event or text[:80]}",
                    where={"table": f"{db}.{table}"},
                    hint="change the rule, or make the change at the target by hand and list its commit_ts in"
                    " filter.ignore-txn-commit-ts",
                )
            return True
        return False


def _sort_rules(rules: Sequence[tuple[EventRule, _Rule]]) -> list[_Rule]:
    """Sort rules for databases first. Raises ConfigError for two rules with the same patterns."""
    patterns: set[tuple[str, str]] = set()
    for config, _ in rules:
        key = config.schema_pattern.lower(), config.table_pattern.lower()
        if key in patterns:
            raise ConfigError("two rules of `filters` have the same patterns", where={"rule": "/".join(key)})
        patterns.add(key)
    return sorted((rule for _, rule in rules), key=lambda rule: rule.table is not None)


def _normalize_event(event: str) -> str:
    word = event.lower().strip()
    if word not in KNOWN:
        close = difflib.get_close_matches(word, KNOWN, n=1)
        hint = f"did you mean `{close[0]}`?" if close else "the list of events is in docs/reference/filters.md"
        raise ConfigError("unknown event in `filters`", where={"event": event}, hint=hint)
    return _ALIASES.get(word, word)
