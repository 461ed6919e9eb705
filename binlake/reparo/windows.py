"""Runs of transactions that are applied together, and the DDL between them, each a window of its own.

Rule: where a window is cut follows from the files, the start and `most` rows alone, and one that the target holds open
ends where it was opened to end: so a run that was killed finds the windows that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from binlake.binlogfile.reading import Ddl, Item, Transaction
from binlake.errors import CheckpointConflict, Permanent
from binlake.reparo.ddl import FileDdl

Keeps = Callable[[str, str], bool]
"""Whether changes of (db, table) count; (db, "") for a database."""


@dataclass(frozen=True)
class FileWindow:
    """The window (lo, hi]: whole `transactions`, or one `ddl` at hi."""

    lo: int
    hi: int
    transactions: tuple[Transaction, ...] = ()
    ddl: FileDdl | None = None


def cut_windows(
    items: Iterable[Item], lo: int, stop: int, most: int, keeps: Keeps, opened: tuple[int, int] | None = None
) -> Iterator[FileWindow]:
    """The windows of `items`, which all lie above `lo`; the last one ends at `stop` (0: with the last item).

    `opened`: the window that the target holds open. Raises Permanent for items that are not in commit order,
    CheckpointConflict where no item ends the open window.
    """
    cutter = _Cutter(lo, most, opened)
    for item in items:
        yield from cutter.add(item, keeps)
    yield from cutter.end(stop)


class _Cutter:
    def __init__(self, lo: int, most: int, opened: tuple[int, int] | None) -> None:
        self._lo, self._most, self._opened = lo, most, opened
        self._last = lo
        self._held: list[Transaction] = []
        self._rows = 0

    def add(self, item: Item, keeps: Keeps) -> Iterator[FileWindow]:
        """What is whole before `item`, or with it."""
        if item.commit_ts <= self._last:
            raise Permanent(
                "binlog files are not in commit order",
                where={"file": item.place.file, "offset": item.place.offset, "commit_ts": item.commit_ts},
                hint="`binlake files verify` shows what is wrong in the folder",
            )
        if self._is_in_open() and self._opened is not None and item.commit_ts > self._opened[1]:
            self._last = self._opened[1]
            yield self._rows_window()
        if isinstance(item, Ddl):
            yield from self._ddl(FileDdl.of(item), keeps)
            return
        self._last = item.commit_ts
        self._held.append(item)
        self._rows += len(item.message.dml_data.events)
        if self._rows >= self._most and not self._is_in_open():
            yield self._rows_window()

    def end(self, stop: int) -> Iterator[FileWindow]:
        """What is left; with `stop` the checkpoint is to be there."""
        if self._is_in_open() and self._opened is not None:
            self._last = max(self._last, self._opened[1])
            yield self._rows_window()
        self._last = max(self._last, stop)
        if self._last > self._lo:
            yield self._rows_window()
        if self._opened is not None:
            raise CheckpointConflict(
                "the target holds a window open that these files do not have",
                where={"window": f"{self._opened[0]}-{self._opened[1]}", "read_to": self._last},
                hint="run it once more with the files, the tables and the range with which it was begun",
            )

    def _ddl(self, ddl: FileDdl, keeps: Keeps) -> Iterator[FileWindow]:
        if not keeps(*ddl.judged_name()):
            self._last = ddl.commit_ts
            return
        if self._last > self._lo:
            yield self._rows_window()
        window = FileWindow(self._lo, ddl.commit_ts, ddl=ddl)
        self._lo = self._last = ddl.commit_ts
        self._passed(window)
        yield window

    def _is_in_open(self) -> bool:
        return self._opened is not None and self._opened[0] == self._lo

    def _rows_window(self) -> FileWindow:
        window = FileWindow(self._lo, self._last, tuple(self._held))
        self._lo, self._held, self._rows = self._last, [], 0
        self._passed(window)
        return window

    def _passed(self, window: FileWindow) -> None:
        if self._opened == (window.lo, window.hi):
            self._opened = None
