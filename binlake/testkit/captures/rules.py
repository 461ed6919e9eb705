"""Compare the shapes of source and target, except for the documented mapping of types and collations.

All other differences are reported. Each exempted difference is counted under its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from binlake.base.sql import Dialect
from binlake.compare import EXPRESSION, ColumnStructure, KeyStructure, TableStructure, normalize_collation
from binlake.dialect import choose_bytewise_collation
from binlake.dialect.collations import find_target_collation

JSON_TYPE = "JSON column: LONGTEXT on the target"
COLLATION = "collation mapped: {} is {} on the target"
LOST_DEFAULT = "latin1 column with U+FFFD as default, which latin1 lacks: utf8mb4 on the target"
GENERATED_NULL = "generated column: NOT NULL not compared"
FLOAT_BOUNDS = "FLOAT or DOUBLE: (M,D) not on the target"
BEYOND_BMP = "ENUM or SET element beyond the BMP: servers show it as ?"
EXPRESSION_KEY = "expression key: not on the target"


@dataclass(frozen=True)
class CaptureRules:
    """The rules for a target of `dialect` (mariadb, mysql, tidb); `new_collation` as in `compare_state`."""

    dialect: Dialect
    new_collation: bool = True

    def find_differences(
        self, expected: TableStructure, found: TableStructure, exempted: Counter[str]
    ) -> Iterator[str]:
        """The differences as texts; exempted ones are counted in `exempted`."""
        names = [column.name for column in expected.columns]
        found_names = [column.name for column in found.columns]
        if names != found_names:
            yield f"columns {', '.join(found_names)} instead of {', '.join(names)}"
        columns = {column.name: column for column in found.columns}
        for column in expected.columns:
            if column.name in columns:
                yield from self._compare_columns(column, columns[column.name], exempted)
        yield from self._compare_keys(expected.keys, found.keys, exempted)

    def _compare_columns(
        self, expected: ColumnStructure, found: ColumnStructure, exempted: Counter[str]
    ) -> Iterator[str]:
        if self.dialect == "mariadb" and expected.type == "json" and found.type == "longtext":
            exempted[JSON_TYPE] += 1
        elif expected.type != found.type and _replace_beyond_bmp(expected.type) == found.type:
            exempted[BEYOND_BMP] += 1
        elif expected.type != found.type and _drop_float_bounds(expected.type) == found.type:
            exempted[FLOAT_BOUNDS] += 1
        elif expected.type != found.type:
            yield f"column {expected.name} is {found.type} instead of {expected.type}"
        elif expected.collation != found.collation:
            yield from self._compare_collations(expected, found, exempted)
        if expected.nullable != found.nullable:
            if expected.generated and found.nullable:
                exempted[GENERATED_NULL] += 1
            else:
                is_now, should_be = _format_nullability(found), _format_nullability(expected)
                yield f"column {expected.name} is {is_now} instead of {should_be}"

    def _compare_collations(
        self, expected: ColumnStructure, found: ColumnStructure, exempted: Counter[str]
    ) -> Iterator[str]:
        name = expected.collation if self.new_collation else choose_bytewise_collation(expected.collation, self.dialect)
        mapped = normalize_collation(find_target_collation(name, self.dialect))
        if expected.lost_default and name.startswith("latin1_") and found.collation == "utf8mb4_bin":
            exempted[LOST_DEFAULT] += 1
        elif mapped == found.collation:
            exempted[COLLATION.format(expected.collation, found.collation)] += 1
        else:
            yield f"column {expected.name} has collation {found.collation} instead of {mapped}"

    def _compare_keys(
        self, expected: frozenset[KeyStructure], found: frozenset[KeyStructure], exempted: Counter[str]
    ) -> Iterator[str]:
        names = {key.name for key in found}
        for key in sorted(expected - found, key=str):
            if any(column == EXPRESSION for column, _ in key.columns) and key.name not in names:
                exempted[EXPRESSION_KEY] += 1
            else:
                yield f"{key} missing"
        for key in sorted(found - expected, key=str):
            yield f"{key} only on the target"


def _drop_float_bounds(type_: str) -> str:
    return re.sub(r"^(float|double)\(\d+,\d+\)", r"\1", type_)


def _replace_beyond_bmp(kind: str) -> str:
    return re.sub("[^\u0000-\uffff]", "?", kind) if kind.startswith(("enum[", "set[")) else kind


def _format_nullability(column: ColumnStructure) -> str:
    return "nullable" if column.nullable else "NOT NULL"
