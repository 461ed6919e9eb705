"""Clauses of CREATE and ALTER that the target says otherwise, or not at all (docs/understand/target-mapping.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from binlake.base.dialects import Dialect
from binlake.dialect.collations import DEFAULT_COLLATIONS, target_charset, target_collation
from binlake.dialect.defaults import put_stored_default
from binlake.dialect.errors import Unmappable
from binlake.dialect.tokens import Token, TokenKind, find_closing, spaced_tokens, tokenize
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.statements.literal import quote
from binlake.statements.writtencolumns import is_computed

DROPPED_WORDS = frozenset({"CLUSTERED", "NONCLUSTERED"})
"""How TiDB stores a primary key: no other server has the word."""

DROPPED_OPTIONS = frozenset(
    {
        "SHARD_ROW_ID_BITS",
        "PRE_SPLIT_REGIONS",
        "AUTO_ID_CACHE",
        "AUTO_RANDOM",
        "AUTO_RANDOM_BASE",
        "STATS_AUTO_RECALC",
        "STATS_BUCKETS",
        "STATS_COL_CHOICE",
        "STATS_COL_LIST",
        "STATS_PERSISTENT",
        "STATS_SAMPLE_PAGES",
        "STATS_SAMPLE_RATE",
        "STATS_TOPN",
        "TTL_ENABLE",
        "TTL_JOB_INTERVAL",
        "ENGINE",
        "SECONDARY_ENGINE",
        "COMPRESSION",
        "ENCRYPTION",
    }
)
"""Options with a value that go: TiDB's own, and ENGINE and the like, which TiDB ignores and a target must not obey."""

_MARIADB_WORDS = {"VISIBLE": "NOT IGNORED", "INVISIBLE": "IGNORED"}
_CHARSET_WORDS = ("CHARACTER", "CHARSET", "COLLATE")


def lacks_charset(options: Sequence[Token]) -> bool:
    """True when options name neither a character set nor a collation."""
    return not any(token.is_word(*_CHARSET_WORDS) for token in options)


def map_element(
    tokens: Sequence[Token], column: Sequence[Token] | None, table: TableDef | None, dialect: Dialect
) -> list[Token]:
    """An element of CREATE TABLE, a spec of ALTER TABLE, or CREATE INDEX; raises Unmappable.

    `column` is the tail of `tokens` that defines a column, if it does; its collation comes from `table`.
    """
    if column:
        head = list(tokens[: len(tokens) - len(column)])
        info = table.column(column[0].value) if table is not None else None
        spelled = _own_texts(_own_expression(list(column), info), info)
        mapped = put_stored_default(_own_elements(_generated(spelled, info, table, dialect), info), info)
        tokens = [*head, *_own_collation(mapped, info, table, dialect)]
    return map_clauses(tokens, dialect)


_INTRODUCERS = ("_UTF8MB4", "_UTF8MB3", "_UTF8")


def drop_introducers(tokens: Sequence[Token], dialect: Dialect) -> list[Token]:
    """Strings without `_UTF8MB4` and the like, of which MariaDB makes `xC3xB6` in a generated column or a CHECK.

    The session speaks utf8mb4 (`downstream.session`), so the string is the same without it.
    """
    if dialect != "mariadb":
        return list(tokens)
    kept: list[Token] = []
    for token in tokens:
        if token.kind is TokenKind.STRING and kept and kept[-1].is_word(*_INTRODUCERS):
            token = replace(token, space=kept.pop().space)
        kept.append(token)
    return kept


def map_clauses(tokens: Sequence[Token], dialect: Dialect) -> list[Token]:
    """Tokens with words, options, character sets and collations in the target's way."""
    tokens, mapped = drop_introducers(tokens, dialect), list[Token]()
    at = 0
    while at < len(tokens):
        put, at = _clause(tokens, at, dialect)
        mapped += put
    return mapped


def _clause(tokens: Sequence[Token], at: int, dialect: Dialect) -> tuple[list[Token], int]:
    """(what replaces the clause at `at`, index after it)."""
    token = tokens[at]
    if token.kind is not TokenKind.WORD:
        return [token], at + 1
    word = token.text.upper()
    if word in DROPPED_WORDS:
        return [], at + 1
    if word in DROPPED_OPTIONS:
        return [], _after_value(tokens, at + 1)
    if word == "COLLATE":
        return _collate(tokens, at, dialect)
    if at + 1 < len(tokens) and tokens[at + 1].is_mark("(") and word in ("CHARSET", "COLLATION"):
        # The functions of that name.
        return [token], at + 1
    if word == "CHARSET" or (word == "CHARACTER" and at + 1 < len(tokens) and tokens[at + 1].is_word("SET")):
        return _charset(tokens, at, dialect)
    return _mariadb_word(tokens, at, word) if dialect == "mariadb" else ([token], at + 1)


def _mariadb_word(tokens: Sequence[Token], at: int, word: str) -> tuple[list[Token], int]:
    return (spaced_tokens(_MARIADB_WORDS[word]) if word in _MARIADB_WORDS else [tokens[at]]), at + 1


def _after_value(tokens: Sequence[Token], at: int) -> int:
    """Index after `[=] value` or `(…)`."""
    if at < len(tokens) and tokens[at].is_mark("="):
        return at + 2
    if at < len(tokens) and tokens[at].is_mark("("):
        return find_closing(tokens, at) + 1
    takes = at < len(tokens) and tokens[at].kind in (TokenKind.NUMBER, TokenKind.STRING)
    return at + 1 if takes else at


def _collate(tokens: Sequence[Token], at: int, dialect: Dialect) -> tuple[list[Token], int]:
    value = _value_at(tokens, at + 1)
    name = target_collation(tokens[value].value, dialect)
    return [tokens[at], *spaced_tokens(name)], value + 1


def _charset(tokens: Sequence[Token], at: int, dialect: Dialect) -> tuple[list[Token], int]:
    """A character set named alone gets TiDB's collation for it: the target's default differs."""
    value = _value_at(tokens, at + (1 if tokens[at].is_word("CHARSET") else 2))
    name = tokens[value].value.lower()
    put = spaced_tokens(f"CHARACTER SET {target_charset(name, dialect)}")
    following = tokens[value + 1 : value + 3]
    if not any(token.is_word("COLLATE") for token in following) and name in DEFAULT_COLLATIONS:
        put += spaced_tokens(f"COLLATE {target_collation(DEFAULT_COLLATIONS[name], dialect)}")
    return put, value + 1


def _value_at(tokens: Sequence[Token], at: int) -> int:
    at += at < len(tokens) and tokens[at].is_mark("=")
    if at >= len(tokens):
        raise Unmappable("a character set or collation without a name")
    return at


def _generated(
    column: Sequence[Token], info: ColumnInfo | None, table: TableDef | None, dialect: Dialect
) -> list[Token]:
    """MariaDB knows no NULL or NOT NULL on a generated column, and no generated column in a primary key."""
    column = drop_generation_if_written(column, info, table, dialect)
    at = next((i for i, token in enumerate(column) if token.is_word("AS")), None)
    if dialect != "mariadb" or at is None or at + 1 >= len(column) or not column[at + 1].is_mark("("):
        return list(column)
    end = find_closing(column, at + 1)
    return [*column[: end + 1], *(token for token in column[end + 1 :] if not token.is_word("NOT", "NULL"))]


def _own_expression(column: list[Token], info: ColumnInfo | None) -> list[Token]:
    """The expression of a generated column as TiDB understood it, where the restored text says another one.

    With PIPES_AS_CONCAT `a || b` is CONCAT(a, b); the text of the binlog has `a OR b`.
    """
    at = next((i for i, token in enumerate(column) if token.is_word("AS")), None)
    if info is None or not info.generated_expr or at is None or at + 1 >= len(column):
        return column
    end = find_closing(column, at + 1)
    own = tokenize(info.generated_expr)
    if _meaning(column[at + 2 : end]) == _meaning(own):
        return column
    return [*column[: at + 2], *own, *column[end:]]


def _meaning(expression: Sequence[Token]) -> list[str]:
    words = [t for t in expression if not (t.is_mark("(") or t.is_mark(")") or t.is_word(*_INTRODUCERS))]
    return [t.value if t.kind is TokenKind.STRING else t.value.lower() for t in words]


def _own_texts(column: list[Token], info: ColumnInfo | None) -> list[Token]:
    """DEFAULT and COMMENT as the definition has them: with NO_BACKSLASH_ESCAPES the text was read otherwise."""
    if info is None:
        return column
    put = list(column)
    for at, token in enumerate(column):
        before = at - 1 - (at > 0 and column[at - 1].is_word(*_INTRODUCERS))
        if token.kind is not TokenKind.STRING or before < 0:
            continue
        wanted = token.value
        if column[before].is_word("COMMENT"):
            wanted = info.comment
        elif column[before].is_word("DEFAULT") and _has_plain_default(info):
            wanted = info.default or ""
        if wanted != token.value:
            put[at] = replace(token, text=quote(wanted))
    return put


def _has_plain_default(info: ColumnInfo) -> bool:
    texts = info.elems or (info.type_name in _TEXT_TYPES and info.charset != "binary")
    return bool(texts) and info.default is not None and not info.default_is_expr


def drop_generation_if_written(
    column: Sequence[Token], info: ColumnInfo | None, table: TableDef | None, dialect: Dialect
) -> list[Token]:
    """A generated column that the target does not compute (`is_computed`), without its expression."""
    at = next((i for i, token in enumerate(column) if token.is_word("AS")), None)
    if info is None or table is None or at is None or not info.is_generated or is_computed(info, table, dialect):
        return list(column)
    end = find_closing(column, at + 1)
    start = at - 2 if column[at - 2].is_word("GENERATED") else at
    return [*column[:start], *(token for token in column[end + 1 :] if not token.is_word("STORED"))]


def _own_elements(column: list[Token], info: ColumnInfo | None) -> list[Token]:
    """TiDB leaves a backslash in an ENUM or SET element as it is, which a server would take for an escape."""
    plain = info is None or not any("\\" in elem for elem in info.elems)
    if plain or info is None or len(column) < 3 or not column[2].is_mark("("):
        return column
    elements = ",".join(quote(elem) for elem in info.elems)
    return [*column[:2], *tokenize(f"({elements})"), *column[find_closing(column, 2) + 1 :]]


def _own_collation(
    column: list[Token], info: ColumnInfo | None, table: TableDef | None, dialect: Dialect
) -> list[Token]:
    """The column with its collation said, where it is not the table's and the text leaves it out."""
    if table is None or info is None or info.charset in ("", "binary") or info.collate == table.collate:
        return column
    if not lacks_charset(column) or (not info.elems and info.type_name not in _TEXT_TYPES):
        return column
    end = find_closing(column, 2) if len(column) > 2 and column[2].is_mark("(") else 1
    charset, collate = target_charset(info.charset, dialect), target_collation(info.collate, dialect)
    return [*column[: end + 1], *spaced_tokens(f"CHARACTER SET {charset} COLLATE {collate}"), *column[end + 1 :]]


_TEXT_TYPES = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})
