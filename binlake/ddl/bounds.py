"""Bounds of partitions as TiDB computed them: `UNIX_TIMESTAMP('2020-01-01')` means another second in each time zone.

The definition has the numbers (`partition.definitions[].less_than`, `in_values`); the text may have expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from binlake.ddl.tokens import Token, TokenKind, closing, tokenize
from binlake.schema import TableDef
from binlake.schema.names import fold_name


def own_bounds(tokens: Sequence[Token], table: TableDef | None) -> list[Token]:
    """`tokens` with the bounds of `table`'s partitions, where they are expressions over numbers.

    Bounds of RANGE COLUMNS and LIST COLUMNS stay: none of them may have a type with a zone.
    """
    partition = (table.raw.get("partition") if table is not None else None) or {}
    if partition.get("columns"):
        return list(tokens)
    known = {one["name"]["L"]: one for one in partition.get("definitions") or ()}
    found: list[Token] = []
    at = 0
    while at < len(tokens):
        start = _values_at(tokens, at)
        one = known.get(fold_name(tokens[at + 1].value)) if start else None
        if not start or one is None:
            found.append(tokens[at])
            at += 1
            continue
        end = closing(tokens, start)
        found += [*tokens[at:start], *_bounds(tokens[start + 1 : end], one, tokens[start])]
        at = end + 1
    return found


def _values_at(tokens: Sequence[Token], at: int) -> int:
    """Index of the `(` behind `PARTITION name VALUES LESS THAN` or `… IN` at `at`; 0 when that is not there."""
    rest = tokens[at : at + 6]
    if len(rest) < 5 or not (rest[0].is_word("PARTITION") and rest[2].is_word("VALUES")):
        return 0
    start = at + (5 if rest[3].is_word("LESS") else 4)
    return start if start < len(tokens) and tokens[start].is_mark("(") else 0


def _bounds(inner: Sequence[Token], one: Mapping[str, Any], opening: Token) -> list[Token]:
    less, values = one.get("less_than") or (), one.get("in_values") or ()
    bounds = [*less] if less else [value[0] for value in values]
    expression = any(token.kind is TokenKind.WORD and not token.is_word("MAXVALUE", "NULL") for token in inner)
    if not expression or not bounds:
        return [opening, *inner, Token(TokenKind.MARK, ")")]
    return [opening, *tokenize(", ".join(bounds)), Token(TokenKind.MARK, ")")]
