"""Conditions that match exactly the rows equal to an image, for tables without a key (hazards R-44).

Each form was measured on MariaDB 10.11. A FLOAT is compared by its widened value. JSON is compared by content, with an
explicit NOT NULL because JSON_EQUALS(NULL, x) counts as true there. Text is compared by bytes after the comparison that
can use an index, because a collation would treat `A` and `a ` as equal to `a`.
"""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc

from binlake.base.sql import Dialect
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.statements.columns import build_large_scalar, format_match_literals
from binlake.statements.literal import LiteralKind, choose_literal_kind, format_match, quote_name

_CHARACTERS = t.STRINGS


def format_image_condition(text: str | None, column: ColumnInfo, dialect: Dialect) -> str:
    """The condition for one value; the reference implementation of `format_image_conditions`."""
    if text is None:
        return f"{quote_name(column.name)} IS NULL"
    return _format_template(column, dialect).replace("\0", format_match(text, column))


def format_image_conditions(values: Any, column: ColumnInfo, dialect: Dialect) -> Any:
    """An Arrow column of conditions `column equals value`, including NULL, for a column of canonical text."""
    literals = format_match_literals(values, column)
    parts = _format_template(column, dialect).split("\0")
    pieces: list[Any] = [build_large_scalar(parts[0])]
    for part in parts[1:]:
        pieces += [literals, build_large_scalar(part)]
    present = pc.binary_join_element_wise(*pieces, build_large_scalar(""))
    return pc.if_else(values.is_null(), build_large_scalar(f"{quote_name(column.name)} IS NULL"), present)


def format_exact_name(column: ColumnInfo) -> str:
    """The column for comparisons with text literals: bytewise if its collation may treat different texts as equal."""
    name = quote_name(column.name)
    if choose_literal_kind(column) is LiteralKind.TEXT and column.tp in _CHARACTERS:
        return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
    return name


def _format_template(column: ColumnInfo, dialect: Dialect) -> str:
    """The condition with a NUL byte as the placeholder of the literal."""
    name = quote_name(column.name)
    kind = choose_literal_kind(column)
    if kind is LiteralKind.JSON:
        if dialect != "mariadb":
            return f"({name} IS NOT NULL AND {name} = CAST(\0 AS JSON))"
        # JSON_EQUALS does not work for values nested deeper than 31 levels; these are compared by text.
        return f"({name} IS NOT NULL AND (JSON_EQUALS({name}, \0) OR CAST({name} AS BINARY) = CAST(\0 AS BINARY)))"
    if format_exact_name(column) != name:
        return f"{name} <=> \0 AND {format_exact_name(column)} <=> CAST(\0 AS BINARY)"
    return f"{name} <=> \0"
