"""Divide the text of an ALTER TABLE into its clauses, and the options of a table into single options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from binlake.dialect.classify import KEY_HEADS, read_added_elements
from binlake.dialect.tokens import (
    Token,
    TokenKind,
    find_closing,
    join_list,
    split_list,
    split_partitioning,
    tokenize_with_spaces,
)

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
