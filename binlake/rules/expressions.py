"""Expression filter (data-migration-and-ticdc 1.14): drop a row change if an SQL expression on its row is TRUE.

Expressions name the source's columns and see the source's values, in UTC. If the result is FALSE or NULL, the change is
kept. With several rules for a table, one TRUE rule is enough. For an UPDATE with two expressions, both must be TRUE (as
in DM; in TiCDC one is enough).

Rows of `mutation` are removed in one pass over Arrow batches, in the driver and in tasks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.common.lakecolumns import Mutation
from binlake.common.sections import ExpressionRule
from binlake.errors import ConfigError, SchemaError
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_pair
from binlake.rules.evaluate import Program

_UNREADABLE = (ValueError, ArithmeticError, LookupError, RecursionError)


@dataclass(frozen=True)
class Half:
    """An expression on one image (`before` or `after`): `program` takes the texts of `columns`."""

    image: str
    columns: tuple[str, ...]
    program: Program
    text: str


@dataclass(frozen=True)
class ChangeFilter:
    """The filter for one kind `op` of changes of a source table with since <= commit_ts < until.

    A row is dropped if all halves of one of `choices` are TRUE.
    """

    db: str
    table: str
    op: str
    since: int
    until: int
    choices: tuple[tuple[Half, ...], ...]

    def find_rows(self, batch: pa.RecordBatch) -> NDArray[np.int64]:
        """The indexes of the rows to which this filter applies."""
        applies = pc.and_(
            pc.and_(pc.equal(batch[Mutation.SOURCE_DB], self.db), pc.equal(batch[Mutation.SOURCE_TABLE], self.table)),
            pc.and_(
                pc.equal(batch[Mutation.OP], self.op),
                pc.and_(
                    pc.greater_equal(batch[Mutation.COMMIT_TS], self.since),
                    pc.less(batch[Mutation.COMMIT_TS], self.until),
                ),
            ),
        )
        return np.flatnonzero(applies.to_numpy(zero_copy_only=False))


@dataclass(frozen=True)
class RowFilter:
    """The rules of a window; picklable."""

    places: tuple[ChangeFilter, ...] = ()

    def filter_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that no expression drops. Raises SchemaError if a value does not fit its column."""
        dropped = np.zeros(batch.num_rows, bool)
        for table_filter in self.places:
            rows = table_filter.find_rows(batch)
            for choice in table_filter.choices if len(rows) else ():
                true = np.ones(len(rows), bool)
                for half in choice:
                    true &= _is_true(half, batch, rows, table_filter)
                dropped[rows] |= true
        return batch.filter(pa.array(~dropped)) if dropped.any() else batch


def _is_true(
    half: Half, batch: pa.RecordBatch, rows: NDArray[np.int64], table_filter: ChangeFilter
) -> NDArray[np.bool_]:
    results = np.zeros(len(rows), bool)
    at = 0
    try:
        images = batch[half.image].take(pa.array(rows))
        values = [_read_values(images, column) for column in half.columns] or [[None] * len(rows)]
        for at, row in enumerate(zip(*values, strict=True)):
            results[at] = bool(half.program(row))
    except _UNREADABLE as error:
        raise SchemaError(
            f"an expression of `expression-filter` cannot read a row: {type(error).__name__}",
            where={"table": f"{table_filter.db}.{table_filter.table}", "expression": half.text,
                   "commit_ts": batch[Mutation.COMMIT_TS][int(rows[at])].as_py()},
            hint="write the expression without that column, then run the window's merge again",
        ) from error  # fmt: skip
    return results


def _read_values(images: pa.MapArray, column: str) -> list[Any]:
    """The text of `column` in each image."""
    texts = images.items.filter(pc.equal(images.keys, column))
    if len(texts) != len(images):
        raise LookupError(column)
    values: list[Any] = texts.to_pylist()
    return values


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
