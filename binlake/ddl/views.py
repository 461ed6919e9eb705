"""The tables that a view's SELECT reads, under the target's names.

A table that gets another name keeps its old one as an alias, so that columns qualified by it still mean it; a column
qualified by database and table loses the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from binlake.ddl.classify import NameRef, read_name
from binlake.ddl.tokens import Token, TokenKind, words
from binlake.statement.literal import qualified, quote_name

_ENDS_FROM = ("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "SELECT", "WINDOW", "FOR")
_OPENS_QUERY = (
    "FROM", "JOIN", "IN", "EXISTS", "AS", "AND", "OR", "NOT", "ON", "WHERE", "SELECT", "BY", "UNION", "ALL", "ANY",
    "SOME", "HAVING", "THEN", "ELSE", "WHEN", "CASE", "IS", "LIKE", "BETWEEN", "DISTINCT", "EXCEPT", "INTERSECT",
)  # fmt: skip


def view_names(tokens: Sequence[Token], default_db: str, table: Callable[[str, str], NameRef]) -> list[Token]:
    """`tokens` behind the view's name, with `table` of each table that the SELECT reads."""
    places = _sources(tokens)
    named = {(_full(name, default_db)) for _, _, name in places}
    starts = {start: (end, name) for start, end, name in places}
    found: list[Token] = []
    at = 0
    while at < len(tokens):
        if at in starts:
            end, name = starts[at]
            found += _source(tokens, end, (name[0] or default_db, name[1]), table)
            at = end
            continue
        if _is_column_of(tokens, at, named):
            # `db`.`t`.`c`: the alias or the name of the table is enough.
            at += 2
            found.append(Token(tokens[at].kind, tokens[at].text, tokens[at - 2].space))
        else:
            found.append(tokens[at])
        at += 1
    return found


def _source(tokens: Sequence[Token], end: int, name: NameRef, table: Callable[[str, str], NameRef]) -> list[Token]:
    target = table(*name)
    put = [Token(t.kind, t.text, not n) for n, t in enumerate(words(qualified(*target)))]
    aliased = end < len(tokens) and (tokens[end].is_word("AS") or tokens[end].kind is TokenKind.NAME)
    if target[1].lower() == name[1].lower() or aliased:
        return put
    return [*put, *words(f"AS {quote_name(name[1])}")]


def _is_column_of(tokens: Sequence[Token], at: int, named: set[NameRef]) -> bool:
    """True for `db`.`t` of a column `db`.`t`.`c`."""
    name, after = read_name(tokens, at)
    if name is None or after - at != 3 or after >= len(tokens) or not tokens[after].is_mark("."):
        return False
    return (name[0].lower(), name[1].lower()) in named and not (at and tokens[at - 1].is_mark("."))


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
            if name is not None and (name[0] or name[1].lower() not in common):
                found.append((at, after, name))
            at, expecting = after, False
            continue
        elif token.kind is TokenKind.NAME and _is_common(tokens, at):
            common.add(token.value.lower())
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
    return (name[0] or default_db).lower(), name[1].lower()
