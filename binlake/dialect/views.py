"""Put the target's names of tables into a view's SELECT.

A renamed table keeps its old name as an alias, so that columns qualified by the old name still refer to it. A column
qualified by database and table loses the database. The qualifier of a column is spelled as in the FROM, because a
target on Linux distinguishes `A`.`c` from `a`.`c`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from binlake.dialect.classify import NameRef, read_name
from binlake.dialect.tokens import Token, TokenKind, tokenize_with_spaces
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.statements.literal import quote_name, quote_qualified_name

_ENDS_FROM = ("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "SELECT", "WINDOW", "FOR")
_OPENS_QUERY = (
    "FROM", "JOIN", "IN", "EXISTS", "AS", "AND", "OR", "NOT", "ON", "WHERE", "SELECT", "BY", "UNION", "ALL", "ANY",
    "SOME", "HAVING", "THEN", "ELSE", "WHEN", "CASE", "IS", "LIKE", "BETWEEN", "DISTINCT", "EXCEPT", "INTERSECT",
)  # fmt: skip


TargetOf = Callable[[str, str], NameRef]
"""(db, table) in the SELECT -> (db, table) at the target."""


def is_view_different(tokens: Sequence[Token], default_db: str, table: TargetOf) -> bool:
    """True if a table that the SELECT reads, or a column's qualifier, is written differently at the target."""
    sources = _find_sources(tokens)
    if any(table(name[0] or default_db, name[1]) != (name[0] or default_db, name[1]) for _, _, name in sources):
        return True
    exposed = _find_qualifier_spellings(tokens, sources, default_db, table)
    return any(_spell_qualifier(tokens, at, exposed) not in ("", tokens[at].value) for at in range(len(tokens)))


def put_view_names(tokens: Sequence[Token], default_db: str, table: TargetOf) -> list[Token]:
    """`tokens` (those after the view's name), with the target's name of each table that the SELECT reads."""
    sources = _find_sources(tokens)
    named = {(qualify_name(name, default_db)) for _, _, name in sources}
    starts = {start: (end, name) for start, end, name in sources}
    exposed = _find_qualifier_spellings(tokens, sources, default_db, table)
    put: list[Token] = []
    at = 0
    while at < len(tokens):
        if at in starts:
            end, name = starts[at]
            put += _build_source_tokens(tokens, end, (name[0] or default_db, name[1]), table)
            at = end
            continue
        space = tokens[at].space
        if _is_column_of(tokens, at, named):
            # In `db`.`t`.`c` the alias or the table's name is enough as the qualifier.
            at += 2
        spelled = _spell_qualifier(tokens, at, exposed)
        text = quote_name(spelled) if spelled else tokens[at].text
        put.append(Token(tokens[at].kind, text, space))
        at += 1
    return put


def _find_qualifier_spellings(
    tokens: Sequence[Token], sources: Sequence[tuple[int, int, NameRef]], default_db: str, table: TargetOf
) -> dict[str, str]:
    """Folded qualifier of columns -> its spelling in the FROM at the target: an alias or the name of a table."""
    spellings: dict[str, str] = {}
    for _, end, name in sources:
        alias = _read_alias(tokens, end)
        at_target = table(name[0] or default_db, name[1])[1]
        spelling = alias or (at_target if fold_name(at_target) == fold_name(name[1]) else name[1])
        spellings.setdefault(fold_name(alias or name[1]), spelling)
    return spellings


def _read_alias(tokens: Sequence[Token], end: int) -> str:
    at = end + (end < len(tokens) and tokens[end].is_word("AS"))
    return tokens[at].value if at < len(tokens) and tokens[at].kind is TokenKind.NAME else ""


def _spell_qualifier(tokens: Sequence[Token], at: int, exposed: Mapping[str, str]) -> str:
    """The spelling in the FROM of the qualifier at `at`; empty if there is no qualifier at `at`."""
    if tokens[at].kind is not TokenKind.NAME or at + 1 >= len(tokens) or not tokens[at + 1].is_mark("."):
        return ""
    following = at + 3 < len(tokens) and tokens[at + 3].is_mark(".")
    return "" if following else exposed.get(fold_name(tokens[at].value), "")


def _build_source_tokens(tokens: Sequence[Token], end: int, name: NameRef, table: TargetOf) -> list[Token]:
    target = table(*name)
    put = tokenize_with_spaces(quote_qualified_name(*target))
    if fold_name(target[1]) == fold_name(name[1]) or _read_alias(tokens, end):
        return put
    return [*put, *tokenize_with_spaces(f"AS {quote_name(name[1])}")]


def _is_column_of(tokens: Sequence[Token], at: int, named: set[NameRef]) -> bool:
    """True if `at` is the `db` of a column `db`.`t`.`c`."""
    name, after = read_name(tokens, at)
    if name is None or after - at != 3 or after >= len(tokens) or not tokens[after].is_mark("."):
        return False
    return fold_pair(name) in named and not (at and tokens[at - 1].is_mark("."))


def _find_sources(tokens: Sequence[Token]) -> list[tuple[int, int, NameRef]]:
    """(start, end, name) of each table in a FROM or JOIN, without the names of common table expressions."""
    sources: list[tuple[int, int, NameRef]] = []
    common: set[str] = set()
    # For each open parenthesis: whether it is in a FROM list, and whether it belongs to a function (its FROM names no
    # table).
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
                sources.append((at, after, name))
            at, expecting = after, False
            continue
        elif token.kind is TokenKind.NAME and _is_common(tokens, at):
            common.add(fold_name(token.value))
        at += 1
    return sources


def _is_common(tokens: Sequence[Token], at: int) -> bool:
    """True if the name at `at` is that of a common table expression: `WITH name [(columns)] AS (`."""
    before = tokens[at - 1] if at else None
    return before is not None and (
        before.is_word("WITH", "RECURSIVE") or (before.is_mark(",") and _has_as_query(tokens, at))
    )


def _has_as_query(tokens: Sequence[Token], at: int) -> bool:
    return at + 2 < len(tokens) and tokens[at + 1].is_word("AS") and tokens[at + 2].is_mark("(")


def qualify_name(name: NameRef, default_db: str) -> NameRef:
    """(db, table) of a written name in the form for comparisons; `default_db`: the database if none is written."""
    return fold_pair((name[0] or default_db, name[1]))
