"""Compares a feed's binlog files with the lake: the number of row changes of each commit.

Rule: this reads the lake's `mutation` directly, not records of encode or publish. Landed windows are compared one by
one, so memory does not grow with the folder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from binlake.base.lakecolumns import Mutation
from binlake.binlogfile.reading import BinlogTransaction, Item
from binlake.config.feed import FeedSection
from binlake.lake.mutations import read_rows
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION
from binlake.lake.windowlog import WindowLog

_SHOWN = 5
"""The maximum number of commits per window that are named."""
Bounds = tuple[int, int]


class LakeComparison:
    """Counts the files' row changes per window of the lake. `problems`: the differences from the lake."""

    def __init__(self, paths: LakePaths, feed: FeedSection, held: Bounds) -> None:
        """`held`: the range (lo, hi] that the files have completely. Windows completely inside it are compared."""
        self._paths, self._feed = paths, feed
        lo, hi = held
        landed = WindowLog(paths).list_landed((lo, hi)) if lo < hi else []
        self._windows: Iterator[Bounds] = iter([window for window in landed if lo <= window[0] and window[1] <= hi])
        self._window = next(self._windows, None)
        self._rows: Counter[int] = Counter()
        self.problems: list[str] = []
        self.compared = 0

    def see(self, item: Item) -> None:
        """Count the next item of the files."""
        while self._window is not None and item.commit_ts > self._window[1]:
            self._close(self._window)
        if self._window is not None and item.commit_ts > self._window[0] and isinstance(item, BinlogTransaction):
            self._rows[item.commit_ts] += len(item.message.dml_data.events)

    def finish(self) -> None:
        """Compare the remaining windows after the last item."""
        while self._window is not None:
            self._close(self._window)

    def _close(self, window: Bounds) -> None:
        in_lake = self._count_in_lake(window)
        others = sorted(ts for ts in {*in_lake, *self._rows} if in_lake[ts] != self._rows[ts])
        if others:
            differences = ", ".join(
                f"{ts}: {self._rows[ts]} in the files, {in_lake[ts]} in the lake" for ts in others[:_SHOWN]
            )
            more = f" and {len(others) - _SHOWN} commits more" if len(others) > _SHOWN else ""
            self.problems.append(f"row changes of the window {window[0]}-{window[1]}: {differences}{more}")
        self.compared += 1
        self._rows, self._window = Counter(), next(self._windows, None)

    def _count_in_lake(self, window: Bounds) -> Counter[int]:
        names = (Mutation.COMMIT_TS, Mutation.DB, Mutation.TABLE)
        rows = read_rows(self._paths, MUTATION, *window, names)
        counted = rows.group_by(list(names)).aggregate([([], "count_all")])
        counts: Counter[int] = Counter()
        for ts, db, table, count in zip(
            *(counted.column(name).to_pylist() for name in (*names, "count_all")), strict=True
        ):
            if self._feed.tables.matches(db, table):
                counts[ts] += count
        return counts
