"""Bring DDL text into standard form, as in MySQL's default sql_mode: back-quoted names, escaped backslashes in strings.

TiDB writes into a binlog the text that its parser restores from a statement, with a semicolon at the end. In that text
only expressions (DEFAULT, a column's COMMENT) escape a backslash; elements of ENUM and SET, and comments of tables,
indexes and partitions, contain it unescaped. This parser does not use the session's sql_mode. If it cannot parse the
statement (ANSI_QUOTES, NO_BACKSLASH_ESCAPES), the binlog has the session's original text, and Binlake finds its meaning
by the definitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from binlake.dialect.classify import DdlKind, classify_tokens
from binlake.dialect.tokens import Quoting, Token, TokenKind, render, tokenize
from binlake.errors import SchemaError
from binlake.rows.schema import TableDef
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import quote, quote_name

_MODES = tuple(Quoting(ansi, backslashes) for ansi in (False, True) for backslashes in (True, False))


@dataclass(frozen=True)
class KnownNames:
    """The `names` (folded) of objects, columns, keys and partitions, and the `texts`, in the definitions around a
    DDL."""

    names: frozenset[str]
    texts: frozenset[str]

    @classmethod
    def of(cls, databases: Iterable[str], tables: Iterable[TableDef]) -> KnownNames:
        """Collect them from the names of databases and the definitions of tables before and after the DDL."""
        names, texts = set(map(fold_name, databases)), set[str]()
        for table in tables:
            names |= {fold_name(name) for name in _list_names(table)}
            texts |= set(_list_texts(table))
        return cls(frozenset(names), frozenset(texts))


def standardize_text(query: str, job_query: str, known: KnownNames) -> str:
    """`query` of a binlog in standard form; `job_query`: the session's original text from the job.

    Raises SchemaError if the text fits the definitions in no sql_mode, or in several with different meanings.
    """
    if "\\" not in query and (query != job_query or '"' not in query):
        return query
    if query != job_query:
        return query if "\\" not in query else render(standardize_tokens(tokenize_restored(query)))
    forms = {text for quoting in _MODES for text in _read_in_mode(query, quoting, known)}
    if len(forms) != 1:
        raise SchemaError(
            "the sql_mode in which a DDL was written cannot be determined"
            if forms
            else "a DDL's text fits no sql_mode",
            where={"query": query[:200]},
        )
    return forms.pop()


def needs_standard(query: str, job_query: str) -> bool:
    """True if the standard form of a text may differ from it."""
    return "\\" in query or (query == job_query and '"' in query)


def tokenize_restored(query: str) -> list[Token]:
    """The tokens of text that TiDB restored; strings that do not escape are `plain`. Raises SchemaError."""
    return tokenize(query, plain_strings=_RestoredStrings())


def _read_in_mode(query: str, quoting: Quoting, known: KnownNames) -> Iterator[str]:
    """`query`, read in one sql_mode, in standard form; nothing if it does not fit the definitions."""
    try:
        tokens = tokenize(query, quoting)
    except SchemaError:
        return
    if _fits_definitions(tokens, quoting, known):
        yield render(standardize_tokens(tokens))


def _fits_definitions(tokens: Sequence[Token], quoting: Quoting, known: KnownNames) -> bool:
    statement = classify_tokens([token for token in tokens if token.kind is not TokenKind.COMMENT])
    if statement.kind is DdlKind.OTHER or not statement.tables:
        return False
    quoted = [token for token in tokens if token.text[:1] == '"']
    # A view's SELECT may have names that are not in the definitions, so only its first name is checked.
    named = quoted[:1] if statement.kind is DdlKind.CREATE_VIEW else quoted
    if quoting.ansi and (not quoted or any(fold_name(token.value) not in known.names for token in named)):
        return False
    strings = [token for token in tokens if token.kind is TokenKind.STRING]
    doubtful = [t for t in strings if t.text[0] == '"' or "\\" in t.text]
    if not quoting.backslashes and not any("\\" in token.text for token in strings):
        return False
    return statement.kind is DdlKind.CREATE_VIEW or all(token.value in known.texts for token in doubtful)


def standardize_tokens(tokens: Iterable[Token]) -> list[Token]:
    """The tokens in standard form, without comments."""
    return [_standardize(token) for token in tokens if token.kind is not TokenKind.COMMENT]


def restore_text(tokens: Sequence[Token]) -> str:
    """Text of standard tokens as TiDB would restore it; `standardize_text` reads the same tokens back from it."""
    restored, strings = list[Token](), _RestoredStrings()
    for token in tokens:
        before = restored[-1] if restored else None
        plain = token.kind is TokenKind.STRING and "\\" in token.text and strings(before)
        strings.note_token(token, before)
        restored.append(replace(token, text="'" + token.value.replace("'", "''") + "'") if plain else token)
    return render(restored) + ";"


def _standardize(token: Token) -> Token:
    if token.kind is TokenKind.NAME and token.text[0] == '"':
        return replace(token, text=quote_name(token.value))
    if token.kind is TokenKind.STRING and (token.plain or token.text[0] == '"'):
        return replace(token, text=quote(token.value), plain=False)
    return token


@dataclass
class _Level:
    """The current element between two commas in one pair of parentheses."""

    opener: str = ""
    words: list[Token] = field(default_factory=list)


class _RestoredStrings:
    """Follows restored text and tells whether backslashes of a string are unescaped."""

    def __init__(self) -> None:
        self._levels = [_Level()]

    def __call__(self, before: Token | None) -> bool:
        """Whether the string after the token `before` contains backslashes unescaped."""
        level = self._levels[-1]
        if level.opener in ("ENUM", "SET"):
            return True
        if before is not None and before.is_mark("="):
            return True
        return before is not None and before.is_word("COMMENT") and _is_index(level.words)

    def note_token(self, token: Token, before: Token | None) -> None:
        """Note that `token` has been read."""
        if token.is_mark("("):
            self._levels.append(_Level(before.text.upper() if before and before.kind is TokenKind.WORD else ""))
        elif token.is_mark(")"):
            self._levels = self._levels[:-1] or [_Level()]
        elif token.is_mark(","):
            self._levels[-1].words = []
        elif token.kind in (TokenKind.WORD, TokenKind.NAME):
            self._levels[-1].words.append(token)


_INDEX_WORDS = ("INDEX", "KEY", "UNIQUE", "PRIMARY", "FULLTEXT", "SPATIAL", "CONSTRAINT", "VECTOR")


def _is_index(words: Sequence[Token]) -> bool:
    """True for an element that defines an index: `INDEX i`, `… ADD UNIQUE i`, `CREATE INDEX i`."""
    heads = [at for at, word in enumerate(words) if word.is_word("ADD", "CREATE")]
    at = heads[0] + 1 if heads else 0
    return at < len(words) and words[at].is_word(*_INDEX_WORDS)


def _list_names(table: TableDef) -> Iterator[str]:
    yield from (table.db, table.name)
    yield from (column.name for column in table.all_columns)
    yield from (index.name for index in table.indexes)
    for key, kind in (("fk_info", "fk_name"), ("constraint_info", "constraint_name")):
        yield from (one[kind]["O"] for one in table.raw.get(key) or ())
    yield from (one["name"]["O"] for one in (table.raw.get("partition") or {}).get("definitions") or ())


def _list_texts(table: TableDef) -> Iterator[str]:
    yield table.comment
    for column in table.all_columns:
        yield from (column.comment, column.default or "", column.origin_default or "", *column.elems)
    yield from (index.get("comment") or "" for index in table.raw.get("index_info") or ())
    yield from (one.get("comment") or "" for one in (table.raw.get("partition") or {}).get("definitions") or ())
