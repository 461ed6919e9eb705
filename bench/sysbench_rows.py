"""The loads of bench_end_to_end.py: tables of sysbench's shape and transactions on them, as blocks of numpy columns.

A table is (id bigint key, k int, c varchar(120), pad varchar(60)). A transaction performs each role of its load once;
role r of transaction n acts on table (n + r) mod tables. Texts are slices of one pool, stored as offsets into it.
Numbers are in the range whose varints take four bytes, so all transactions of a load have the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

FIRST_NUMBER, LAST_NUMBER = 1 << 20, 1 << 27
C_BYTES, PAD_BYTES = 120, 60
DB = "sbtest"
_POOL_BYTES = 1 << 24

Numbers = np.ndarray


@dataclass(frozen=True)
class RowRole:
    """An operation of a transaction on one row. `op`: insert, update, or replace (DELETE, then INSERT of the same key).

    `sets`: the columns that an update gives a new value; an inserted row gets new values in all columns.
    """

    op: str
    sets: tuple[str, ...] = ("k", "c", "pad")

    @property
    def changes(self) -> int:
        """Number of row changes that the operation writes."""
        return 2 if self.op == "replace" else 1


@dataclass(frozen=True)
class SysbenchLoad:
    """`tables` tables with `rows` initial rows each, then `transactions` transactions that perform `roles`."""

    name: str
    description: str
    tables: int
    rows: int
    transactions: int
    roles: tuple[RowRole, ...]

    @property
    def changes(self) -> int:
        """Row changes per transaction."""
        return sum(role.changes for role in self.roles)

    def with_scale(self, scale: float) -> SysbenchLoad:
        """Return this load with `scale` times as many transactions; the number of hot rows stays the same."""
        rows = self.rows if len(self.roles) == 1 else int(self.rows * scale)
        return replace(self, transactions=int(self.transactions * scale), rows=rows)

    def list_setup_roles(self) -> tuple[RowRole, ...]:
        """Return the roles of the transactions that insert the initial rows: one row in each table."""
        return (RowRole("insert"),) * self.tables


UPDATE_K, UPDATE_C = RowRole("update", ("k",)), RowRole("update", ("c",))
LOADS = {
    "a": SysbenchLoad("a", "single-row inserts", 1, 0, 200_000, (RowRole("insert"),)),
    "b": SysbenchLoad("b", "single-row updates of 10,000 hot rows", 1, 10_000, 200_000,
                      (RowRole("update", ("k", "c")),)),
    "c": SysbenchLoad("c", "transactions of 5 rows over 4 tables", 4, 25_000, 100_000,
                      (UPDATE_K, UPDATE_C, RowRole("replace"), RowRole("insert"))),
}  # fmt: skip


class RowImages(NamedTuple):
    """Values of many rows; `c` and `pad` are offsets into the pool."""

    id: Numbers
    k: Numbers
    c: Numbers
    pad: Numbers


class SysbenchTable:
    """The rows of a table by number: row n has id FIRST_NUMBER + n."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self.count = 0
        self._values = {name: np.zeros(1024, np.int32) for name in RowImages._fields[1:]}

    def insert(self, count: int) -> RowImages:
        """Insert `count` new rows and return their values."""
        numbers = np.arange(self.count, self.count + count)
        self.count += count
        for name, values in self._values.items():
            if self.count > len(values):
                self._values[name] = values = np.resize(values, 2 * self.count)
            values[numbers] = self._draw_values(name, count)
        return self._build_image(numbers)

    def change(self, numbers: Numbers, sets: dict[str, Numbers]) -> tuple[RowImages, RowImages]:
        """Change rows `numbers` in order (a row may occur more than once); return (before, after) of each change.

        `sets`: for each column, a mask of the changes that give it a new value.
        """
        pairs = {name: self._chain_values(name, numbers, mask) for name, mask in sets.items()}
        ids = FIRST_NUMBER + numbers
        return tuple(RowImages(ids, *(pairs[name][half] for name in RowImages._fields[1:])) for half in (0, 1))  # type: ignore[return-value]

    def _chain_values(self, name: str, numbers: Numbers, sets: Numbers) -> tuple[Numbers, Numbers]:
        base, count = self._values[name], len(numbers)
        order = np.argsort(numbers, kind="stable")
        rows, places = numbers[order], np.arange(count)
        first = np.append(True, rows[1:] != rows[:-1])
        start = np.maximum.accumulate(np.where(first, places, 0))
        last_set = np.maximum.accumulate(np.where(sets[order], places, -1))
        fresh = self._draw_values(name, count)
        after_sorted = np.where(last_set >= start, fresh[last_set], base[rows])
        before_sorted = np.where(first, base[rows], np.append(0, after_sorted[:-1]))
        before, after = np.empty(count, np.int32), np.empty(count, np.int32)
        before[order], after[order] = before_sorted, after_sorted
        ends = np.append(first[1:], True)
        base[rows[ends]] = after_sorted[ends]
        return before, after

    def _draw_values(self, name: str, count: int) -> Numbers:
        low, high = (FIRST_NUMBER, LAST_NUMBER) if name == "k" else (0, _POOL_BYTES - C_BYTES)
        return self._random.integers(low, high, count, np.int32)

    def _build_image(self, numbers: Numbers) -> RowImages:
        return RowImages(FIRST_NUMBER + numbers, *(self._values[name][numbers] for name in RowImages._fields[1:]))

    def read_rows(self) -> RowImages:
        """Return the current values of all rows."""
        return self._build_image(np.arange(self.count))


class SysbenchWriter:
    """Generates the transactions of a load from a seed; `tables` hold the rows expected after those generated."""

    def __init__(self, load: SysbenchLoad, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._pool = np.frombuffer(_draw_digits(self._random), np.uint8)
        self.load = load
        self.tables = [SysbenchTable(self._random) for _ in range(load.tables)]
        windows = np.lib.stride_tricks.sliding_window_view
        self._views = {"c": windows(self._pool, C_BYTES), "pad": windows(self._pool, PAD_BYTES)}

    def build_block(self, roles: tuple[RowRole, ...], first: int, count: int) -> list[list[RowImages]]:
        """Generate `count` transactions from number `first`: by role, its row images, one row per transaction."""
        numbers = np.arange(first, first + count)
        by_table = [self._on_table(position, table, roles, numbers) for position, table in enumerate(self.tables)]
        images = []
        for number, role in enumerate(roles):
            at = (numbers + number) % len(self.tables)
            halves = range(1) if role.op == "insert" else range(2)
            images.append([_pick([by_table[t][number][half] for t in range(len(self.tables))], at) for half in halves])
        return images

    def read_texts(self, name: str, offsets: Numbers) -> np.ndarray:
        """Return the texts of column `name` as rows of bytes."""
        texts: np.ndarray = self._views[name][offsets]
        return texts

    def iterate_rows(self, table: int) -> Iterator[tuple[int, int, str, str]]:
        """Yield the rows of `table` that the target must hold."""
        pool, rows = self._pool.tobytes().decode(), self.tables[table].read_rows()
        for row_id, k, c, pad in zip(*(column.tolist() for column in rows), strict=True):
            yield row_id, k, pool[c : c + C_BYTES], pool[pad : pad + PAD_BYTES]

    def _on_table(
        self, position: int, table: SysbenchTable, roles: tuple[RowRole, ...], numbers: Numbers
    ) -> list[tuple[RowImages, ...]]:
        """Return for each role the images in `table`, a row per transaction; zero where it acts on another table."""
        count = len(numbers)
        own = (position - numbers) % len(self.tables)
        by_role: list[tuple[RowImages, ...]] = [()] * len(roles)
        older = [number for number, role in enumerate(roles) if role.op != "insert"]
        known = table.count
        for number in (number for number in range(len(roles)) if number not in older):
            mine = own == number % len(self.tables)
            by_role[number] = (_spread(table.insert(int(mine.sum())), mine),)
        # Roles that change existing rows: a transaction has at most one of them on this table.
        mine = np.isin(own, older)
        if older and mine.any():
            roles_of = own[mine]
            sets = {
                name: np.isin(roles_of, [n for n in older if name in roles[n].sets]) for name in RowImages._fields[1:]
            }
            halves = table.change(self._random.integers(0, min(known, self.load.rows), int(mine.sum())), sets)
            for number in older:
                by_role[number] = tuple(_spread(half, mine) for half in halves)
        assert all(len(image.id) == count for images in by_role for image in images)
        return by_role


def _spread(image: RowImages, mask: Numbers) -> RowImages:
    """Return an image as long as `mask`, with the rows of `image` where `mask` is true and zeros elsewhere."""
    out = RowImages(*(np.zeros(len(mask), column.dtype) for column in image))
    for whole, column in zip(out, image, strict=True):
        whole[mask] = column
    return out


def _pick(images: list[RowImages], at: Numbers) -> RowImages:
    """Return the image whose row n is row n of images[at[n]]."""
    rows = np.arange(len(at))
    return RowImages(*(np.stack(columns)[at, rows] for columns in zip(*images, strict=True)))


def _draw_digits(random: np.random.Generator) -> bytes:
    """Return groups of eleven digits separated by dashes, as sysbench fills `c` and `pad`."""
    digits = random.integers(ord("0"), ord("9") + 1, _POOL_BYTES, np.uint8)
    digits[11::12] = ord("-")
    return digits.tobytes()
