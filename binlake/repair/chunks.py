"""Splits a table into chunks: by ranges of its key if the key's order is known, else by a hash of the row's identity.

Every row of either side belongs to exactly one chunk, even a row that only one side has. An unequal chunk is divided by
hash into parts of few rows each. The order of keys is the target's index's, if it can be derived from texts. A wrong
order would only move a row to a neighbouring chunk on one side; a row that is missing in one chunk and extra in another
is matched when the table's differences are merged (`differences`).

A row's hash is computed alike by a server's SQL and from the lake's texts: the first 64 bits of SHA-256 (MySQL 9.6 has
no MD5) over its texts, each preceded by its length, so that two different rows never have the same text. Hashes are
added: two equal rows would cancel each other under XOR (MISSION U-18). If a server writes a value in another form, the
hashes differ and the rows are compared by value: that takes time, but the result stays right.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.sql import Dialect
from binlake.compare import build_canonical_converter
from binlake.dialect.collations import find_target_collation
from binlake.rows.codec.datum import as_float32, format_double
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import (
    choose_literal_kind,
    format_value_literal,
    is_bytes,
    quote_name,
    render_column_sql,
    render_text_sql,
)

Key = tuple[str, ...]
"""Canonical texts of the columns of a key, none of them NULL."""

_BY_CODE_POINT = frozenset({"utf8mb4_bin", "utf8mb3_bin", "utf8_bin", "ascii_bin"})
_NO_PAD = frozenset({"utf8mb4_nopad_bin", "utf8mb4_0900_bin"})

AnyKey = Sequence[str | None]
"""A key of any table. For a table without a key: the texts of the whole row, including NULLs."""

Rank = Callable[[str], Any]
Hashes = npt.NDArray[np.uint64]
Texts = Mapping[str, Sequence[str | None]]
"""Column name -> canonical texts (as in `mutation`) of all rows."""
HASH = "sha256"
"""The hash function's name in the state that a run stores for the next one."""
_LARGE = t.BLOBS | {t.JSON}
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


class KeyOrder:
    """Compares keys of one table: two ranks compare like the keys in the index."""

    def __init__(self, ranks: Sequence[Rank]) -> None:
        self._ranks = tuple(ranks)

    @classmethod
    def of(cls, table: TableDef, dialect: Dialect) -> KeyOrder | None:
        """The order of the table's key; None without a key, or if only the server knows the order."""
        identity = table.find_identity()
        if identity.kind == "row":
            return None
        candidates = [
            _choose_rank(column, dialect)
            for name in identity.columns
            if (column := table.find_column(name)) is not None
        ]
        ranks = [rank for rank in candidates if rank is not None]
        return cls(ranks) if len(ranks) == len(identity.columns) else None

    def compute_rank(self, key: Sequence[str]) -> tuple[Any, ...]:
        """The value by which `key` is compared."""
        return tuple(rank(text) for rank, text in zip(self._ranks, key, strict=True))


def _choose_rank(column: ColumnInfo, dialect: Dialect) -> Rank | None:
    if column.tp in t.INTEGERS or column.tp == t.YEAR:
        return int
    if column.tp == t.NEWDECIMAL:
        return Decimal
    # These texts have equal widths, and upper-case hex sorts like its bytes.
    if column.tp in t.DATES | t.MOMENTS or (column.is_binary and column.tp not in (t.BIT, *t.BLOBS)):
        return str
    if column.tp in t.STRINGS - t.BLOBS:
        return _choose_text_rank(column, find_target_collation(column.collate, dialect))
    return None


def _choose_text_rank(column: ColumnInfo, collation: str) -> Rank | None:
    if collation in _NO_PAD:
        return str
    # Texts are compared as if padded with blanks, so `a` followed by a tab sorts before `a`.
    width = max(column.flen, 1)
    return (lambda text: text.ljust(width)) if collation in _BY_CODE_POINT else None


def render_hash_sql(columns: Sequence[ColumnInfo]) -> str:
    """The SQL of a row's hash over `columns`: an unsigned 64-bit number."""
    row = ",".join(_render_part_sql(column) for column in columns)
    return f"CAST(CONV(LEFT(SHA2(CONCAT({row}),256),16),16,10) AS UNSIGNED)"


def build_fold(column: ColumnInfo) -> Callable[[str | None], str | None]:
    """A function whose results are equal for canonical texts that docs/understand/equality.md calls equal."""
    # The lake's text of a binary value already has that page's form.
    return (lambda text: text) if column.is_binary else build_canonical_converter(column.type_name)


def hash_texts(columns: Sequence[ColumnInfo], texts: Texts) -> Hashes:
    """The value of `render_hash_sql` for each row of `texts`."""
    parts = [_encode_part(column, texts[column.name]) for column in columns]
    rows = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string())).cast(pa.large_binary())
    sha256 = hashlib.sha256
    numbers = (int.from_bytes(sha256(row, usedforsecurity=False).digest()[:8], "big") for row in rows.to_pylist())
    return np.fromiter(numbers, np.uint64, len(rows))


def _render_part_sql(column: ColumnInfo) -> str:
    if column.tp in _LARGE:
        return f"IFNULL(SHA2({render_column_sql(column)},256),'-')"
    text = f"HEX({quote_name(column.name)})" if is_bytes(column) else render_text_sql(column)
    return f"IFNULL(CONCAT(LENGTH({text}),':',{text}),'-')"


def _encode_part(column: ColumnInfo, texts: Sequence[str | None]) -> Any:
    if column.tp in _LARGE:
        return pa.array([_hash_large(column, text) for text in texts], pa.large_string())
    if column.tp == t.FLOAT:
        texts = [None if text is None else format_double(as_float32(text)) for text in texts]
    values = pa.array(texts, pa.large_string())
    sizes = pc.binary_length(values).cast(pa.large_string())
    return pc.fill_null(pc.binary_join_element_wise(sizes, values, pa.scalar(":", pa.large_string())), "-")


def _hash_large(column: ColumnInfo, text: str | None) -> str:
    if text is None:
        return "-"
    data = bytes.fromhex(text) if column.is_binary else text.encode()
    return hashlib.sha256(data, usedforsecurity=False).hexdigest()
