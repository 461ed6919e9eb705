"""Parse an expression with sqlglot; accept the tree only if it represents the whole text with MySQL's precedence.

sqlglot accepts text that MySQL refuses, drops parts, skips comments that MySQL executes, and has another precedence of
comparisons. Each of these cases is refused, with a message that says what to write.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from binlake.rules.terms import Unsupported

_COMPARING = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE, exp.NullSafeEQ, exp.Between, exp.In, exp.Is, exp.Like,
              exp.RegexpLike)  # fmt: skip
_JOINING = (exp.And, exp.Or, exp.Xor)
_CALCULATING = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.IntDiv, exp.Mod, exp.Neg, exp.Collate)
_BYTES = (exp.HexString, exp.BitString)
_CONSTANTS = (TokenType.STRING, TokenType.NUMBER, TokenType.HEX_STRING, TokenType.BIT_STRING)
_ENDS = ("LEADING", "TRAILING", "BOTH")
_CALLED = frozenset({
    "IN", "IF", "IFNULL", "COALESCE", "LOWER", "LCASE", "UPPER", "UCASE", "TRIM", "LTRIM", "RTRIM", "ABS", "LENGTH",
    "CHAR_LENGTH", "CHARACTER_LENGTH", "FIND_IN_SET", "MOD", "ISNULL", "JSON_EXTRACT", "REGEXP_LIKE",
})  # fmt: skip
"""Words before a parenthesis that does not group an expression."""


def parse(text: str) -> exp.Expr:
    """Parse `text` as MySQL does. Raises Unsupported."""
    try:
        tokens = sqlglot.tokenize(text, read="mysql")
        trees = sqlglot.parse(text, read="mysql")
    except (SqlglotError, RecursionError) as error:
        raise Unsupported(str(error).splitlines()[0]) from None
    if len(trees) != 1 or trees[0] is None:
        raise Unsupported("it is not one expression")
    if any(token.comments for token in tokens):
        raise Unsupported("servers may execute a comment: remove it")
    tree = trees[0]
    _require_all_tokens(tree, tokens)
    groups = sum(map(_is_group, tokens, [None, *tokens]))
    if groups < _count_nodes(tree, exp.Paren):
        # The parser adds parentheses of its own, which do not always match MySQL's precedence.
        raise Unsupported("put parentheses around each comparison that is part of another one (and write NOT for !)")
    for node in tree.walk():
        _require_parentheses(node)
    return tree


def _require_all_tokens(tree: exp.Expr, tokens: list[Token]) -> None:
    """Raise Unsupported unless the tree has as many names and constants as the text."""
    names = sum(map(_is_name, tokens, [None, *tokens], [*tokens[1:], None]))
    constants = sum(token.token_type in _CONSTANTS for token in tokens)
    if names > _count_nodes(tree, exp.Identifier) or constants != _count_nodes(
        tree, exp.Literal, exp.JSONPath, *_BYTES
    ):
        raise Unsupported("a name or constant in it has no meaning at its position")


def _is_name(token: Token, before: Token | None, following: Token | None) -> bool:
    if token.token_type not in (TokenType.VAR, TokenType.IDENTIFIER) or token.text.upper() in _ENDS:
        return False
    called = following is not None and following.token_type == TokenType.L_PAREN
    return not called and (before is None or before.token_type != TokenType.COLLATE)


def _is_group(token: Token, before: Token | None) -> bool:
    called = before is not None and (before.text.upper() in _CALLED or before.token_type == TokenType.VAR)
    return token.token_type == TokenType.L_PAREN and not called


def _count_nodes(tree: exp.Expr, *kinds: type[exp.Expr]) -> int:
    return sum(1 for _ in tree.find_all(*kinds))


def _require_parentheses(node: exp.Expr) -> None:
    """Raise Unsupported unless operators that sqlglot or people may bind differently from MySQL are in parentheses."""
    parts = [part for part in node.iter_expressions() if isinstance(part, (*_COMPARING, *_JOINING, exp.Not))]
    if isinstance(node, (*_COMPARING, *_CALCULATING)):
        loose = [part for part in parts if part.arg_key != "expressions"]
    elif isinstance(node, _JOINING):
        loose = [part for part in parts if isinstance(part, _JOINING) and exp.Xor in (type(node), type(part))]
    elif isinstance(node, exp.Not):
        loose = [part for part in parts if isinstance(part, _JOINING)]
    else:
        return
    if loose:
        raise Unsupported(f"put parentheses around `{loose[0].sql('mysql')}`")
