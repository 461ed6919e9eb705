"""Splits items into windows: runs of transactions that are applied together, and the DDL between them.

Rule: the bounds of windows depend only on the files, the start and `most` rows, and a window that is open on the target
keeps its end. So a killed run gets the same windows again. Files of Binlake have a DDL at the commit_ts from which rows
have its definition: more DDL and rows with the same commit_ts may follow it and belong to its window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from binlake.binlogfile.reading import BinlogDdl, BinlogTransaction, Item
from binlake.errors import CheckpointConflict, Permanent
from binlake.extras.reparo.ddl import FileDdl, Keeps


@dataclass(frozen=True)
class FileWindow:
    """The window (lo, hi]: whole `transactions`; or `ddls` at hi, followed by the transactions of hi."""

    lo: int
    hi: int
    transactions: tuple[BinlogTransaction, ...] = ()
    ddls: tuple[FileDdl, ...] = ()


def cut_windows(
    items: Iterable[Item], lo: int, stop: int, most: int, keeps: Keeps, opened: tuple[int, int] | None = None
) -> Iterator[FileWindow]:
    """The windows of `items`, which are all above `lo`. The last one ends at `stop` (0: at the last item).

    `opened`: the window that is open on the target. Raises Permanent for items that are not in commit order,
    CheckpointConflict if the items do not give the open window.
    """
    cutter = _Cutter(lo, most, opened)
    for item in items:
        yield from cutter.add(item, keeps)
    yield from cutter.end(stop)


class _Cutter:
    """Builds windows. `_lo`: start of the current window; up to `_last`, all items are in a window or not selected."""

    def __init__(self, lo: int, most: int, opened: tuple[int, int] | None) -> None:
        self._lo, self._most, self._opened = lo, most, opened
        self._last = self._seen = lo
        self._seen_ddl = False
        self._ddls: list[FileDdl] = []
        self._held: list[BinlogTransaction] = []
        self._rows = 0

    def add(self, item: Item, keeps: Keeps) -> Iterator[FileWindow]:
        """The windows that are complete before or with `item`."""
        self._require_in_order(item)
        if self._ddls and item.commit_ts > self._ddls[0].commit_ts:
            yield self._cut_window(self._ddls[0].commit_ts)
        if self._opened is not None and self._is_in_open() and item.commit_ts > self._opened[1]:
            yield self._cut_window(self._opened[1])
        if isinstance(item, BinlogDdl):
            yield from self._add_ddl(FileDdl.of(item), keeps)
            return
        self._held.append(item)
        self._rows += len(item.message.dml_data.events)
        self._last = item.commit_ts
        if self._rows >= self._most and not self._ddls and not self._is_in_open():
            yield self._cut_window(self._last)

    def end(self, stop: int) -> Iterator[FileWindow]:
        """The remaining windows. With `stop`, the last one ends there."""
        if self._ddls:
            yield self._cut_window(self._ddls[0].commit_ts)
        if self._opened is not None and self._is_in_open():
            yield self._cut_window(max(self._last, self._opened[1]))
        last = max(self._last, self._seen, stop)
        if last > self._lo:
            yield self._cut_window(last)
        if self._opened is not None:
            raise CheckpointConflict(
                "the files do not give the window that is open on the target",
                where={"window": f"{self._opened[0]}-{self._opened[1]}", "read_to": last},
                hint="run it again with the files, the tables and the range with which it was begun",
            )

    def _add_ddl(self, ddl: FileDdl, keeps: Keeps) -> Iterator[FileWindow]:
        chosen = ddl.choose(keeps)
        if chosen is None:
            return
        if not self._ddls and self._last > self._lo:
            yield self._cut_window(self._last)
        self._ddls.append(chosen)
        self._last = chosen.commit_ts

    def _cut_window(self, hi: int) -> FileWindow:
        window = FileWindow(self._lo, hi, tuple(self._held), tuple(self._ddls))
        self._lo = self._last = hi
        self._held, self._ddls, self._rows = [], [], 0
        if self._opened == (window.lo, window.hi):
            self._opened = None
        return window

    def _is_in_open(self) -> bool:
        return self._opened is not None and self._opened[0] == self._lo

    def _require_in_order(self, item: Item) -> None:
        """Require ascending commits; only a DDL may be followed by items with its commit_ts. Raises Permanent."""
        same = item.commit_ts == self._seen and self._seen_ddl
        if item.commit_ts <= self._seen and not same:
            raise Permanent(
                "binlog files are not in commit order",
                where={"file": item.place.file, "offset": item.place.offset, "commit_ts": item.commit_ts},
                hint="`binlake files verify` shows what is wrong in the folder",
            )
        self._seen, self._seen_ddl = item.commit_ts, isinstance(item, BinlogDdl)
