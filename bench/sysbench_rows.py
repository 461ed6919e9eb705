"""Tables of sysbench's shape and transactions on them, as blocks of numpy columns: what bench_end_to_end.py writes.

A table is (id bigint key, k int, c varchar(120), pad varchar(60)). A transaction does each role of its load once; role
r of transaction n falls on table (n + r) mod tables. Texts are windows of one pool, kept as offsets into it. Numbers
lie where their varints take four bytes, so that all transactions of a load have one width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

FIRST_NUMBER, LAST_NUMBER = 1 << 20, 1 << 27
C_BYTES, PAD_BYTES = 120, 60
DB = "sbtest"
_POOL_BYTES = 1 << 16

Numbers = np.ndarray


@dataclass(frozen=True)
class Role:
    """One thing that a transaction does to one row. `op`: insert, update, or replace (DELETE, then INSERT of the key).

    `sets`: columns that get a new value; an inserted row gets all.
    """

    op: str
    sets: tuple[str, ...] = ("k", "c", "pad")

    @property
    def changes(self) -> int:
        """Row changes it writes."""
        return 2 if self.op == "replace" else 1


@dataclass(frozen=True)
class Load:
    """`tables` tables; `rows` of each are there before; then `transactions` that do `roles`."""

    name: str
    told: str
    tables: int
    rows: int
    transactions: int
    roles: tuple[Role, ...]

    @property
    def changes(self) -> int:
        """Row changes of a transaction."""
        return sum(role.changes for role in self.roles)

    def scaled(self, scale: float) -> Load:
        """Times as many transactions; hot rows stay as many."""
        rows = self.rows if len(self.roles) == 1 else int(self.rows * scale)
        return replace(self, transactions=int(self.transactions * scale), rows=rows)

    def setup(self) -> tuple[Role, ...]:
        """Roles of the transactions that make the rows of before: one row in each table."""
        return (Role("insert"),) * self.tables


UPDATE_K, UPDATE_C = Role("update", ("k",)), Role("update", ("c",))
LOADS = {
    "a": Load("a", "single-row inserts", 1, 0, 200_000, (Role("insert"),)),
    "b": Load("b", "single-row updates of 10,000 hot rows", 1, 10_000, 200_000, (Role("update", ("k", "c")),)),
    "c": Load("c", "transactions of 5 rows over 4 tables", 4, 25_000, 100_000,
              (UPDATE_K, UPDATE_C, Role("replace"), Role("insert"))),
}  # fmt: skip


class Image(NamedTuple):
    """Values of many rows: `c` and `pad` are offsets into the pool."""

    id: Numbers
    k: Numbers
    c: Numbers
    pad: Numbers


class Table:
    """The rows of a table, by number; row n has id FIRST_NUMBER + n and is there once it was inserted."""

    def __init__(self, random: np.random.Generator) -> None:
        self._random = random
        self.count = 0
        self._values = {name: np.zeros(1024, np.int32) for name in Image._fields[1:]}

    def insert(self, count: int) -> Image:
        """`count` new rows."""
        numbers = np.arange(self.count, self.count + count)
        self.count += count
        for name, values in self._values.items():
            if self.count > len(values):
                self._values[name] = values = np.resize(values, 2 * self.count)
            values[numbers] = self._fresh(name, count)
        return self._image(numbers)

    def change(self, numbers: Numbers, sets: dict[str, Numbers]) -> tuple[Image, Image]:
        """Rows `numbers` (any of them more than once) changed one after the other: (before, after) of each change.

        `sets`: for each column, which of the changes give it a new value.
        """
        pairs = {name: self._chain(name, numbers, mask) for name, mask in sets.items()}
        ids = FIRST_NUMBER + numbers
        return tuple(Image(ids, *(pairs[name][half] for name in Image._fields[1:])) for half in (0, 1))  # type: ignore[return-value]

    def _chain(self, name: str, numbers: Numbers, sets: Numbers) -> tuple[Numbers, Numbers]:
        base, count = self._values[name], len(numbers)
        order = np.argsort(numbers, kind="stable")
        rows, places = numbers[order], np.arange(count)
        first = np.append(True, rows[1:] != rows[:-1])
        start = np.maximum.accumulate(np.where(first, places, 0))
        last_set = np.maximum.accumulate(np.where(sets[order], places, -1))
        fresh = self._fresh(name, count)
        after_sorted = np.where(last_set >= start, fresh[last_set], base[rows])
        before_sorted = np.where(first, base[rows], np.append(0, after_sorted[:-1]))
        before, after = np.empty(count, np.int32), np.empty(count, np.int32)
        before[order], after[order] = before_sorted, after_sorted
        ends = np.append(first[1:], True)
        base[rows[ends]] = after_sorted[ends]
        return before, after

    def _fresh(self, name: str, count: int) -> Numbers:
        low, high = (FIRST_NUMBER, LAST_NUMBER) if name == "k" else (0, _POOL_BYTES - C_BYTES)
        return self._random.integers(low, high, count, np.int32)

    def _image(self, numbers: Numbers) -> Image:
        return Image(FIRST_NUMBER + numbers, *(self._values[name][numbers] for name in Image._fields[1:]))

    def rows(self) -> Image:
        """All rows as they are now."""
        return self._image(np.arange(self.count))


class Writer:
    """The transactions of a load by seed; `tables` hold what a consumer must show after those taken so far."""

    def __init__(self, load: Load, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._pool = np.frombuffer(_digits(self._random), np.uint8)
        self.load = load
        self.tables = [Table(self._random) for _ in range(load.tables)]
        windows = np.lib.stride_tricks.sliding_window_view
        self._views = {"c": windows(self._pool, C_BYTES), "pad": windows(self._pool, PAD_BYTES)}

    def block(self, roles: tuple[Role, ...], first: int, count: int) -> list[list[Image]]:
        """Transactions number `first` to `first + count`: of each role the images it writes, a row a transaction."""
        numbers = np.arange(first, first + count)
        by_table = [self._on_table(place, table, roles, numbers) for place, table in enumerate(self.tables)]
        found = []
        for number, role in enumerate(roles):
            at = (numbers + number) % len(self.tables)
            halves = range(1) if role.op == "insert" else range(2)
            found.append([_picked([by_table[t][number][half] for t in range(len(self.tables))], at) for half in halves])
        return found

    def text(self, name: str, offsets: Numbers) -> np.ndarray:
        """The texts of column `name` as rows of bytes."""
        texts: np.ndarray = self._views[name][offsets]
        return texts

    def lines(self, table: int) -> Iterator[tuple[int, int, str, str]]:
        """The rows of `table` as they must be at the target."""
        pool, rows = self._pool.tobytes().decode(), self.tables[table].rows()
        for row_id, k, c, pad in zip(*(column.tolist() for column in rows), strict=True):
            yield row_id, k, pool[c : c + C_BYTES], pool[pad : pad + PAD_BYTES]

    def _on_table(self, place: int, table: Table, roles: tuple[Role, ...], numbers: Numbers) -> list[tuple[Image, ...]]:
        """Of each role the images that `table` has for every transaction: those of others' are left zero."""
        count = len(numbers)
        own = (place - numbers) % len(self.tables)
        found: list[tuple[Image, ...]] = [()] * len(roles)
        older = [number for number, role in enumerate(roles) if role.op != "insert"]
        known = table.count
        for number in (number for number in range(len(roles)) if number not in older):
            mine = own == number % len(self.tables)
            found[number] = (_spread(table.insert(int(mine.sum())), mine),)
        # A role on rows that are there: of one transaction there is one of them on each table.
        mine = np.isin(own, older)
        if older and mine.any():
            roles_of = own[mine]
            sets = {name: np.isin(roles_of, [n for n in older if name in roles[n].sets]) for name in Image._fields[1:]}
            halves = table.change(self._random.integers(0, min(known, self.load.rows), int(mine.sum())), sets)
            for number in older:
                found[number] = tuple(_spread(half, mine) for half in halves)
        assert all(len(image.id) == count for images in found for image in images)
        return found


def _spread(image: Image, places: Numbers) -> Image:
    """`image` at `places` of a longer one."""
    out = Image(*(np.zeros(len(places), column.dtype) for column in image))
    for whole, column in zip(out, image, strict=True):
        whole[places] = column
    return out


def _picked(images: list[Image], at: Numbers) -> Image:
    """Row n of image number at[n]."""
    rows = np.arange(len(at))
    return Image(*(np.stack(columns)[at, rows] for columns in zip(*images, strict=True)))


def _digits(random: np.random.Generator) -> bytes:
    """Groups of eleven digits with a dash between, as sysbench fills `c` and `pad`."""
    digits = random.integers(ord("0"), ord("9") + 1, _POOL_BYTES, np.uint8)
    digits[11::12] = ord("-")
    return digits.tobytes()
