"""Expressions that the target would compute differently or cannot index.

`a - 5` of an unsigned `a` of 3 is an error (1690) unless the session that reads or writes it has
NO_UNSIGNED_SUBTRACTION; MariaDB even takes the session that opened the table first. TiDB computes a virtual column only
for who reads it, so its table may have such rows, while MySQL computes the column at every INSERT and MariaDB in every
ALTER that copies. With its unsigned numbers as DECIMAL, the expression gives what it gives in either mode, and no error
(`tests/target/ddl/test_unsigned_differences.py` compares this on both servers).

MariaDB has no indexes on expressions. It needs none; the source enforces them, so rows stay equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from binlake.common.sql import Dialect
from binlake.dialect.tokens import Token, TokenKind, find_closing, join_list, render, split_list, tokenize
from binlake.rows.schema import TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name

_BITS = frozenset("&|^~")
_BIT_FUNCTIONS = ("HEX", "BIN", "OCT", "CONV", "CHAR", "MAKE_SET", "EXPORT_SET", "BIT_COUNT")
_SIGNS = frozenset("+-*")
_BESIDE = (frozenset("+-*/%"), ("DIV", "MOD", "WHEN", "THEN", "ELSE", "END"))
"""Marks and words beside an operand that the result is computed from."""
_PASSING = frozenset(
    [
        "ABS",
        "CEIL",
        "CEILING",
        "COALESCE",
        "FLOOR",
        "GREATEST",
        "IF",
        "IFNULL",
        "LEAST",
        "MOD",
        "NULLIF",
        "ROUND",
        "TRUNCATE",
    ]
)
"""Functions whose result is unsigned because an argument is."""
_UNSIGNED = frozenset(("YEAR", "CRC32", "INET_ATON"))
"""Functions with an unsigned result on MySQL or MariaDB; so are CAST and CONVERT to UNSIGNED."""
_WORDS = ("AND", "OR", "XOR", "NOT", *_BESIDE[1], "CASE", "BETWEEN", "IN", "IS", "LIKE")
"""Words before a parenthesis that are no functions."""
_KEY_WORDS = ("INDEX", "KEY", "UNIQUE", "FULLTEXT")


def widen_unsigned(expression: Sequence[Token], table: TableDef, dialect: Dialect) -> list[Token]:
    """`expression` over columns of `table` with its unsigned operands as DECIMAL(20,0).

    Unchanged for TiDB, which computes what a TiDB source computed, without `+`, `-` and `*`, and with operators or
    functions on bits, which need an integer.
    """
    tokens = list(expression)
    marks = {token.text for token in tokens if token.kind is TokenKind.MARK}
    has_bits = marks & _BITS or any(token.is_word(*_BIT_FUNCTIONS) for token in tokens)
    if dialect == "tidb" or not marks & _SIGNS or has_bits or any(text in render(tokens) for text in ("<<", ">>")):
        return tokens
    for start, end in sorted(_find_unsigned(tokens, table), reverse=True):
        if _is_operand(tokens, start, end):
            # The sum, because MySQL's CAST takes a BIT for a text.
            text = f"{' ' if tokens[start].space else ''}CAST({render(tokens[start:end])}+0 AS DECIMAL(20,0))"
            tokens[start:end] = tokenize(text)
    return tokens


def _find_unsigned(tokens: Sequence[Token], table: TableDef) -> Iterator[tuple[int, int]]:
    """[start, end) of each column and each call that gives an unsigned integer."""
    for at, token in enumerate(tokens):
        column = table.find_column(token.value) if token.kind is TokenKind.NAME else None
        if column is not None and (column.tp in (t.BIT, t.YEAR) or (column.unsigned and column.tp in t.INTEGERS)):
            yield at, at + 1
        if token.kind is TokenKind.WORD and at + 1 < len(tokens) and tokens[at + 1].is_mark("("):
            end = find_closing(tokens, at + 1)
            casts = token.is_word("CAST", "CONVERT") and any(one.is_word("UNSIGNED") for one in tokens[end - 2 : end])
            if casts or token.text.upper() in _UNSIGNED:
                yield at, end + 1


def _is_operand(tokens: Sequence[Token], start: int, end: int) -> bool:
    """Whether an operator, a CASE or a function of `_PASSING` takes tokens[start:end], which may be in parentheses."""
    while start > 0 and end < len(tokens) and tokens[start - 1].is_mark("(") and tokens[end].is_mark(")"):
        if _is_call(tokens, start - 1):
            break
        start, end = start - 1, end + 1
    beside = [*tokens[max(start - 1, 0) : start], *tokens[end : end + 1]]
    if any(one.text in _BESIDE[0] if one.kind is TokenKind.MARK else one.is_word(*_BESIDE[1]) for one in beside):
        return True
    if any(one.is_mark(".") for one in beside):
        return False
    opened = _find_opening(tokens, start)
    return opened > 0 and tokens[opened - 1].text.upper() in _PASSING


def _is_call(tokens: Sequence[Token], opening: int) -> bool:
    return opening > 0 and tokens[opening - 1].kind is TokenKind.WORD and not tokens[opening - 1].is_word(*_WORDS)


def _find_opening(tokens: Sequence[Token], at: int) -> int:
    """Index of the parenthesis in which the token at `at` stands directly; -1 if there is none."""
    depth = 0
    for index in range(at - 1, -1, -1):
        depth += tokens[index].is_mark(")") - tokens[index].is_mark("(")
        if depth < 0:
            return index
    return -1


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
