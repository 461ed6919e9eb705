"""Reads the text of an expression with sqlglot: what is accepted, constants, and the patterns of LIKE and REGEXP.

A tree is accepted only if it represents the whole text with MySQL's precedence. sqlglot accepts text that MySQL
refuses, drops parts, skips comments that MySQL executes, and has another precedence of comparisons. Each of these cases
is refused, with a message that says what to write. Patterns are converted to Python's, as far as all servers interpret
them in the same way.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from binlake.rules.terms import Term, Unsupported, build_constant

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


MOST_SCALE = 30
"""Most digits after the decimal point of a DECIMAL."""
_MOST_DIGITS = 65


def build_number_literal(text: str) -> Term:
    """Parse a number: an integer; with a decimal point a DECIMAL; with an exponent a DOUBLE. Raises Unsupported."""
    whole, _, fraction = text.partition(".")
    if re.fullmatch(r"[0-9]+", text) and len(text) <= _MOST_DIGITS:
        return build_constant(int(text), "int")
    if re.fullmatch(r"[0-9]*\.[0-9]*", text) and len(whole + fraction) <= _MOST_DIGITS and len(fraction) <= MOST_SCALE:
        return build_constant(Decimal(text), "decimal", len(fraction))
    if re.fullmatch(r"[0-9]*\.?[0-9]*[eE][-+]?[0-9]+", text):
        return build_constant(float(text), "real")
    raise Unsupported(f"`{text}` is not a number")


def parse_path_legs(path: exp.Expr) -> tuple[str | int, ...]:
    """The names and indexes of a path. Raises Unsupported."""
    legs: list[str | int] = []
    parts = path.expressions if isinstance(path, exp.JSONPath) else []
    if not parts or not isinstance(parts[0], exp.JSONPathRoot):
        raise Unsupported(f"the path {path.sql('mysql')} is not supported")
    for part in parts[1:]:
        leg = part.this
        named = isinstance(part, exp.JSONPathKey) and isinstance(leg, str) and "\\" not in leg
        is_index = isinstance(part, exp.JSONPathSubscript) and isinstance(leg, int) and leg >= 0
        if not (named or is_index):
            raise Unsupported('a path may contain names and indexes only, as in $.a[0]."b c"')
        legs.append(leg)
    return tuple(legs)


_LIKE_PARTS = re.compile(r"(%)|(_)|\\([%_\\])|([^\\])", re.DOTALL)


def compile_like_pattern(text: str, weigh: Callable[[str], str]) -> re.Pattern[str]:
    """The pattern of LIKE over weighed texts. Raises Unsupported."""
    pieces, at = [""], 0
    while at < len(text):
        match = _LIKE_PARTS.match(text, at)
        if match is None:
            raise Unsupported(r"in LIKE a backslash may only precede %, _ or another backslash")
        many, single, escaped, plain = match.groups()
        if many:
            pieces.append("")
        else:
            pieces[-1] += "." if single else re.escape(weigh(escaped or plain))
        at = match.end()
    if len(pieces) == 1:
        return re.compile(pieces[0], re.DOTALL)
    first, *middle, last = pieces
    # The first match of a piece is the best, because it leaves the most text for the rest. So no backtracking is
    # needed.
    first_matches = "".join(f"(?>.*?{piece})" for piece in middle if piece)
    return re.compile(f"{first}{first_matches}.*{last}", re.DOTALL)


_CLASS = r"\[\^?(?:[^\]\[\\^&~-]-[^\]\[\\^&~-]|[^\]\[\\^&~-])+-?\]"
_REGEXP_PARTS = re.compile(
    rf"(?P<class>{_CLASS})|(?P<open>\((?!\?))|(?P<close>\))|(?P<many>[*+?]|\{{\d{{1,3}}(?:,\d{{0,3}})?\}})"
    r"|(?P<end>\$)|(?P<start>\^)|(?P<or>\|)|(?P<any>\.)|(?P<escaped>\\[.*+?()|^$\\\[\]{}/-])|(?P<plain>[^\\\[\](){}*+?|^$.])",
    re.DOTALL | re.ASCII,
)
_PUT = {"any": r"[^\n]", "end": r"\Z"}


def compile_regexp_pattern(text: str) -> re.Pattern[str]:
    """The pattern of REGEXP: characters, classes, groups, repetitions and alternatives. Raises Unsupported."""
    parts = _split_regexp(text)
    kinds = [kind for kind, _ in parts]
    before: list[str] = ["start", *kinds]
    repeats_nothing = any(
        kind == "many" and last in ("start", "open", "or", "many", "end")
        for last, kind in zip(before, kinds, strict=False)
    )
    if not parts or repeats_nothing or _repeats_repetition(kinds):
        raise Unsupported(f"servers interpret the pattern '{text}' differently, or reject it")
    try:
        return re.compile("".join(_PUT.get(kind, part) for kind, part in parts))
    except (re.error, OverflowError):
        raise Unsupported(f"'{text}' is not a pattern") from None


def _split_regexp(text: str) -> list[tuple[str, str]]:
    parts, at = [], 0
    while at < len(text):
        match = _REGEXP_PARTS.match(text, at)
        if match is None or match.lastgroup is None:
            raise Unsupported(f"servers interpret '{text[at : at + 12]}' in a pattern differently")
        parts.append((match.lastgroup, match[0]))
        at = match.end()
    return parts


def _repeats_repetition(kinds: list[str]) -> bool:
    """True for nested repetitions such as (a+)+, which can take extremely long on some texts."""
    opened: list[bool] = []
    for kind, following in zip(kinds, [*kinds[1:], ""], strict=True):
        if kind == "open":
            opened.append(False)
        elif kind == "close":
            if not opened:
                return False
            inner = opened.pop()
            if inner and following == "many":
                return True
            if opened:
                opened[-1] |= inner or following == "many"
        elif kind in ("many", "or") and opened:
            opened[-1] = True
    return False
