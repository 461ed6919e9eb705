"""Texts of a source's statements: divided into clauses, freed from the source's surroundings, refused if rows get lost.

A tracker and a target have neither the source's tablespaces, directories and key rings nor its sequences, and other
names of its databases. So a definition loses where its rows are stored, defaults that a sequence gives (the log has
each value), and qualifiers of its columns. Clauses, options and defaults are found by the grammar: a column may have
any of the words below as its name. A statement that changes rows in a way that the log does not show is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from binlake.dialect.classify import KEY_HEADS, NameRef, is_period, read_added_elements
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    find_closing,
    join_list,
    skip_exists,
    split_list,
    split_partitioning,
    tokenize,
    tokenize_with_spaces,
)
from binlake.errors import SchemaError
from binlake.rows.schema.forms import fold_pair

_PARTITION_VERBS = (
    "ANALYZE", "CHECK", "COALESCE", "DROP", "OPTIMIZE", "REBUILD", "REORGANIZE", "REPAIR", "TRUNCATE",
)  # fmt: skip
_OPTIONS = (
    "ALGORITHM", "AUTOEXTEND_SIZE", "AUTO_INCREMENT", "AVG_ROW_LENGTH", "CHARACTER", "CHARSET", "CHECKSUM", "COLLATE",
    "COMMENT",
    "COMPRESSION", "CONNECTION", "DATA", "DELAY_KEY_WRITE", "ENCRYPTION", "ENGINE", "ENGINE_ATTRIBUTE", "INDEX",
    "INSERT_METHOD", "KEY_BLOCK_SIZE", "LOCK", "MAX_ROWS", "MIN_ROWS", "PACK_KEYS", "PAGE_CHECKSUM", "PASSWORD",
    "ROW_FORMAT", "SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE", "STATS_AUTO_RECALC", "STATS_PERSISTENT",
    "STATS_SAMPLE_PAGES", "STORAGE", "TABLESPACE", "TRANSACTIONAL", "TYPE", "UNION",
)  # fmt: skip
"""First words of table options: a value follows, with or without `=`, and possibly the next option."""
_STORAGE = (
    "AUTOEXTEND_SIZE", "COMPRESSION", "CONNECTION", "DATA", "ENCRYPTED", "ENCRYPTION", "ENCRYPTION_KEY_ID",
    "ENGINE_ATTRIBUTE", "INDEX", "INSERT_METHOD", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "SECONDARY_ENGINE",
    "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "STORAGE", "TABLESPACE", "UNION",
)  # fmt: skip
"""First words of the options that name something outside the table."""
_PARTITION_STORAGE = ("DATA", "ENGINE_ATTRIBUTE", "INDEX", "NODEGROUP", "SECONDARY_ENGINE_ATTRIBUTE", "TABLESPACE")
_NAMES = (TokenKind.NAME, TokenKind.WORD)
_PARTITION_HEADS = ("PARTITION", "SUBPARTITION", "INTO", "DIV", "MOD", "BY")
_REMOVE_ROWS = ("UNIQUE", "PRIMARY", "AUTO_INCREMENT", "PERIOD", "PARTITION", "CHECK", "FOREIGN")
"""Words of an ADD that existing rows may not fit."""
_PLAIN = ("COMMENT", "DEFAULT", "ENGINE", "RENAME", "ROW_FORMAT")


def read_column_definitions(create: str) -> dict[str, list[Token]]:
    """The definition of each column in a SHOW CREATE TABLE text, as tokens without comments, by name."""
    tokens = [token for token in tokenize(create) if token.kind is not TokenKind.COMMENT]
    start = next((at for at, token in enumerate(tokens) if token.is_mark("(")), None)
    if start is None:
        raise SchemaError("a SHOW CREATE TABLE text has no columns", where={"text": create[:80]})
    parts = split_list(tokens[start + 1 : find_closing(tokens, start)])
    return {part[0].value: part[1:] for part in parts if part and part[0].kind is TokenKind.NAME}


def read_default_value(definition: Sequence[Token]) -> list[Token]:
    """What follows DEFAULT in a column's definition, an expression with its parentheses; empty if there is none."""
    at = next((at + 1 for at, token in enumerate(definition) if token.is_word("DEFAULT")), len(definition))
    is_expression = at < len(definition) and definition[at].is_mark("(")
    end = find_closing(definition, at) + 1 if is_expression else at + 1
    return list(definition[at:end])


def split_clauses(specs: Sequence[Token]) -> Iterator[list[Token]]:
    """Single clauses: `ADD (a INT, b INT)` is two, and options may follow each other without a comma.

    The last one may be a partitioning, which has no comma before it.
    """
    listed, partitioning = split_partitioning(specs)
    for spec in _split_at_commas(listed):
        spec = _strip_wait(spec)
        elements = read_added_elements(spec)
        if elements:
            exists = " IF NOT EXISTS" * any(token.is_word("EXISTS") for token in spec[:5])
            for part in elements:
                head = tokenize_with_spaces("ADD" if part[0].is_word(*KEY_HEADS) else f"ADD COLUMN{exists}")
                yield [*head, replace(part[0], space=True), *part[1:]]
        elif spec:
            yield from split_options(spec)
    if partitioning:
        yield partitioning


def _split_at_commas(specs: Sequence[Token]) -> list[list[Token]]:
    """The clauses separated by commas; a partition clause and ORDER BY have lists of names."""
    parts = split_list(specs)
    at = next((n for n, part in enumerate(parts) if _is_partition_clause(part)), len(parts))
    joined = list[list[Token]]()
    for part in parts[:at]:
        if joined and joined[-1][:1] and joined[-1][0].is_word("ORDER") and _is_order_element(part):
            joined[-1] += [Token(TokenKind.MARK, ","), *part]
        else:
            joined.append(part)
    return [*joined, *([join_list(parts[at:])] if parts[at:] else [])]


def _is_order_element(part: Sequence[Token]) -> bool:
    """Whether a part between commas is `column [ASC | DESC]`: no clause consists of a name alone."""
    plain = [token for token in part if not token.is_word("ASC", "DESC")]
    is_name = len(plain) == 1 and not plain[0].is_word("FORCE", "NOWAIT")
    return is_name or (len(plain) > 1 and plain[1].is_mark("."))


def _is_partition_clause(part: Sequence[Token]) -> bool:
    return len(part) > 1 and part[0].is_word(*_PARTITION_VERBS) and part[1].is_word("PARTITION")


def _strip_wait(spec: list[Token]) -> list[Token]:
    if spec[:1] and spec[0].is_word("WAIT"):
        return spec[2:]
    return spec[1:] if spec[:1] and spec[0].is_word("NOWAIT") else spec


def split_options(spec: list[Token]) -> Iterator[list[Token]]:
    """`ENGINE=InnoDB COMMENT 'x'`: each option is a separate clause."""
    starts, at = list[int](), 0
    while at < len(spec):
        value = _find_option_value(spec, at)
        if value is None:
            break
        starts.append(at)
        at = (find_closing(spec, value) if value < len(spec) and spec[value].is_mark("(") else value) + 1
    for first, end in pairwise([0, *starts[1:], len(spec)]):
        yield spec[first:end]


def _find_option_value(spec: Sequence[Token], at: int) -> int | None:
    """The index of the value of the option that begins at `at`; None if no option begins there."""
    at += spec[at].is_word("DEFAULT")
    if at >= len(spec) or spec[at].kind not in (TokenKind.WORD, TokenKind.NAME):
        return None
    end = at + 1
    if end < len(spec) and spec[end].is_word("SET", "DIRECTORY"):
        end += 1
    elif spec[at].is_word("CHARACTER", "DATA", "INDEX"):
        return None
    has_mark = end < len(spec) and spec[end].is_mark("=")
    return end + has_mark if has_mark or spec[at].is_word(*_OPTIONS) else None


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


def refuse_unlogged_rows(specs: Sequence[Token]) -> None:
    """Raises SchemaError for clauses that change a table's rows without logging them."""
    for spec in split_list(specs):
        if spec and spec[0].is_word("ADD") and draws_from_sequence(spec):
            raise SchemaError(
                "a new column has a default from a sequence: the log does not have the values that older rows get",
                hint="if the table was empty, set in [[source.replace]] of feeder.toml the statement without this"
                " default; otherwise exclude the table (ignore-tables) or take a new snapshot of the source after this"
                " statement (binlake bootstrap)",
                where=_name_clause(spec),
            )
        if spec and spec[0].is_word("DISCARD", "IMPORT", "EXCHANGE"):
            raise SchemaError(
                "a statement changes a table's rows without logging them",
                hint="take a new snapshot of the source after this statement (binlake bootstrap)",
                where=_name_clause(spec),
            )


def refuse_ignored_rows(specs: Sequence[Token]) -> None:
    """Raises SchemaError for clauses of an ALTER IGNORE TABLE that may remove or change rows, which no log shows."""
    for spec in split_list(specs):
        if not _keeps_rows(spec):
            raise SchemaError(
                "ALTER IGNORE removes or changes rows that do not fit, without logging them",
                hint="if it reported no duplicates and no warnings, name its transaction in [[source.replace]] of"
                " feeder.toml with the same statement without IGNORE (a target that has duplicates then refuses it);"
                " else take a new snapshot of the source after this statement (binlake bootstrap)",
                where=_name_clause(spec),
            )


def _name_clause(spec: Sequence[Token]) -> dict[str, str]:
    """The clause, for the `where` of an error; a list of partitions or values may be long."""
    return {"clause": " ".join(token.text for token in spec)[:200]}


def _keeps_rows(spec: Sequence[Token]) -> bool:
    if not spec or spec[0].is_word(*_PLAIN):
        return True
    if spec[0].is_word("DROP"):
        return any(token.is_word("INDEX", "KEY") for token in spec[1:3])
    adds = spec[0].is_word("ADD") and not any(token.is_word(*_REMOVE_ROWS) for token in spec)
    return adds or spec[0].is_word("ALTER")
