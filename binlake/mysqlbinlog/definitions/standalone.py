"""Statements of a source in a form that a server without the source's surroundings can run.

A tracker and a target have neither its tablespaces, directories and key rings nor its sequences, and other names of its
databases. So a definition loses where its rows are stored, defaults that a sequence gives (the log has each value), and
qualifiers of its columns. Clauses, options and defaults are found by the grammar: a column may have any of the words
below as its name.
"""

from __future__ import annotations

from collections.abc import Sequence

from binlake.dialect.classify import KEY_HEADS, NameRef, is_period
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    find_closing,
    join_list,
    skip_exists,
    split_list,
    split_partitioning,
    tokenize_with_spaces,
)
from binlake.mysqlbinlog.definitions.clausetexts import split_clauses, split_options
from binlake.rows.schema.forms import fold_pair

_STORAGE = (
    "AUTOEXTEND_SIZE", "COMPRESSION", "CONNECTION", "DATA", "ENCRYPTED", "ENCRYPTION", "ENCRYPTION_KEY_ID",
    "ENGINE_ATTRIBUTE", "INDEX", "INSERT_METHOD", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "SECONDARY_ENGINE",
    "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "STORAGE", "TABLESPACE", "UNION",
)  # fmt: skip
"""First words of the options that name something outside the table."""
_PARTITION_STORAGE = ("DATA", "ENGINE_ATTRIBUTE", "INDEX", "NODEGROUP", "SECONDARY_ENGINE_ATTRIBUTE", "TABLESPACE")
_NAMES = (TokenKind.NAME, TokenKind.WORD)


def drop_alter_storage(specs: Sequence[Token]) -> list[Token]:
    """The clauses of an ALTER TABLE without options about storage; empty if nothing else remains."""
    clauses = [clause for clause in split_clauses(specs) if not _is_storage_option(clause)]
    partitioning = clauses.pop() if clauses and split_partitioning(clauses[-1])[0] == [] else []
    return [*join_list([*map(_drop_partition_storage, clauses)]), *_drop_partition_storage(partitioning)]


def drop_create_storage(tokens: Sequence[Token]) -> list[Token]:
    """A CREATE TABLE without options about storage."""
    start = next((at for at, token in enumerate(tokens) if token.is_mark("(")), None)
    if start is None:
        return list(tokens)
    end = find_closing(tokens, start)
    partition = next((at for at in range(end + 1, len(tokens)) if tokens[at].is_word("PARTITION")), len(tokens))
    listed = split_list(tokens[end + 1 : partition])
    options = [option for part in listed for option in split_options(part) if not _is_storage_option(option)]
    plain = [token for option in options for token in option]
    return [*tokens[: end + 1], *plain, *_drop_partition_storage(tokens[partition:])]


def _is_storage_option(clause: Sequence[Token]) -> bool:
    if not clause or clause[0].value.upper() not in _STORAGE or len(clause) < 2:
        return False
    return not clause[0].is_word("DATA", "INDEX") or clause[1].is_word("DIRECTORY")


def _drop_partition_storage(tokens: Sequence[Token]) -> list[Token]:
    """A partitioning, or a clause that adds partitions, without the partitions' options about storage."""
    if not any(token.is_word("PARTITION") for token in tokens[:2]) and not _reorganizes(tokens):
        return list(tokens)
    kept, at = list[Token](), 0
    while at < len(tokens):
        value = _find_partition_option_value(tokens, at)
        if value is None:
            kept.append(tokens[at])
        at = at + 1 if value is None else value + 1
    return kept


def _reorganizes(tokens: Sequence[Token]) -> bool:
    return len(tokens) > 1 and tokens[0].is_word("REORGANIZE") and tokens[1].is_word("PARTITION")


def _find_partition_option_value(tokens: Sequence[Token], at: int) -> int | None:
    """The index of the value of the storage option at `at`; an option follows a value, never `PARTITION` or `(`."""
    before = tokens[at - 1] if at else tokens[at]
    follows = before.is_mark(")") or (before.kind is not TokenKind.MARK and not before.is_word(*_PARTITION_HEADS))
    if not (at and follows and tokens[at].is_word(*_PARTITION_STORAGE)):
        return None
    value = at + 1 + (len(tokens) > at + 1 and tokens[at + 1].is_word("DIRECTORY"))
    value += len(tokens) > value and tokens[value].is_mark("=")
    return value if value < len(tokens) and tokens[value].kind is not TokenKind.MARK else None


_PARTITION_HEADS = ("PARTITION", "SUBPARTITION", "INTO", "DIV", "MOD", "BY")


def draws_from_sequence(tokens: Sequence[Token]) -> bool:
    """Whether an expression has a value of a sequence (MariaDB)."""
    for at, token in enumerate(tokens[:-1]):
        if token.is_word("NEXTVAL", "LASTVAL", "SETVAL") and tokens[at + 1].is_mark("("):
            return True
        if token.is_word("NEXT", "PREVIOUS") and tokens[at + 1].is_word("VALUE"):
            return True
    return False


def drop_sequence_defaults(tokens: Sequence[Token]) -> list[Token]:
    """A statement without the defaults that a sequence gives; `SET DEFAULT` of such a value becomes DROP DEFAULT."""
    kept, at = list[Token](), 0
    while at < len(tokens):
        end = _find_default_end(tokens, at + 1) if tokens[at].is_word("DEFAULT") else at
        if end == at or not draws_from_sequence(tokens[at + 1 : end]):
            kept.append(tokens[at])
            at += 1
            continue
        if kept and kept[-1].is_word("SET"):
            kept[-1:] = tokenize_with_spaces("DROP DEFAULT")
        at = end
    return kept


def _find_default_end(tokens: Sequence[Token], at: int) -> int:
    """The index after the default that begins at `at`."""
    if at < len(tokens) and tokens[at].is_mark("("):
        return find_closing(tokens, at) + 1
    if at + 1 < len(tokens) and tokens[at + 1].is_mark("("):
        return find_closing(tokens, at + 1) + 1
    if at + 3 < len(tokens) and tokens[at].is_word("NEXT", "PREVIOUS"):
        return at + (6 if at + 4 < len(tokens) and tokens[at + 4].is_mark(".") else 4)
    return at + 1


def unqualify_columns(tokens: Sequence[Token], rest: int, table: NameRef) -> list[Token]:
    """An ALTER TABLE or CREATE TABLE of `table` whose columns are named without table and database.

    `rest`: the index of the first token after the table's name.
    """
    tokens = [*tokens[:rest], *_drop_own_qualifiers(tokens[rest:], table)]
    if tokens[0].is_word("ALTER"):
        return [*tokens[:rest], *join_list([_unqualify_spec(spec) for spec in split_list(tokens[rest:])])]
    if rest >= len(tokens) or not tokens[rest].is_mark("("):
        return tokens
    end = find_closing(tokens, rest)
    elements = [_unqualify_element(element) for element in split_list(tokens[rest + 1 : end])]
    return [*tokens[: rest + 1], *join_list(elements), *tokens[end:]]


def _drop_own_qualifiers(tokens: Sequence[Token], table: NameRef) -> list[Token]:
    """`tokens` with `column` in place of `db.table.column`, in expressions too."""
    kept, at = list[Token](), 0
    while at < len(tokens):
        five = tokens[at : at + 5]
        marks = len(five) == 5 and five[1].is_mark(".") and five[3].is_mark(".") and five[4].kind in _NAMES
        if marks and fold_pair((five[0].value, five[2].value)) == fold_pair(table):
            kept.append(Token(five[4].kind, five[4].text, five[0].space))
            at += 5
        else:
            kept.append(tokens[at])
            at += 1
    return kept


def _unqualify_spec(spec: list[Token]) -> list[Token]:
    if len(spec) < 2 or not spec[0].is_word("ADD", "ALTER", "CHANGE", "DROP", "MODIFY"):
        return spec
    if spec[1].is_word(*KEY_HEADS, "PARTITION") or is_period(spec):
        return spec
    at = skip_exists(spec, 1 + spec[1].is_word("COLUMN"))
    if at < len(spec) and spec[at].is_mark("("):
        end = find_closing(spec, at)
        elements = [_unqualify_element(element) for element in split_list(spec[at + 1 : end])]
        return [*spec[: at + 1], *join_list(elements), *spec[end:]]
    plain = _unqualify_name(spec, at)
    return _unqualify_name(plain, at + 1) if spec[0].is_word("CHANGE") else plain


def _unqualify_element(element: list[Token]) -> list[Token]:
    is_key = not element or element[0].is_word(*KEY_HEADS, "PERIOD", "LIKE")
    return element if is_key else _unqualify_name(element, 0)


def _unqualify_name(tokens: list[Token], at: int) -> list[Token]:
    """`tokens` with `column` in place of `table.column` at `at`."""
    qualified = len(tokens) > at + 2 and tokens[at + 1].is_mark(".") and tokens[at + 2].kind in _NAMES
    if not qualified:
        return tokens
    return [*tokens[:at], Token(tokens[at + 2].kind, tokens[at + 2].text, space=True), *tokens[at + 3 :]]
