"""Indexes on expressions: MariaDB does not have them. It needs none; the source enforces them, so rows stay equal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from binlake.base.sql import Dialect
from binlake.dialect.tokens import Token, TokenKind, find_closing, join_list, split_list
from binlake.dialect.unsigned import widen_unsigned
from binlake.rows.schema import TableDef
from binlake.rows.schema.names import fold_name

_KEY_WORDS = ("INDEX", "KEY", "UNIQUE", "FULLTEXT")


def makes_expression_index(tokens: Sequence[Token]) -> bool:
    """True for an element of CREATE TABLE, a spec of ALTER TABLE or a CREATE INDEX with an expression in it."""
    head = next((i for i, token in enumerate(tokens) if token.is_mark("(")), None)
    if head is None or not any(token.is_word(*_KEY_WORDS) for token in tokens[:head]):
        return False
    inside = tokens[head + 1 : find_closing(tokens, head)]
    starts = [inside[0], *(b for a, b in pairwise(inside) if a.is_mark(","))] if inside else []
    # A column definition such as `a` DECIMAL(1,2) UNIQUE has its key word after the parenthesis.
    return any(token.is_mark("(") for token in starts)


def widen_index_expressions(tokens: Sequence[Token], table: TableDef | None, dialect: Dialect) -> list[Token]:
    """An index as `makes_expression_index` knows it, its expressions without differences that are out of range."""
    head = next((i for i, token in enumerate(tokens) if token.is_mark("(")), None)
    if table is None or head is None or not makes_expression_index(tokens):
        return list(tokens)
    end = find_closing(tokens, head)
    parts = split_list(tokens[head + 1 : end])
    widened = [widen_unsigned(part, table, dialect) if part[0].is_mark("(") else part for part in parts if part]
    return [*tokens[: head + 1], *join_list(widened), *tokens[end:]]


def names_expression_index(tokens: Sequence[Token], tables: Iterable[TableDef]) -> bool:
    """True for `DROP|RENAME|ALTER INDEX name` of an index on an expression of one of `tables` (as they were before)."""
    at = next((i for i, token in enumerate(tokens[:3]) if token.is_word("INDEX", "KEY")), None)
    if not tokens or not tokens[0].is_word("DROP", "RENAME", "ALTER") or at is None:
        return False
    names = (fold_name(token.value) for token in tokens[at + 1 :] if token.kind in (TokenKind.NAME, TokenKind.WORD))
    name = next((name for name in names if name not in ("if", "exists")), "")
    return any(name in find_expression_indexes(table) for table in tables)


def find_expression_indexes(table: TableDef) -> frozenset[str]:
    """Names (lower case) of the table's indexes on an expression: TiDB stores the expression as a hidden column."""
    hidden = (
        fold_name(i.name) for i in table.indexes if any(table.find_column(part.name) is None for part in i.columns)
    )
    return frozenset(hidden)
