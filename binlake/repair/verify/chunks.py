"""Splits a table into chunks: by ranges of its key if the key's order is known, else by a hash of the row's identity.

Every row of either side belongs to exactly one chunk, even a row that only one side has. An unequal chunk is divided by
hash into parts of few rows each.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from binlake.base.sql import Dialect
from binlake.repair.verify.keyorder import Key, KeyOrder
from binlake.repair.verify.texts import HASH, Hashes, Texts, hash_texts, render_hash_sql
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.statements.literal import choose_literal_kind, format_value_literal, quote_name

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cuts:
    """`uppers`: the last key of each range except the last, open one; or `buckets` > 0: the number of hash chunks."""

    uppers: tuple[Key, ...] = ()
    buckets: int = 0

    @property
    def count(self) -> int:
        """Number of chunks, numbered from 0."""
        return self.buckets or len(self.uppers) + 1

    def to_json(self) -> str:
        """For the table `verify`."""
        return json.dumps({"uppers": self.uppers, "buckets": self.buckets, "hash": HASH}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Cuts | None:
        """Parse what `to_json` wrote; None if another hash function assigned the rows to buckets."""
        raw = json.loads(text)
        if raw["buckets"] and raw.get("hash") != HASH:
            return None
        return cls(tuple(tuple(key) for key in raw["uppers"]), raw["buckets"])


@dataclass(frozen=True)
class ChunkPlan:
    """`table` (in the target's definition) split by `cuts`."""

    table: TableDef
    dialect: Dialect
    cuts: Cuts

    @cached_property
    def key(self) -> tuple[ColumnInfo, ...]:
        """The columns that identify a row."""
        names = self.table.find_identity().columns
        return tuple(column for name in names if (column := self.table.find_column(name)) is not None)

    @cached_property
    def row_sql(self) -> str:
        """The hash of a row, in SQL."""
        return render_hash_sql(self.table.row_columns)

    @cached_property
    def key_sql(self) -> str:
        """The hash of a row's identity, in SQL."""
        return render_hash_sql(self.key)

    def render_condition(self, number: int) -> str:
        """The condition of chunk `number`, in SQL."""
        if self.cuts.buckets:
            return f"{self.key_sql} % {self.cuts.buckets} = {number}" if self.cuts.buckets > 1 else "TRUE"
        uppers = self.cuts.uppers
        below = [render_after_key(self.key, uppers[number - 1])] if number else []
        upto = [f"NOT {render_after_key(self.key, uppers[number])}"] if number < len(uppers) else []
        head = self._render_first_column_bounds(number)
        return " AND ".join([*head, *below, *upto]) or "TRUE"

    def render_part_sql(self, parts: int) -> str:
        """The number of a row's part inside its chunk, in SQL: 0 to `parts` - 1."""
        return f"({self.key_sql} DIV {max(self.cuts.buckets, 1)}) % {parts}"

    def hash_keys(self, texts: Texts) -> Hashes:
        """The hash of each row's identity."""
        return hash_texts(self.key, texts)

    def hash_rows(self, texts: Texts) -> Hashes:
        """The hash of each row."""
        return hash_texts(self.table.row_columns, texts)

    def compute_chunk_numbers(self, texts: Texts) -> Numbers:
        """The chunk number of each row."""
        count = len(texts[self.key[0].name])
        if self.cuts.buckets:
            return (self.hash_keys(texts) % np.uint64(self.cuts.buckets)).astype(np.int64)
        if not self.cuts.uppers:
            return np.zeros(count, np.int64)
        rank = self._order.compute_rank
        keys = zip(*(texts[column.name] for column in self.key), strict=True)
        chunks = (bisect_left(self._ranks, rank(key)) for key in keys)
        return np.fromiter(chunks, np.int64, count)

    def compute_part_numbers(self, texts: Texts, parts: int) -> Numbers:
        """The value of `render_part_sql` for each row."""
        return (self.hash_keys(texts) // np.uint64(max(self.cuts.buckets, 1)) % np.uint64(parts)).astype(np.int64)

    @cached_property
    def _order(self) -> KeyOrder:
        order = KeyOrder.of(self.table, self.dialect)
        if order is None:
            raise TypeError(f"{self.table.db}.{self.table.name} is not split by ranges")
        return order

    @cached_property
    def _ranks(self) -> list[tuple[object, ...]]:
        return [self._order.compute_rank(key) for key in self.cuts.uppers]

    def _render_first_column_bounds(self, number: int) -> list[str]:
        """Separate bounds of the first column, for which every optimizer uses an index."""
        if len(self.key) == 1:
            return []
        name, uppers, column = quote_name(self.key[0].name), self.cuts.uppers, self.key[0]
        least = [f"{name} >= {_render_literal(column, uppers[number - 1][0])}"] if number else []
        return least + ([f"{name} <= {_render_literal(column, uppers[number][0])}"] if number < len(uppers) else [])


def render_after_key(columns: Sequence[ColumnInfo], key: Key) -> str:
    """The condition `(columns) > key`, spelled out, so that servers use an index; for row values they may not."""
    terms, equal = [], ""
    for column, text in zip(columns, key, strict=True):
        name, literal = quote_name(column.name), _render_literal(column, text)
        terms.append(f"{equal}{name} > {literal}")
        equal += f"{name} = {literal} AND "
    return f"({' OR '.join(f'({term})' for term in terms) if len(terms) > 1 else terms[0]})"


def _render_literal(column: ColumnInfo, text: str) -> str:
    return format_value_literal(text, choose_literal_kind(column))
