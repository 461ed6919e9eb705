"""Partitions as definitions have them: their names, and their bounds as TiDB computed them.

A name in another letter case is the same to all servers, but MariaDB makes it a part of a file's name when it exchanges
the partition (error 1025). As to bounds, `UNIX_TIMESTAMP('2020-01-01')` means another second in each time zone.

The definition has the numbers (`partition.definitions[].less_than`, `in_values`); the text may have expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from binlake.dialect.tokens import Token, TokenKind, find_closing, tokenize
from binlake.rows.schema import TableDef
from binlake.rows.schema.names import fold_name
from binlake.statements.literal import quote_name


def put_stored_bounds(tokens: Sequence[Token], table: TableDef | None) -> list[Token]:
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
        end = find_closing(tokens, start)
        found += [*tokens[at:start], *_bounds(tokens[start + 1 : end], one, tokens[start])]
        at = end + 1
    return found


def put_stored_partition(spec: Sequence[Token], table: TableDef | None) -> list[Token]:
    """`spec` of an ALTER; EXCHANGE PARTITION names the partition as `table` spells it."""
    partition = (table.raw.get("partition") if table is not None else None) or {}
    names = {one["name"]["L"]: one["name"]["O"] for one in partition.get("definitions") or ()}
    if len(spec) < 3 or not (spec[0].is_word("EXCHANGE") and spec[1].is_word("PARTITION")):
        return list(spec)
    name = names.get(fold_name(spec[2].value))
    return [*spec[:2], replace(spec[2], kind=TokenKind.NAME, text=quote_name(name)) if name else spec[2], *spec[3:]]


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
