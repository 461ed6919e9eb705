"""The tables that a view's SELECT reads, under the target's names.

A table that gets another name keeps its old one as an alias, so that columns qualified by it still mean it; a column
qualified by database and table loses the database. What qualifies a column is spelled as in the FROM: a target on Linux
distinguishes `A`.`c` from `a`.`c`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from binlake.dialect.classify import NameRef, read_name
from binlake.dialect.tokens import Token, TokenKind, spaced_tokens
from binlake.rows.schema.names import fold_name, fold_pair
from binlake.statements.literal import qualified, quote_name

_ENDS_FROM = ("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "SELECT", "WINDOW", "FOR")
_OPENS_QUERY = (
    "FROM", "JOIN", "IN", "EXISTS", "AS", "AND", "OR", "NOT", "ON", "WHERE", "SELECT", "BY", "UNION", "ALL", "ANY",
    "SOME", "HAVING", "THEN", "ELSE", "WHEN", "CASE", "IS", "LIKE", "BETWEEN", "DISTINCT", "EXCEPT", "INTERSECT",
)  # fmt: skip


TargetOf = Callable[[str, str], NameRef]
"""(db, table) at the target, by what the SELECT says."""


def view_differs(tokens: Sequence[Token], default_db: str, table: TargetOf) -> bool:
    """True when a table that the SELECT reads, or what qualifies a column, is said otherwise at the target."""
    sources = _sources(tokens)
    if any(table(name[0] or default_db, name[1]) != (name[0] or default_db, name[1]) for _, _, name in sources):
        return True
    exposed = _exposed(tokens, sources, default_db, table)
    return any(_qualifier(tokens, at, exposed) not in ("", tokens[at].value) for at in range(len(tokens)))


def view_names(tokens: Sequence[Token], default_db: str, table: TargetOf) -> list[Token]:
    """`tokens` behind the view's name, with `table` of each table that the SELECT reads."""
    sources = _sources(tokens)
    named = {(_full(name, default_db)) for _, _, name in sources}
    starts = {start: (end, name) for start, end, name in sources}
    exposed = _exposed(tokens, sources, default_db, table)
    found: list[Token] = []
    at = 0
    while at < len(tokens):
        if at in starts:
            end, name = starts[at]
            found += _source(tokens, end, (name[0] or default_db, name[1]), table)
            at = end
            continue
        space = tokens[at].space
        if _is_column_of(tokens, at, named):
            # `db`.`t`.`c`: the alias or the name of the table is enough.
            at += 2
        spelled = _qualifier(tokens, at, exposed)
        text = quote_name(spelled) if spelled else tokens[at].text
        found.append(Token(tokens[at].kind, text, space))
        at += 1
    return found


def _exposed(
    tokens: Sequence[Token], sources: Sequence[tuple[int, int, NameRef]], default_db: str, table: TargetOf
) -> dict[str, str]:
    """By what columns are qualified, as the FROM at the target spells it: an alias, or the name of a table."""
    found: dict[str, str] = {}
    for _, end, name in sources:
        alias = _alias(tokens, end)
        here = table(name[0] or default_db, name[1])[1]
        kept = alias or (here if fold_name(here) == fold_name(name[1]) else name[1])
        found.setdefault(fold_name(alias or name[1]), kept)
    return found


def _alias(tokens: Sequence[Token], end: int) -> str:
    at = end + (end < len(tokens) and tokens[end].is_word("AS"))
    return tokens[at].value if at < len(tokens) and tokens[at].kind is TokenKind.NAME else ""


def _qualifier(tokens: Sequence[Token], at: int, exposed: Mapping[str, str]) -> str:
    """How the qualifier at `at` is spelled in the FROM; empty where none is."""
    if tokens[at].kind is not TokenKind.NAME or at + 1 >= len(tokens) or not tokens[at + 1].is_mark("."):
        return ""
    following = at + 3 < len(tokens) and tokens[at + 3].is_mark(".")
    return "" if following else exposed.get(fold_name(tokens[at].value), "")


def _source(tokens: Sequence[Token], end: int, name: NameRef, table: TargetOf) -> list[Token]:
    target = table(*name)
    put = [Token(t.kind, t.text, not n) for n, t in enumerate(spaced_tokens(qualified(*target)))]
    if fold_name(target[1]) == fold_name(name[1]) or _alias(tokens, end):
        return put
    return [*put, *spaced_tokens(f"AS {quote_name(name[1])}")]


def _is_column_of(tokens: Sequence[Token], at: int, named: set[NameRef]) -> bool:
    """True for `db`.`t` of a column `db`.`t`.`c`."""
    name, after = read_name(tokens, at)
    if name is None or after - at != 3 or after >= len(tokens) or not tokens[after].is_mark("."):
        return False
    return fold_pair(name) in named and not (at and tokens[at - 1].is_mark("."))


def _sources(tokens: Sequence[Token]) -> list[tuple[int, int, NameRef]]:
    """(start, end, name) of each table in a FROM or JOIN; names of common table expressions left out."""
    found: list[tuple[int, int, NameRef]] = []
    common: set[str] = set()
    # Of each open parenthesis: are we in a FROM list, and is it that of a function (whose FROM names no table).
    stack = [[False, False]]
    expecting, at = False, 0
    while at < len(tokens):
        token = tokens[at]
        if token.is_mark("("):
            calls = at > 0 and tokens[at - 1].kind is TokenKind.WORD and not tokens[at - 1].is_word(*_OPENS_QUERY)
            stack.append([expecting, calls and not expecting])
        elif token.is_mark(")"):
            stack = stack[:-1] or [[False, False]]
            expecting = False
        elif token.is_word("FROM", "JOIN", "STRAIGHT_JOIN") and not stack[-1][1]:
            stack[-1][0] = expecting = True
        elif token.is_mark(","):
            expecting = stack[-1][0]
        elif token.is_word(*_ENDS_FROM):
            stack[-1] = [False, False]
            expecting = False
        elif expecting and token.kind is TokenKind.NAME:
            name, after = read_name(tokens, at)
            if name is not None and (name[0] or fold_name(name[1]) not in common):
                found.append((at, after, name))
            at, expecting = after, False
            continue
        elif token.kind is TokenKind.NAME and _is_common(tokens, at):
            common.add(fold_name(token.value))
        at += 1
    return found


def _is_common(tokens: Sequence[Token], at: int) -> bool:
    """True for the name of `WITH name [(columns)] AS (`."""
    before = tokens[at - 1] if at else None
    return before is not None and (
        before.is_word("WITH", "RECURSIVE") or (before.is_mark(",") and _as_query(tokens, at))
    )


def _as_query(tokens: Sequence[Token], at: int) -> bool:
    return at + 2 < len(tokens) and tokens[at + 1].is_word("AS") and tokens[at + 2].is_mark("(")


def _full(name: NameRef, default_db: str) -> NameRef:
    return fold_pair((name[0] or default_db, name[1]))
