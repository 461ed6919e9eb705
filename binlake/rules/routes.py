"""Names at the target (data-migration-and-ticdc 1.11): a rule with a table pattern has priority over a database rule.

Two matching rules of equal rank for one table are an error, because the result would depend on their order. Without a
matching rule the name stays. A rule whose target-schema contains `{1}` (the text that the first group of its ~regex
captures) has the lowest priority: it is for the databases that no other rule names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from binlake.common.sections import RouteRule
from binlake.errors import ConfigError
from binlake.rules.patterns import Pattern, compile_regex, compile_wildcard

CAPTURED = "{1}"


@dataclass(frozen=True)
class Extracted:
    """An additional column of the target: its name and its value for one source table."""

    column: str
    value: str


@dataclass(frozen=True)
class _Rule:
    config: RouteRule
    schema: Pattern
    table: Pattern | None

    @property
    def rank(self) -> int:
        """The rank: among the matching rules, only those of the highest rank count."""
        if CAPTURED in self.config.target_schema:
            return 0
        return 1 if self.table is None else 2

    def fits(self, db: str, table: str) -> bool:
        """True if the rule is for `db`.`table`; `table` is empty for the database itself."""
        if self.table is not None and not table:
            return False
        return self.schema.matches(db) and (self.table is None or self.table.matches(table))

    def map_schema(self, db: str) -> str:
        """The database at the target."""
        name = self.config.target_schema
        return name.replace(CAPTURED, _capture_text(self.schema.regex, db)) if CAPTURED in name else name


class Routes:
    """The rules of one replication; `replication` is its name. Raises ConfigError."""

    def __init__(self, rules: Sequence[RouteRule], replication: str = "") -> None:
        self._replication = replication
        self._rules = [
            _Rule(rule, compile_wildcard(rule.schema_pattern), _compile_table_pattern(rule)) for rule in rules
        ]
        self._known: dict[tuple[str, str], _Rule | None] = {}
        _require_distinct(rules)
        for rule in self._rules:
            _require_group(rule)
            for regex, _, _ in _list_extractors(rule.config, "", "", ""):
                compile_regex(regex, regex)

    def __bool__(self) -> bool:
        return bool(self._rules)

    @property
    def extracts(self) -> bool:
        """True if a rule adds columns to rows."""
        return any(_list_extractors(rule.config, "", "", "") for rule in self._rules)

    def map_table(self, db: str, table: str) -> tuple[str, str]:
        """(db, table) at the target. Raises ConfigError if two rules of equal rank match."""
        rule = self._look_up_rule(db, table)
        return (db, table) if rule is None else (rule.map_schema(db), rule.config.target_table or table)

    def map_database(self, db: str) -> str:
        """The database at the target for a DDL on the database itself. Raises ConfigError like `table`."""
        rule = self._look_up_rule(db, "")
        return db if rule is None else rule.map_schema(db)

    def extract_columns(self, db: str, table: str, source: str = "") -> tuple[Extracted, ...]:
        """The additional columns of `db`.`table`: from the table's, the database's and the source's name, in this
        order.

        `source`: the feeder's source that has the table; if empty, as for a TiDB, the replication's name is used.
        """
        rule = self._look_up_rule(db, table)
        if rule is None:
            return ()
        extractors = _list_extractors(rule.config, table, db, source or self._replication)
        return tuple(Extracted(column, _capture_text(regex, text)) for regex, column, text in extractors)

    def _look_up_rule(self, db: str, table: str) -> _Rule | None:
        if (db, table) not in self._known:
            self._known[db, table] = self._find_rule(db, table)
        return self._known[db, table]

    def _find_rule(self, db: str, table: str) -> _Rule | None:
        fitting = [rule for rule in self._rules if rule.fits(db, table)]
        highest = max((rule.rank for rule in fitting), default=0)
        best = [rule for rule in fitting if rule.rank == highest]
        if len(best) > 1:
            first, second = (f"{rule.config.schema_pattern}/{rule.config.table_pattern}" for rule in best[:2])
            raise ConfigError(
                "two routes of equal rank match one table",
                where={"table": f"{db}.{table}", "routes": f"{first}, {second}"},
                hint="make the patterns disjoint",
            )
        return best[0] if best else None


def _compile_table_pattern(rule: RouteRule) -> Pattern | None:
    return compile_wildcard(rule.table_pattern) if rule.table_pattern else None


def _require_distinct(rules: Sequence[RouteRule]) -> None:
    seen: set[tuple[str, str]] = set()
    for rule in rules:
        key = rule.schema_pattern.lower(), rule.table_pattern.lower()
        if key in seen:
            raise ConfigError("two routes have the same patterns", where={"route": "/".join(key)}, hint="keep one")
        seen.add(key)


def _require_group(rule: _Rule) -> None:
    if CAPTURED in rule.config.target_schema and rule.schema.regex.groups != 1:
        raise ConfigError(
            "a target-schema with {1} needs a schema-pattern that is a ~regex with one group",
            where={"route": rule.config.schema_pattern},
            hint='schema-pattern = "~^shard1_(.*)$"',
        )


def _list_extractors(rule: RouteRule, table: str, db: str, source: str) -> list[tuple[str, str, str]]:
    """(regular expression, target column, text) of the rule's extractors."""
    extractors = []
    if rule.extract_table is not None:
        extractors.append((rule.extract_table.table_regexp, rule.extract_table.target_column, table))
    if rule.extract_schema is not None:
        extractors.append((rule.extract_schema.schema_regexp, rule.extract_schema.target_column, db))
    if rule.extract_source is not None:
        extractors.append((rule.extract_source.source_regexp, rule.extract_source.target_column, source))
    return extractors


def _capture_text(regex: str | re.Pattern[str], text: str) -> str:
    match = re.search(regex, text)
    return "".join(group or "" for group in match.groups()) if match else ""
