"""Expression filter (data-migration-and-ticdc 1.14): drop a row change if an SQL expression on its row is TRUE.

Expressions name the source's columns and see the source's values, in UTC. If the result is FALSE or NULL, the change is
kept. With several rules for a table, one TRUE rule is enough. For an UPDATE with two expressions, both must be TRUE (as
in DM; in TiCDC one is enough).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from binlake.base.sections import ExpressionRule
from binlake.errors import ConfigError
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rules.rowfilter import Half


@dataclass(frozen=True)
class _Rule:
    db: str
    table: str
    op: str
    parts: tuple[tuple[str, str], ...]
    """Pairs (image, text) that must be TRUE together."""


class ExpressionFilter:
    """The expression rules of one replication.

    `bytewise`: its source compares all texts by bytes (source.new-collation = false). Raises ConfigError for text that
    is not an expression.
    """

    def __init__(self, rules: Iterable[ExpressionRule], *, bytewise: bool = False) -> None:
        self._rules = [_build_rule(rule) for rule in rules]
        self._bytewise = bytewise

    def __bool__(self) -> bool:
        return bool(self._rules)

    def list_tables(self) -> list[tuple[str, str]]:
        """(db, table) of the source's tables with a rule, in lower case, sorted."""
        return sorted({fold_pair((rule.db, rule.table)) for rule in self._rules})

    def list_filtered_kinds(self, db: str, table: str) -> frozenset[str]:
        """The kinds of row changes for which the table has a rule."""
        return frozenset(rule.op for rule in self._select_rules(db, table))

    def build_conditions(self, table: TableDef) -> dict[str, tuple[tuple[Half, ...], ...]]:
        """Kind of row change -> the conditions that drop it: one condition whose halves are all TRUE is enough.

        Raises ConfigError naming table and expression if a column is unknown or something is not supported.
        """
        conditions: dict[str, list[tuple[Half, ...]]] = {}
        for rule in self._select_rules(table.db, table.name):
            conditions.setdefault(rule.op, []).append(tuple(self._build_half(table, *part) for part in rule.parts))
        return {op: tuple(halves) for op, halves in conditions.items()}

    def _select_rules(self, db: str, table: str) -> list[_Rule]:
        name = fold_pair((db, table))
        return [rule for rule in self._rules if fold_pair((rule.db, rule.table)) == name]

    def _build_half(self, table: TableDef, image: str, text: str) -> Half:
        from binlake.rules.reader import ExpressionReader
        from binlake.rules.sql import parse
        from binlake.rules.terms import Unsupported

        reader = ExpressionReader(table, bytewise=self._bytewise)
        try:
            program = reader.read_condition(parse(text))
        except Unsupported as error:
            raise _build_refused_error(f"{table.db}.{table.name}", text, str(error)) from None
        return Half(image, tuple(reader.columns), program, text)


def _build_rule(rule: ExpressionRule) -> _Rule:
    halves = [
        ("insert", "after", rule.insert_value_expr),
        ("update", "before", rule.update_old_value_expr),
        ("update", "after", rule.update_new_value_expr),
        ("delete", "before", rule.delete_value_expr),
    ]
    parts = tuple((image, text) for _, image, text in halves if text)
    for _, text in parts:
        _require_expression(rule, text)
    return _Rule(rule.schema_, rule.table, next(op for op, _, text in halves if text), parts)


# Importing the parser costs a worker more time than decoding a small window, and only the driver needs it.


def _require_expression(rule: ExpressionRule, text: str) -> None:
    from binlake.rules.sql import parse
    from binlake.rules.terms import Unsupported

    try:
        parse(text)
    except Unsupported as error:
        raise _build_refused_error(f"{rule.schema_}.{rule.table}", text, str(error)) from None


def _build_refused_error(table: str, text: str, why: str) -> ConfigError:
    return ConfigError(
        f"an expression of `expression-filter` cannot be used: {why}",
        where={"table": table, "expression": text},
        hint="docs/reference/filters.md lists what an expression may contain",
    )
