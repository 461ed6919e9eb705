"""Conditions that find the rows with some keys or some images, on every server and for every type, and count them.

A key of several columns is compared column by column, `(a = 1 AND b = 2) OR …`. MariaDB (measured on 10.11) compares a
list of row values, `(a, b) IN ((1, 2), …)`, without converting it to the character sets and types of the columns: it
then finds none of the rows. The list is used where it was proven to find them all, because a server parses it at half
the cost or less (docs/understand/apply.md). One row value alone makes MariaDB read the whole table.

A row without a key is found by its image (R-44), in forms measured on MariaDB 10.11: a FLOAT by its widened value, JSON
by content, with an explicit NOT NULL because JSON_EQUALS(NULL, x) counts as true there, text by bytes after the
comparison that can use an index, because a collation would treat `A` and `a ` as equal to `a`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.sql import Dialect
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.generation import list_key_columns
from binlake.statements.literal import (
    JoinedTexts,
    LiteralKind,
    append_commas,
    build_large_scalar,
    choose_literal_kind,
    format_match,
    format_match_literals,
    join_tuples,
    quote_name,
    quote_qualified_name,
)

TERMS_A_STATEMENT = 100
"""Most keys that one statement compares column by column: servers take a time for a list of ORs that grows faster than
the list, and they limit the memory that finding its ranges may take."""

_OR = " OR "
_PROVEN_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "binary"})
_PROVEN = t.INTEGERS | t.DATES | t.MOMENTS | {t.NEWDECIMAL, t.YEAR} | (t.STRINGS - t.BLOBS)
_LITERAL = r"X?'(?:[^'\\]|\\.)*'|0x[0-9A-Fa-f]+|[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
_NAME = r"`(?:[^`]|``)+`"
_DELETE = re.compile(rf"DELETE FROM ({_NAME}\.{_NAME}) WHERE (.*)", re.DOTALL)
_LIST = re.compile(rf"(?:({_NAME})|\(({_NAME}(?:,{_NAME})+)\)) IN \((.*)", re.DOTALL)
_PAIR = re.compile(rf"({_NAME}) ?= ?({_LITERAL})", re.DOTALL)
_CHARACTERS = t.STRINGS
_LEAST = 4
"""Minimum average number of keys per range; below it, a list is shorter."""


def finds_row_values(columns: Sequence[ColumnInfo], dialect: Dialect) -> bool:
    """True if a list of two or more row values of `columns` finds each row, on a target with the source's types."""
    if any(column.has_empty_member for column in columns):
        # Such a column is compared by number, which MySQL does not do in a list.
        return False
    return dialect != "mariadb" or all(
        column.tp in _PROVEN and (column.tp not in t.STRINGS or column.charset.lower() in _PROVEN_CHARSETS)
        for column in columns
    )


class KeyConditions:
    """Conditions for rows with the keys in `values` (canonical texts, one Arrow column for each of `columns`).

    `alike`: the target's key has the source's type. `exact`: by index of a column, the expression that must be equal
    too. `prefix` qualifies the names of the columns.
    """

    def __init__(
        self,
        columns: Sequence[ColumnInfo],
        values: Sequence[Any],
        dialect: Dialect,
        *,
        alike: bool = False,
        exact: Sequence[str] = (),
        prefix: str = "",
    ) -> None:
        self._names = [prefix + quote_name(column.name) for column in columns]
        self._exact = list(exact) or self._names
        self._literals = [format_match_literals(value, column) for value, column in zip(values, columns, strict=True)]
        self._listed = len(columns) == 1 or (alike and finds_row_values(columns, dialect))
        if self._listed:
            texts = append_commas(self._literals[0] if len(self._literals) == 1 else join_tuples(self._literals))
        else:
            texts = self._format_terms()
        self._texts = JoinedTexts(texts, "," if self._listed else _OR)

    @property
    def sizes(self) -> Any:
        """The most bytes that each key takes in a condition of several keys (numpy)."""
        return self._texts.sizes * (2 if self._listed and self._exact != self._names else 1)

    def format_conditions(self, start: int, stop: int) -> Iterator[tuple[str, int]]:
        """Conditions that together find the keys `start` to `stop` - 1, each with its number of keys."""
        step = stop - start if self._listed else TERMS_A_STATEMENT
        for first in range(start, stop, max(step, 1)):
            last = min(first + step, stop)
            yield self._format_condition(first, last), last - first

    def format_single(self, index: int) -> str:
        """The condition for one key."""
        literals = [literals[index].as_py() for literals in self._literals]
        return _compare_columns(self._names, self._exact, literals)

    def _format_condition(self, start: int, stop: int) -> str:
        if len(self._names) > 1 and stop - start == 1:
            return self.format_single(start)
        joined = self._texts.join_rows(start, stop).decode()
        if not self._listed:
            return joined
        listed = f"{_format_tuple(self._names)} IN ({joined})"
        return listed if self._exact == self._names else f"{listed} AND {_format_tuple(self._exact)} IN ({joined})"

    def _format_terms(self) -> Any:
        """`(a = 1 AND b = 2) OR ` per row."""
        pieces: list[Any] = []
        for name, exact, literals in zip(self._names, self._exact, self._literals, strict=True):
            pieces += [build_large_scalar(f"{' AND ' if pieces else '('}{name}="), literals]
            pieces += [build_large_scalar(f" AND {exact}="), literals] if exact != name else []
        return pc.binary_join_element_wise(*pieces, build_large_scalar(f"){_OR}"), build_large_scalar(""))


def format_key_condition(names: Sequence[str], literals: Sequence[str]) -> str:
    """The condition for one key of columns `names` (quoted)."""
    return _compare_columns(names, names, literals)


def format_keys_condition(names: Sequence[str], keys: Sequence[Sequence[str]]) -> str:
    """The condition for the rows with some `keys` (literals by column of `names`): few keys if they have several
    columns (TERMS_A_STATEMENT)."""
    if len(names) == 1:
        return f"{names[0]} IN ({','.join(literal for (literal,) in keys)})"
    return _OR.join(f"({format_key_condition(names, key)})" for key in keys)


def _compare_columns(names: Sequence[str], exact: Sequence[str], literals: Sequence[str]) -> str:
    parts = []
    for name, other, literal in zip(names, exact, literals, strict=True):
        parts += [f"{name}={literal}"] + ([f"{other}={literal}"] if other != name else [])
    return " AND ".join(parts)


def _format_tuple(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"({','.join(names)})"


def list_deleted_keys(sql: str) -> list[str]:
    """For a DELETE by key: one query for each of its keys, which gives a row if the key is there. Else empty."""
    match = _DELETE.match(sql)
    if match is None:
        return []
    table, condition = match.groups()
    return [f"SELECT 1 FROM {table} WHERE {format_key_condition(*key)}" for key in _split_condition(condition)]


def _split_condition(condition: str) -> Iterator[tuple[list[str], list[str]]]:
    """The names and the literals of each key in a condition of the forms above."""
    listed = _LIST.match(condition)
    if listed is not None:
        names = re.findall(_NAME, listed[1] or listed[2])
        literals = re.findall(_LITERAL, listed[3], re.DOTALL)
    else:
        pairs = _PAIR.findall(condition)
        names = list(dict.fromkeys(name for name, _ in pairs))
        literals = [literal for _, literal in pairs]
    for start in range(0, len(literals), len(names) or 1):
        yield names, literals[start : start + len(names)]


def format_image_condition(text: str | None, column: ColumnInfo, dialect: Dialect) -> str:
    """The condition for one value; the reference implementation of `format_image_conditions`."""
    if text is None:
        return f"{quote_name(column.name)} IS NULL"
    return _format_template(column, dialect).replace("\0", format_match(text, column))


def format_image_conditions(values: Any, column: ColumnInfo, dialect: Dialect) -> Any:
    """An Arrow column of conditions `column equals value`, including NULL, for a column of canonical text."""
    literals = format_match_literals(values, column)
    parts = _format_template(column, dialect).split("\0")
    pieces: list[Any] = [build_large_scalar(parts[0])]
    for part in parts[1:]:
        pieces += [literals, build_large_scalar(part)]
    present = pc.binary_join_element_wise(*pieces, build_large_scalar(""))
    return pc.if_else(values.is_null(), build_large_scalar(f"{quote_name(column.name)} IS NULL"), present)


def format_exact_name(column: ColumnInfo) -> str:
    """The column for comparisons with text literals: bytewise if its collation may treat different texts as equal."""
    name = quote_name(column.name)
    if choose_literal_kind(column) is LiteralKind.TEXT and column.tp in _CHARACTERS:
        return f"CAST(CONVERT({name} USING utf8mb4) AS BINARY)"
    return name


def _format_template(column: ColumnInfo, dialect: Dialect) -> str:
    """The condition with a NUL byte as the placeholder of the literal."""
    name = quote_name(column.name)
    kind = choose_literal_kind(column)
    if kind is LiteralKind.JSON:
        if dialect != "mariadb":
            return f"({name} IS NOT NULL AND {name} = CAST(\0 AS JSON))"
        # JSON_EQUALS does not work for values nested deeper than 31 levels; these are compared by text.
        return f"({name} IS NOT NULL AND (JSON_EQUALS({name}, \0) OR CAST({name} AS BINARY) = CAST(\0 AS BINARY)))"
    if format_exact_name(column) != name:
        return f"{name} <=> \0 AND {format_exact_name(column)} <=> CAST(\0 AS BINARY)"
    return f"{name} <=> \0"


class KeyCounts:
    """The queries that count the rows of `table` with some of the keys `columns` (canonical texts, by key column).

    `alike`: the target's key has the source's type. Consecutive integers are then counted as ranges: a key exists at
    most once, so a range has its full count only if each of its numbers exists.
    """

    def __init__(self, table: TableDef, columns: Sequence[Any], *, dialect: Dialect, alike: bool) -> None:
        keys = list_key_columns(table)
        self._table = quote_qualified_name(table.db, table.name)
        self._name = quote_name(keys[0].name)
        # Texts are compared by bytes too, because another batch may have a key that is equal in the collation.
        exact = [format_exact_name(column) for column in keys]
        self._conditions = KeyConditions(keys, columns, dialect, alike=alike, exact=exact)
        self._numbers = _read_integers(columns[0], keys[0]) if alike and len(keys) == 1 else None

    @property
    def sizes(self) -> Any:
        """The most bytes that each key takes in a query (numpy)."""
        return self._conditions.sizes

    def format_query(self, start: int, stop: int) -> str:
        """The query that counts the keys `start` to `stop` - 1."""
        counts = [
            f"SELECT COUNT(*) FROM {self._table} WHERE {part}"
            for part, _ in self._conditions.format_conditions(start, stop)
        ]
        listed = counts[0] if len(counts) == 1 else f"SELECT {'+'.join(f'({count})' for count in counts)}"
        ranges = self._format_ranges(start, stop)
        # The list has at most the size that the batch was cut for; a range is used only if it is shorter.
        ranged = f"SELECT COUNT(*) FROM {self._table} WHERE {ranges}"
        return ranged if ranges and len(ranged.encode()) < len(listed.encode()) else listed

    def _format_ranges(self, start: int, stop: int) -> str:
        """The keys as ranges without gaps; empty if a list is certainly shorter."""
        if self._numbers is None:
            return ""
        numbers = np.sort(self._numbers[start:stop])
        ends = np.flatnonzero(np.diff(numbers) != 1)
        if _LEAST * (len(ends) + 1) > len(numbers):
            return ""
        firsts, lasts = numbers[np.append(0, ends + 1)].tolist(), numbers[np.append(ends, -1)].tolist()
        return " OR ".join(f"{self._name} BETWEEN {low} AND {high}" for low, high in zip(firsts, lasts, strict=True))


def _read_integers(values: Any, column: ColumnInfo) -> Any:
    """The keys as 64-bit integers (numpy); None if they are not integers."""
    if column.tp not in t.INTEGERS:
        return None
    try:
        return np.asarray(values.cast(pa.int64()))
    except pa.ArrowInvalid:
        # Unsigned keys above 2^63 are counted by a list.
        return None
