"""The parts of a SHOW CREATE TABLE text."""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.tokens import Token, TokenKind, find_closing, split_list, tokenize
from binlake.errors import SchemaError


def read_column_definitions(create: str) -> dict[str, list[Token]]:
    """The definition of each column in a SHOW CREATE TABLE text, as tokens without comments, by name."""
    tokens = [token for token in tokenize(create) if token.kind is not TokenKind.COMMENT]
    start = next((at for at, token in enumerate(tokens) if token.is_mark("(")), None)
    if start is None:
        raise SchemaError("a SHOW CREATE TABLE text has no columns", where={"text": create[:80]})
    parts = split_list(tokens[start + 1 : find_closing(tokens, start)])
    return {part[0].value: part[1:] for part in parts if part and part[0].kind is TokenKind.NAME}


def read_default_value(definition: Sequence[Token]) -> list[Token]:
    """What follows DEFAULT in a column's definition, an expression with its parentheses; empty if there is none."""
    at = next((at + 1 for at, token in enumerate(definition) if token.is_word("DEFAULT")), len(definition))
    is_expression = at < len(definition) and definition[at].is_mark("(")
    end = find_closing(definition, at) + 1 if is_expression else at + 1
    return list(definition[at:end])
