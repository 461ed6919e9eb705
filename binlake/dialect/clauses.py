"""Clauses of CREATE and ALTER that the target writes differently or does not have
(docs/understand/target-mapping.md).

An index that TiDB creates for a foreign key is written explicitly. A server creates such an index too, but drops it as
soon as another index can serve; TiDB keeps it under its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from binlake.common.sql import Dialect
from binlake.dialect.collations import (
    DEFAULT_COLLATIONS,
    find_target_charset,
    find_target_collation,
    has_target_collation,
)
from binlake.dialect.defaults import put_stored_default
from binlake.dialect.expressions import widen_index_expressions, widen_unsigned
from binlake.dialect.routed import Unmappable
from binlake.dialect.tokens import Token, TokenKind, find_closing, tokenize, tokenize_with_spaces
from binlake.dialect.wholetexts import express_default, put_key_lengths
from binlake.rows.schema import ColumnInfo, IndexInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.statements.generation import is_computed
from binlake.statements.literal import quote, quote_name

DROPPED_WORDS = frozenset({"CLUSTERED", "NONCLUSTERED"})
"""Keywords for the storage of a primary key, which no server but TiDB has."""

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
        "TABLESPACE",
        "COMPRESSION",
        "ENCRYPTION",
    }
)
"""Options with a value that are removed: TiDB's own, and those like ENGINE that TiDB ignores but a target would
apply."""

_MARIADB_WORDS = {"VISIBLE": "NOT IGNORED", "INVISIBLE": "IGNORED"}
_CHARSET_WORDS = ("CHARACTER", "CHARSET", "COLLATE")
_INTRODUCERS = ("_UTF8MB4", "_UTF8MB3", "_UTF8")
_TEXT_TYPES = frozenset({"char", "varchar", "tinytext", "text", "mediumtext", "longtext"})


def lacks_charset(options: Sequence[Token]) -> bool:
    """True if the options name neither a character set nor a collation."""
    return not any(token.is_word(*_CHARSET_WORDS) for token in options)


def map_element(
    tokens: Sequence[Token], column: Sequence[Token] | None, table: TableDef | None, dialect: Dialect
) -> list[Token]:
    """Map an element of CREATE TABLE, a spec of ALTER TABLE, or CREATE INDEX; raises Unmappable.

    `column` is the tail of `tokens` that defines a column, or None; the column's collation comes from `table`.
    """
    if column:
        head = list(tokens[: len(tokens) - len(column)])
        info = table.find_column(column[0].value) if table is not None else None
        spelled = _put_stored_texts(_put_stored_expression(put_stored_type(column, info), info), info)
        mapped = put_stored_default(_escape_elements(_map_generated(spelled, info, table, dialect), info), info)
        mapped = express_default(mapped, info) if dialect == "mysql" else mapped
        tokens = [*head, *_put_collation(mapped, info, table, dialect)]
    else:
        tokens = widen_index_expressions(tokens, table, dialect)
        tokens = put_key_lengths(tokens, table) if dialect == "mysql" else tokens
    return map_clauses(tokens, dialect)


def drop_introducers(tokens: Sequence[Token], dialect: Dialect) -> list[Token]:
    """Remove introducers such as `_UTF8MB4` before strings: MariaDB turns such strings into `xC3xB6` in generated
    columns and CHECKs.

    The session uses utf8mb4 (`binlake.target.session`), so the string means the same without the introducer.
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
    """`tokens` with keywords, options, character sets and collations as the target writes them."""
    tokens, mapped = drop_introducers(tokens, dialect), list[Token]()
    at = 0
    while at < len(tokens):
        put, at = _map_clause(tokens, at, dialect)
        mapped += put
    return mapped


def _map_clause(tokens: Sequence[Token], at: int, dialect: Dialect) -> tuple[list[Token], int]:
    """(tokens that replace the clause at `at`, index after the clause)."""
    token = tokens[at]
    if token.kind is not TokenKind.WORD:
        return [token], at + 1
    word = token.text.upper()
    if word in DROPPED_WORDS:
        return [], at + 1
    if word in DROPPED_OPTIONS:
        return [], _skip_value(tokens, at + 1)
    if word in ("DATA", "INDEX") and at + 1 < len(tokens) and tokens[at + 1].is_word("DIRECTORY"):
        return [], _skip_value(tokens, at + 2)
    if word == "COLLATE":
        return _map_collate(tokens, at, dialect)
    if at + 1 < len(tokens) and tokens[at + 1].is_mark("(") and word in ("CHARSET", "COLLATION"):
        # These are the functions CHARSET() and COLLATION().
        return [token], at + 1
    if word == "CHARSET" or (word == "CHARACTER" and at + 1 < len(tokens) and tokens[at + 1].is_word("SET")):
        return _map_charset(tokens, at, dialect)
    return _map_mariadb_word(tokens, at, word) if dialect == "mariadb" else ([token], at + 1)


def _map_mariadb_word(tokens: Sequence[Token], at: int, word: str) -> tuple[list[Token], int]:
    return (tokenize_with_spaces(_MARIADB_WORDS[word]) if word in _MARIADB_WORDS else [tokens[at]]), at + 1


def _skip_value(tokens: Sequence[Token], at: int) -> int:
    """Index after `[=] value` or `(…)`."""
    if at < len(tokens) and tokens[at].is_mark("="):
        return at + 2
    if at < len(tokens) and tokens[at].is_mark("("):
        return find_closing(tokens, at) + 1
    takes = at < len(tokens) and tokens[at].kind in (TokenKind.NAME, TokenKind.NUMBER, TokenKind.STRING)
    return at + 1 if takes else at


def _map_collate(tokens: Sequence[Token], at: int, dialect: Dialect) -> tuple[list[Token], int]:
    value = _find_value(tokens, at + 1)
    name = require_target_collation(tokens[value].value, dialect)
    return [tokens[at], *tokenize_with_spaces(name)], value + 1


def require_target_collation(name: str, dialect: Dialect) -> str:
    """The target's collation for `name`. Raises Unmappable if it has none that calls the same texts equal."""
    if not has_target_collation(name, dialect):
        raise Unmappable(f"COLLATE {name.lower()}, as none of its collations calls the same texts equal")
    return find_target_collation(name, dialect)


def _map_charset(tokens: Sequence[Token], at: int, dialect: Dialect) -> tuple[list[Token], int]:
    """Add TiDB's default collation to a character set that is named alone, because the target's default differs."""
    value = _find_value(tokens, at + (1 if tokens[at].is_word("CHARSET") else 2))
    name = tokens[value].value.lower()
    put = tokenize_with_spaces(f"CHARACTER SET {find_target_charset(name, dialect)}")
    has_collation = any(token.is_word("COLLATE") for token in tokens[value + 1 : value + 3]) or _is_in_cast(tokens, at)
    if not has_collation and name in DEFAULT_COLLATIONS:
        put += tokenize_with_spaces(f"COLLATE {find_target_collation(DEFAULT_COLLATIONS[name], dialect)}")
    return put, value + 1


def _is_in_cast(tokens: Sequence[Token], at: int) -> bool:
    """Whether the character set at `at` is that of the type in a CAST or CONVERT, which takes no collation."""
    kind = at - 1
    while kind > 0 and not tokens[kind].is_word("CHAR"):
        if not (tokens[kind].kind is TokenKind.NUMBER or tokens[kind].is_mark("(") or tokens[kind].is_mark(")")):
            return False
        kind -= 1
    return kind > 0 and (tokens[kind - 1].is_word("AS") or tokens[kind - 1].is_mark(","))


def _find_value(tokens: Sequence[Token], at: int) -> int:
    at += at < len(tokens) and tokens[at].is_mark("=")
    if at >= len(tokens):
        raise Unmappable("a character set or collation clause without a name")
    return at


def _map_generated(
    column: Sequence[Token], info: ColumnInfo | None, table: TableDef | None, dialect: Dialect
) -> list[Token]:
    """Adapt a generated column: a virtual one reads unsigned numbers as DECIMAL, MariaDB has neither NULL nor NOT NULL
    on it, and no generated column in a primary key."""
    column = drop_generation_if_written(column, info, table, dialect)
    at = next((i for i, token in enumerate(column) if token.is_word("AS")), None)
    if at is None or at + 1 >= len(column) or not column[at + 1].is_mark("("):
        return list(column)
    end = find_closing(column, at + 1)
    is_virtual = info is not None and info.is_generated and not info.generated_stored
    expression = column[at + 2 : end]
    if is_virtual and table is not None:
        expression = widen_unsigned(expression, table, dialect)
    left_out = ("NOT", "NULL") if dialect == "mariadb" else ()
    return [*column[: at + 2], *expression, *(token for token in column[end:] if not token.is_word(*left_out))]


def map_tidb_column(column: list[Token], table: TableDef) -> list[Token]:
    """The definition of a column of `table` for a TiDB target: its stored type and default, and no generation if its
    values are written."""
    info = table.find_column(column[0].value)
    return put_stored_default(drop_generation_if_written(put_stored_type(column, info), info, table, "tidb"), info)


def put_stored_type(column: Sequence[Token], info: ColumnInfo | None) -> list[Token]:
    """Put in FLOAT where the text has DOUBLE or REAL: with REAL_AS_FLOAT a session's REAL became one."""
    if info is None or info.tp != t.FLOAT or len(column) < 2 or not column[1].is_word("DOUBLE", "REAL"):
        return list(column)
    after = 2 + (len(column) > 2 and column[2].is_word("PRECISION"))
    return [column[0], replace(column[1], text="FLOAT"), *column[after:]]


def drop_float_bounds(column: Sequence[Token]) -> list[Token]:
    """Remove (M,D) of FLOAT and DOUBLE: TiDB stores the nearest float even where MySQL and MariaDB call it out of range
    (-99999999.99 in FLOAT(10,2) is -1e8)."""
    at = 2 + (len(column) > 2 and column[1].is_word("DOUBLE") and column[2].is_word("PRECISION"))
    bounds = column[at : at + 5]
    is_bounded = len(bounds) == 5 and bounds[0].is_mark("(") and bounds[2].is_mark(",") and bounds[4].is_mark(")")
    if not is_bounded or not column[1].is_word("FLOAT", "DOUBLE", "REAL"):
        return list(column)
    return [*column[:at], *column[at + 5 :]]


def _put_stored_expression(column: list[Token], info: ColumnInfo | None) -> list[Token]:
    """Put in the stored expression of a generated column if the restored text has a different one.

    With PIPES_AS_CONCAT, `a || b` means CONCAT(a, b), but the text of the binlog has `a OR b`.
    """
    at = next((i for i, token in enumerate(column) if token.is_word("AS")), None)
    if info is None or not info.generated_expr or at is None or at + 1 >= len(column):
        return column
    end = find_closing(column, at + 1)
    own = tokenize(info.generated_expr)
    if _normalize_expression(column[at + 2 : end]) == _normalize_expression(own):
        return column
    return [*column[: at + 2], *own, *column[end:]]


def _normalize_expression(expression: Sequence[Token]) -> list[str]:
    words = [t for t in expression if not (t.is_mark("(") or t.is_mark(")") or t.is_word(*_INTRODUCERS))]
    return [t.value if t.kind is TokenKind.STRING else t.value.lower() for t in words]


def _put_stored_texts(column: list[Token], info: ColumnInfo | None) -> list[Token]:
    """Put in DEFAULT and COMMENT from the definition: with NO_BACKSLASH_ESCAPES their text was read differently."""
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
    """Remove the expression of a generated column that the target does not compute (`is_computed`)."""
    at = next((i for i, token in enumerate(column) if token.is_word("AS")), None)
    if info is None or table is None or at is None or not info.is_generated or is_computed(info, table, dialect):
        return list(column)
    end = find_closing(column, at + 1)
    start = at - 2 if column[at - 2].is_word("GENERATED") else at
    return [*column[:start], *(token for token in column[end + 1 :] if not token.is_word("STORED"))]


def _escape_elements(column: list[Token], info: ColumnInfo | None) -> list[Token]:
    """Escape backslashes in ENUM and SET elements: TiDB's text does not escape them, but a server reads escapes."""
    plain = info is None or not any("\\" in elem for elem in info.elems)
    if plain or info is None or len(column) < 3 or not column[2].is_mark("("):
        return column
    elements = ",".join(quote(elem) for elem in info.elems)
    return [*column[:2], *tokenize(f"({elements})"), *column[find_closing(column, 2) + 1 :]]


def _put_collation(
    column: list[Token], info: ColumnInfo | None, table: TableDef | None, dialect: Dialect
) -> list[Token]:
    """Add the column's collation if the text does not name it and it differs from the table's."""
    if table is None or info is None or info.charset in ("", "binary") or info.collate == table.collate:
        return column
    if not lacks_charset(column) or (not info.elems and info.type_name not in _TEXT_TYPES):
        return column
    end = find_closing(column, 2) if len(column) > 2 and column[2].is_mark("(") else 1
    charset, collate = find_target_charset(info.charset, dialect), require_target_collation(info.collate, dialect)
    return [*column[: end + 1], *tokenize_with_spaces(f"CHARACTER SET {charset} COLLATE {collate}"), *column[end + 1 :]]


def build_foreign_key_indexes(
    elements: Sequence[Sequence[Token]], before: TableDef | None, after: TableDef | None
) -> list[list[Token]]:
    """`INDEX name (columns)` for each index that TiDB created for a foreign key and that `elements` do not name."""
    if after is None:
        return []
    keys = {fold_name(key["fk_name"]["O"]) for key in after.raw.get("fk_info") or ()}
    had = {fold_name(index.name) for index in (before.indexes if before else ())}
    own = [i for i in after.indexes if fold_name(i.name) in keys - had and not _is_named(i, elements)]
    return [tokenize(f" INDEX {quote_name(i.name)} ({', '.join(quote_name(c.name) for c in i.columns)})") for i in own]


def spell_foreign_key(spec: list[Token], before: TableDef | None) -> list[Token]:
    """`DROP FOREIGN KEY name` with the name as it was created, because MariaDB distinguishes letter case."""
    words = [token.text.upper() for token in spec[:3]]
    if before is None or len(spec) < 4 or words != ["DROP", "FOREIGN", "KEY"]:
        return spec
    names = [key["fk_name"]["O"] for key in before.raw.get("fk_info") or ()]
    own = next((name for name in names if fold_name(name) == fold_name(spec[-1].value)), None)
    return spec if own is None else [*spec[:-1], *tokenize(f" {quote_name(own)}")]


def _is_named(index: IndexInfo, elements: Sequence[Sequence[Token]]) -> bool:
    made = (part for part in elements if any(token.is_word("INDEX", "KEY", "UNIQUE") for token in part[:3]))
    return any(fold_name(token.value) == fold_name(index.name) for part in made for token in part[:5])
