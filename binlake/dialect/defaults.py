"""Put in the default of a column as TiDB stored it if the text would mean another value at the target (hazards R-29).

The text of a TIMESTAMP default is local time in the session's zone; TiDB stores it in UTC. Other unusual texts (`x'41'`
for an INT, `3` for a SET, `1e2` for a VARCHAR) were converted by TiDB's rules. The stored value covers both cases and
does not depend on a session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from binlake.common.sql import Dialect
from binlake.dialect.routed import Unmappable
from binlake.dialect.tokens import Token, TokenKind, find_closing, tokenize, tokenize_with_spaces
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.statements.literal import choose_literal_kind, format_value_literal, quote_name

_NARROW = frozenset(("latin1", "ascii", "gbk"))
"""Character sets that have no U+FFFD."""


def is_lost_default(info: ColumnInfo) -> bool:
    """True if the default had bytes that are not UTF-8: TiDB stores and fills U+FFFD, which the column cannot hold."""
    return not info.default_is_expr and "\ufffd" in (info.default or "") and info.charset in _NARROW


def put_stored_default(column: Sequence[Token], info: ColumnInfo | None) -> list[Token]:
    """`column` (its definition, from the name on) with the default that TiDB stored, if the text has a different one.

    Raises Unmappable for a default that the column cannot hold.
    """
    at = next((i for i, token in enumerate(column) if token.is_word("DEFAULT")), None)
    if info is None or at is None:
        return list(column)
    return [*column[: at + 1], *_put_stored(column[at + 1 :], info)]


def put_stored_set_default(spec: Sequence[Token], info: ColumnInfo | None) -> list[Token]:
    """A spec `ALTER [COLUMN] name SET DEFAULT value` with the value that TiDB stored; raises like
    put_stored_default."""
    at = next((i for i, token in enumerate(spec) if token.is_word("DEFAULT")), None)
    if info is None or at is None or not spec[at - 1].is_word("SET"):
        return list(spec)
    return [*spec[: at + 1], *_put_stored(spec[at + 1 :], info)]


def format_default(info: ColumnInfo) -> str | None:
    """The SQL literal of a column's default; None if the column has no default or the default is an expression."""
    if info.default is None or info.default_is_expr or info.defaults_to_time:
        return None
    text = derive_filled_text(replace(info, origin_default=info.default, origin_default_bit=info.default_bit))
    return format_value_literal(text, choose_literal_kind(info))


def find_fill_times(added: Sequence[ColumnInfo]) -> list[str]:
    """The times with which the source filled new columns that have the current time as their default."""
    return sorted({c.origin_default for c in added if c.origin_default and c.defaults_to_time})


def build_fill_specs(
    specs: Sequence[list[Token]], added: Sequence[ColumnInfo], each: bool, dialect: Dialect
) -> tuple[list[list[Token]], list[list[Token]]]:
    """(`specs` that fill `added` columns in old rows as the source did, specs that then set the source's defaults).

    `each`: every column with a default of the current time gets a separate time, because the source filled them with
    different ones. TiDB fills a JSON NOT NULL column with the document null, MariaDB with an empty text, which is not
    JSON.
    """
    by_name = {fold_name(column.name): column for column in added}
    filled, later = list(specs), []
    for number, spec in enumerate(specs):
        at = next((i for i, token in enumerate(spec) if token.kind is TokenKind.NAME), None)
        column = by_name.get(fold_name(spec[at].value)) if at is not None and spec[0].is_word("ADD") else None
        if column is None or column.is_generated:
            continue
        name = quote_name(column.name)
        if each and column.defaults_to_time:
            start = next(i for i, token in enumerate(spec) if token.is_word("DEFAULT")) + 1
            end = start + _find_function_end(spec[start:])
            literal = format_value_literal(derive_filled_text(column), choose_literal_kind(column))
            filled[number] = [*spec[:start], *tokenize(f" {literal}"), *spec[end:]]
            clock = "".join(token.text for token in spec[start:end])
            later.append(tokenize(f" ALTER COLUMN {name} SET DEFAULT ({clock})"))
        elif column.tp == t.JSON and column.not_null and column.default is None and dialect != "tidb":
            filled[number] = _with_default(spec, "('null')" if dialect == "mysql" else "'null'")
            later.append(tokenize_with_spaces(f"ALTER COLUMN {name} DROP DEFAULT"))
    return filled, later


def _find_function_end(tail: Sequence[Token]) -> int:
    """Index after `CURRENT_TIMESTAMP`, `CURRENT_TIMESTAMP(3)` or `(expression)`."""
    at = 0 if tail[0].is_mark("(") else 1
    return find_closing(tail, at) + 1 if at < len(tail) and tail[at].is_mark("(") else 1


def _with_default(spec: Sequence[Token], literal: str) -> list[Token]:
    """Insert `DEFAULT literal` after NOT NULL."""
    at = next(i for i, token in enumerate(spec) if token.is_word("NULL")) + 1
    return [*spec[:at], *tokenize_with_spaces(f"DEFAULT {literal}"), *spec[at:]]


def _put_stored(tail: Sequence[Token], info: ColumnInfo) -> list[Token]:
    """Put the stored default into `tail`, which begins with the value of a default."""
    if is_lost_default(info):
        raise Unmappable(
            f"the default of column {info.name} has bytes that are not UTF-8: TiDB stores and shows U+FFFD instead,"
            f" which a {info.charset} column cannot hold; use ddl-replacement to make it a utf8mb4 column with that"
            " default, and accept its collation in target.tables, accept"
        )
    end = find_value_end(tail)
    literal = format_default(info)
    if literal is None or not end or _means_stored(tail[:end], info):
        return list(tail)
    return [*tokenize(f" {literal}"), *tail[end:]]


def _means_stored(value: Sequence[Token], info: ColumnInfo) -> bool:
    """True if the text means the value that TiDB stored, in every session."""
    if info.tp == t.TIMESTAMP or info.is_binary:
        return False
    plain = [token for token in value if not token.is_word("_UTF8MB4", "_UTF8")]
    text = "".join(token.value for token in plain)
    numeric = info.tp in t.INTEGERS | {t.NEWDECIMAL, t.FLOAT, t.DOUBLE}
    quoted = len(plain) == 1 and plain[0].kind is TokenKind.STRING
    return ("\\" in text or text == info.default) and (quoted or numeric)


def find_value_end(tail: Sequence[Token]) -> int:
    """Index after the value; 0 for NULL, a function or an expression, which stay unchanged."""
    at = next((i for i, token in enumerate(tail) if not (token.is_mark("-") or token.is_mark("+"))), len(tail))
    if at == len(tail) or tail[at].is_mark("(") or tail[at].is_word("NULL"):
        return 0
    head = tail[at]
    if head.kind in (TokenKind.NUMBER, TokenKind.STRING) or head.is_word("TRUE", "FALSE"):
        return at + 1
    following = tail[at + 1] if at + 1 < len(tail) else None
    if following is not None and following.kind is TokenKind.STRING and not following.space:
        return at + 2
    # The tokenizer reads 0x41 and 0b11 as words.
    return at + 1 if head.text[:2].lower() in ("0x", "0b") else 0
