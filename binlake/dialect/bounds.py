"""Put the partition names and bounds of TiDB's definition into DDL text.

Servers compare partition names without letter case, but MariaDB uses the name as a part of a file name when it
exchanges the partition (error 1025). A bound such as `UNIX_TIMESTAMP('2020-01-01')` means a different second in each
time zone.

The definition has the computed numbers (`partition.definitions[].less_than`, `in_values`); the text may have
expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from binlake.dialect.tokens import Token, TokenKind, find_closing, tokenize
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import quote_name


def put_stored_bounds(tokens: Sequence[Token], table: TableDef | None) -> list[Token]:
    """`tokens` with the stored bounds of `table`'s partitions in place of numeric expressions.

    Bounds of RANGE COLUMNS and LIST COLUMNS stay, because no such column may have a type that depends on a time zone.
    """
    partition = (table.raw.get("partition") if table is not None else None) or {}
    if partition.get("columns"):
        return list(tokens)
    definitions = {definition["name"]["L"]: definition for definition in partition.get("definitions") or ()}
    put: list[Token] = []
    at = 0
    while at < len(tokens):
        start = _find_values(tokens, at)
        definition = definitions.get(fold_name(tokens[at + 1].value)) if start else None
        if not start or definition is None:
            put.append(tokens[at])
            at += 1
            continue
        end = find_closing(tokens, start)
        put += [*tokens[at:start], *_build_stored_bounds(tokens[start + 1 : end], definition, tokens[start])]
        at = end + 1
    return put


def put_stored_partition(spec: Sequence[Token], table: TableDef | None) -> list[Token]:
    """`spec` of an ALTER; in EXCHANGE PARTITION the partition's name is spelled as in `table`."""
    partition = (table.raw.get("partition") if table is not None else None) or {}
    names = {one["name"]["L"]: one["name"]["O"] for one in partition.get("definitions") or ()}
    if len(spec) < 3 or not (spec[0].is_word("EXCHANGE") and spec[1].is_word("PARTITION")):
        return list(spec)
    name = names.get(fold_name(spec[2].value))
    return [*spec[:2], replace(spec[2], kind=TokenKind.NAME, text=quote_name(name)) if name else spec[2], *spec[3:]]


def _find_values(tokens: Sequence[Token], at: int) -> int:
    """Index of the `(` after `PARTITION name VALUES LESS THAN` or `… IN` at `at`; 0 if no such clause is at `at`."""
    rest = tokens[at : at + 6]
    if len(rest) < 5 or not (rest[0].is_word("PARTITION") and rest[2].is_word("VALUES")):
        return 0
    start = at + (5 if rest[3].is_word("LESS") else 4)
    return start if start < len(tokens) and tokens[start].is_mark("(") else 0


def _build_stored_bounds(inner: Sequence[Token], definition: Mapping[str, Any], opening: Token) -> list[Token]:
    less, values = definition.get("less_than") or (), definition.get("in_values") or ()
    bounds = [*less] if less else [value[0] for value in values]
    expression = any(token.kind is TokenKind.WORD and not token.is_word("MAXVALUE", "NULL") for token in inner)
    if not expression or not bounds:
        return [opening, *inner, Token(TokenKind.MARK, ")")]
    return [opening, *tokenize(", ".join(bounds)), Token(TokenKind.MARK, ")")]
