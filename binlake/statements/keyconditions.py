"""Conditions that find the rows with some keys, on every server and for every type of key.

Rule: a key of several columns is compared column by column, `(a = 1 AND b = 2) OR …`. MariaDB (measured on 10.11)
compares a list of row values, `(a, b) IN ((1, 2), …)`, without converting it to the character sets and types of the
columns: it then finds none of the rows. The list is used where it was proven to find them all, because a server parses
it at half the cost or less (docs/understand/apply.md). One row value alone makes MariaDB read the whole table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.compute as pc

from binlake.base.sql import Dialect
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.statements.columns import (
    JoinedTexts,
    append_commas,
    build_large_scalar,
    format_match_literals,
    join_tuples,
)
from binlake.statements.literal import quote_name

TERMS_A_STATEMENT = 100
"""Most keys that one statement compares column by column: servers take a time for a list of ORs that grows faster than
the list, and they limit the memory that finding its ranges may take."""

_OR = " OR "
_PROVEN_CHARSETS = frozenset({"utf8mb4", "utf8mb3", "utf8", "binary"})
_PROVEN = t.INTEGERS | t.DATES | t.MOMENTS | {t.NEWDECIMAL, t.YEAR} | (t.STRINGS - t.BLOBS)


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
        texts = append_commas(self._format_tuples()) if self._listed else self._format_terms()
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

    def _format_tuples(self) -> Any:
        return self._literals[0] if len(self._literals) == 1 else join_tuples(self._literals)

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


_LITERAL = r"X?'(?:[^'\\]|\\.)*'|0x[0-9A-Fa-f]+|[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?"
_NAME = r"`(?:[^`]|``)+`"
_DELETE = re.compile(rf"DELETE FROM ({_NAME}\.{_NAME}) WHERE (.*)", re.DOTALL)
_LIST = re.compile(rf"(?:({_NAME})|\(({_NAME}(?:,{_NAME})+)\)) IN \((.*)", re.DOTALL)
_PAIR = re.compile(rf"({_NAME}) ?= ?({_LITERAL})", re.DOTALL)


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
