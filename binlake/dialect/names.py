"""Find the names of tables and databases in DDL text, and replace them by the target's names.

Names are found by the grammar, never by searching the text: a string, column or index of the same name stays. An
inserted name is always qualified. A list (DROP, RENAME) keeps only the objects of the statement's own job (R-28).

In a view's SELECT, a renamed table keeps its old name as an alias, so that columns qualified by the old name still
refer to it. A column qualified by database and table loses the database. The qualifier of a column is spelled as in the
FROM, because a target on Linux distinguishes `A`.`c` from `a`.`c`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from binlake.dialect.classify import Classified, DdlKind, NameRef, classify_tokens, read_name
from binlake.dialect.tokens import Token, TokenKind, join_list, render, split_list, tokenize, tokenize_with_spaces
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name, fold_pair
from binlake.statements.literal import quote_name, quote_qualified_name

_ENDS_FROM = ("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "SELECT", "WINDOW", "FOR")
_OPENS_QUERY = (
    "FROM", "JOIN", "IN", "EXISTS", "AS", "AND", "OR", "NOT", "ON", "WHERE", "SELECT", "BY", "UNION", "ALL", "ANY",
    "SOME", "HAVING", "THEN", "ELSE", "WHEN", "CASE", "IS", "LIKE", "BETWEEN", "DISTINCT", "EXCEPT", "INTERSECT",
)  # fmt: skip


TargetOf = Callable[[str, str], NameRef]
"""(db, table) in the SELECT -> (db, table) at the target."""
DATABASES = frozenset({DdlKind.CREATE_DATABASE, DdlKind.ALTER_DATABASE, DdlKind.DROP_DATABASE})
_MAKES = frozenset({DdlKind.CREATE_TABLE, DdlKind.CREATE_TABLE_LIKE, DdlKind.CREATE_VIEW, DdlKind.CREATE_SEQUENCE})
_DROPS = frozenset({DdlKind.DROP_TABLE, DdlKind.DROP_VIEW, DdlKind.DROP_SEQUENCE})


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


class StatementNames(Protocol):
    """Gives the target's names for the names in a statement of the source."""

    def map_table(self, db: str, table: str, *, new: bool = False) -> tuple[str, str]:
        """(db, table) at the target; `new`: the statement gives the table this name."""

    def map_database(self, db: str) -> str:
        """The database at the target."""


@dataclass(frozen=True)
class NameSpan:
    """Tokens start to end (exclusive) that name a table or database; the db of `named` is empty if none is written.

    `new`: the statement gives a table this name.
    """

    start: int
    end: int
    named: NameRef
    role: Literal["table", "database"] = "table"
    new: bool = False


def find_session_db(statement: Classified, before: Collection[TableDef], job_db: str) -> str:
    """The database that unqualified names mean. The job of a rename into another database names the new one."""
    bare = {fold_name(name) for db, name in statement.tables if not db}
    homes = {table.db for table in before if fold_name(table.name) in bare}
    return homes.pop() if len(homes) == 1 else job_db


def split_statements(tokens: list[Token]) -> list[list[Token]]:
    """Split `tokens` at semicolons; no tokens give one empty statement."""
    parts: list[list[Token]] = [[]]
    for token in tokens:
        if token.is_mark(";"):
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part] or [[]]


def put_target_names(query: str, default_db: str, names: StatementNames, own: Collection[NameRef] = ()) -> str:
    """`query` with the target's names. `own`: (db, table) of the objects to keep in a list, empty = all.

    Text that already has the target's names is unchanged. Raises SchemaError for text that cannot be tokenized.
    """
    tokens = [token for token in tokenize(query) if token.kind is not TokenKind.COMMENT]
    wanted = {fold_pair(name) for name in own}
    parts = [part for part in split_statements(tokens) if part]
    put = [_put_target_names(part, default_db, names, wanted) for part in parts]
    return query if put == parts else "; ".join(map(render, put))


def _put_target_names(tokens: list[Token], default_db: str, names: StatementNames, own: set[NameRef]) -> list[Token]:
    """Put the target's names into `tokens`; returns `tokens` itself if they already have these names."""
    statement = classify_tokens(tokens)
    put = _keep_own_parts(tokens, statement, default_db, own)
    spans = find_names(put)
    named = _find_target_names(spans, default_db, names)
    view = statement.kind is DdlKind.CREATE_VIEW
    unchanged = all(_read_name_as_written(span, default_db) == name for span, name in zip(spans, named, strict=True))
    if (
        unchanged
        and put is tokens
        and not (view and is_view_different(put[statement.rest :], default_db, names.map_table))
    ):
        return tokens
    if view:
        put = [*put[: statement.rest], *put_view_names(put[statement.rest :], default_db, names.map_table)]
    put = list(put)
    for span, name in zip(reversed(spans), reversed(named), strict=True):
        put[span.start : span.end] = _build_name_tokens(put, span, name)
    return put


def _find_target_names(spans: Sequence[NameSpan], default_db: str, names: StatementNames) -> list[NameRef]:
    """The target's name of each span; a RENAME may rename a table again whose name it has just given."""
    given: dict[NameRef, NameRef] = {}
    named: list[NameRef] = []
    for span in spans:
        if span.role == "database":
            named.append((names.map_database(span.named[1]), ""))
            continue
        full = qualify_name(span.named, default_db)
        name = names.map_table(span.named[0] or default_db, span.named[1], new=span.new)
        named.append(name if span.new else given.pop(full, name))
        if span.new:
            given[full] = name
    return named


def _read_name_as_written(span: NameSpan, default_db: str) -> NameRef:
    db, name = span.named
    return (name, "") if span.role == "database" else (db or default_db, name)


def find_names(tokens: Sequence[Token]) -> list[NameSpan]:
    """The spans in which a statement (tokens without comments) names tables and databases, except in a view's
    SELECT."""
    statement = classify_tokens(tokens)
    if statement.kind is DdlKind.OTHER:
        return []
    if statement.kind in DATABASES:
        return (
            [NameSpan(statement.rest - 1, statement.rest, statement.tables[0], "database")] if statement.tables else []
        )
    if statement.kind in _DROPS or statement.kind is DdlKind.RENAME_TABLE:
        return list(_read_names_in_list(tokens, statement.rest))
    makes = statement.kind in _MAKES
    main = [
        NameSpan(statement.rest - (3 if name[0] else 1), statement.rest, name, new=makes) for name in statement.tables
    ]
    return [*main, *_read_other_names(tokens, statement)]


def _build_name_tokens(tokens: Sequence[Token], span: NameSpan, name: NameRef) -> list[Token]:
    put = tokenize_with_spaces(quote_name(name[0]) if span.role == "database" else quote_qualified_name(*name))
    # The `.` and the name after it get no space before them; the first token keeps its space.
    return [Token(token.kind, token.text, tokens[span.start].space and not n) for n, token in enumerate(put)]


def _read_names_in_list(tokens: Sequence[Token], at: int) -> Iterator[NameSpan]:
    """The names in `a, b` and in `a TO b, c TO d`."""
    while at < len(tokens):
        name, after = read_name(tokens, at)
        if name is None:
            return
        yield NameSpan(at, after, name, new=at > 0 and tokens[at - 1].is_word("TO"))
        if after >= len(tokens) or not (tokens[after].is_mark(",") or tokens[after].is_word("TO")):
            return
        at = after + 1


def _read_other_names(tokens: Sequence[Token], statement: Classified) -> Iterator[NameSpan]:
    """Names after the main one: LIKE, REFERENCES, RENAME TO, EXCHANGE PARTITION … WITH TABLE."""
    rest = statement.rest
    if statement.kind is DdlKind.CREATE_TABLE_LIKE:
        yield from _read_span(tokens, rest + (2 if tokens[rest].is_mark("(") else 1))
    if statement.kind not in (DdlKind.CREATE_TABLE, DdlKind.ALTER_TABLE):
        return
    for at in range(rest, len(tokens)):
        if tokens[at].is_word("REFERENCES"):
            yield from _read_span(tokens, at + 1)
    if statement.kind is DdlKind.ALTER_TABLE:
        yield from _read_names_in_specs(tokens, rest)


def _read_names_in_specs(tokens: Sequence[Token], rest: int) -> Iterator[NameSpan]:
    start = rest
    for spec in split_list(tokens[rest:]):
        at = start
        start += len(spec) + 1
        if not spec or not spec[0].is_word("RENAME", "EXCHANGE"):
            continue
        if spec[0].is_word("EXCHANGE"):
            at = next((i for i in range(at, start) if i < len(tokens) and tokens[i].is_word("TABLE")), len(tokens))
        elif len(spec) > 1 and spec[1].is_word("COLUMN", "INDEX", "KEY"):
            continue
        elif len(spec) > 1 and (spec[1].is_word("TO", "AS") or spec[1].is_mark("=")):
            at += 1
        yield from _read_span(tokens, at + 1, new=spec[0].is_word("RENAME"))


def find_names_beside_altered(tokens: Sequence[Token], statement: Classified) -> list[NameRef]:
    """The other table names in an ALTER TABLE: the table's new name, and the table that it exchanges with a
    partition."""
    return (
        [span.named for span in _read_names_in_specs(tokens, statement.rest)]
        if statement.kind is DdlKind.ALTER_TABLE
        else []
    )


def _read_span(tokens: Sequence[Token], at: int, *, new: bool = False) -> Iterator[NameSpan]:
    name, after = read_name(tokens, at)
    if name is not None:
        yield NameSpan(at, after, name, new=new)


def _keep_own_parts(tokens: list[Token], statement: Classified, default_db: str, own: set[NameRef]) -> list[Token]:
    """Remove the parts of DROP and RENAME lists that name objects other than `own`."""
    if not own or (statement.kind not in _DROPS and statement.kind is not DdlKind.RENAME_TABLE):
        return tokens
    parts = split_list(tokens[statement.rest :])
    kept = [part for part in parts if all(qualify_name(name, default_db) in own for name in _read_names_in_part(part))]
    return [*tokens[: statement.rest], *join_list(kept)] if len(parts) > 1 and kept else tokens


def _read_names_in_part(part: Sequence[Token]) -> list[NameRef]:
    return [span.named for span in _read_names_in_list(part, 0)]
