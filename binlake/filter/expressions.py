"""Expression filter (data-migration-and-ticdc 1.14): a row change is dropped when an SQL expression on its row is TRUE.

Expressions name the source's columns and see the source's values, in UTC. FALSE and NULL keep the change. Several rules
on a table: one is enough. Of an UPDATE's two expressions both must be TRUE (as DM has it; TiCDC takes either).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from binlake.config.rules import ExpressionRule
from binlake.errors import ConfigError
from binlake.schema import TableDef
from binlake.schema.names import fold_pair


@dataclass(frozen=True)
class _Rule:
    db: str
    table: str
    op: str
    parts: tuple[tuple[str, str], ...]
    """(image, text) of what must be TRUE together."""


class ExpressionFilter:
    """The rules of one replication. Raises ConfigError for text that is no expression."""

    def __init__(self, rules: Iterable[ExpressionRule]) -> None:
        self._rules = [_rule(rule) for rule in rules]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def tables(self) -> list[tuple[str, str]]:
        """(db, table) of the source with a rule, in lower case, sorted."""
        return sorted({fold_pair((rule.db, rule.table)) for rule in self._rules})

    def kinds(self, db: str, table: str) -> frozenset[str]:
        """The kinds of row changes with a rule on that table."""
        return frozenset(rule.op for rule in self._of(db, table))

    def conditions(self, table: TableDef) -> dict[str, str]:
        """By kind of row change: Spark SQL over the columns `before` and `after`; TRUE = drop.

        Raises ConfigError naming table and expression when a column is unknown or something cannot be said.
        """
        found: dict[str, list[str]] = {}
        for rule in self._of(table.db, table.name):
            found.setdefault(rule.op, []).append(" AND ".join(_written(table, *part) for part in rule.parts))
        return {op: " OR ".join(f"COALESCE({sql}, FALSE)" for sql in sqls) for op, sqls in found.items()}

    def _of(self, db: str, table: str) -> list[_Rule]:
        wanted = fold_pair((db, table))
        return [rule for rule in self._rules if fold_pair((rule.db, rule.table)) == wanted]


def _rule(rule: ExpressionRule) -> _Rule:
    given = [
        ("insert", "after", rule.insert_value_expr),
        ("update", "before", rule.update_old_value_expr),
        ("update", "after", rule.update_new_value_expr),
        ("delete", "before", rule.delete_value_expr),
    ]
    parts = tuple((image, text) for _, image, text in given if text)
    for _, text in parts:
        _require_expression(rule, text)
    return _Rule(rule.schema_, rule.table, next(op for op, _, text in given if text), parts)


# The parser costs each worker that loads it more than a small window's decoding, and only the driver needs it.


def _require_expression(rule: ExpressionRule, text: str) -> None:
    from binlake.filter.sparksql import Unsaid, parsed

    try:
        parsed(text)
    except Unsaid as error:
        raise _refused(f"{rule.schema_}.{rule.table}", text, str(error)) from None


def _written(table: TableDef, image: str, text: str) -> str:
    from binlake.filter.sparksql import Unsaid, Writer, parsed

    try:
        return Writer(table, image).condition(parsed(text))
    except Unsaid as error:
        raise _refused(f"{table.db}.{table.name}", text, str(error)) from None


def _refused(table: str, text: str, why: str) -> ConfigError:
    return ConfigError(
        f"an expression of `expression-filter` cannot be used: {why}",
        where={"table": table, "expression": text},
        hint="docs/filters.md lists what an expression may have",
    )
