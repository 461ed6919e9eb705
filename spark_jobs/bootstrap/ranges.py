"""Hands the ranges of all tables to readers, one after the other, each with commit_ts values reserved for it.

A range that an earlier attempt read is recognized by its bounds and skipped. Ranges are handed out in the order of
their commit_ts, so everything below the lowest range still being read is complete.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from binlake.errors import Permanent
from binlake.lake.baseload import BaseLoad
from binlake.lake.baseload import LoadedRange as ReadChunk
from binlake.mysqlbinlog.tablerows.chunks import Chunks
from binlake.mysqlbinlog.tablerows.link import Link
from binlake.spark_jobs.bootstrap.structures import BootstrapTable

WHOLE_ROOM = 1 << 24
"""commit_ts values reserved for a table read as a single range: one for each transaction of 1 MiB."""


@dataclass(frozen=True)
class BootstrapRange:
    """A range of `table` to read; `where`: its SQL condition. Its transactions get `first_ts` to `last_ts`."""

    table: BootstrapTable
    where: str
    low: str
    high: str
    first_ts: int
    last_ts: int


class BootstrapRanges:
    """The ranges of `tables`, without those in `known`, which have been read. Thread-safe.

    `row_id`: as in `Chunks`, for tables without a key.
    """

    def __init__(
        self, load: BaseLoad, tables: Sequence[BootstrapTable], first_ts: int, known: Sequence[ReadChunk], row_id: str
    ) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._next_ts = max([first_ts, *(chunk.last_ts + 1 for chunk in known)])
        self._known = {(chunk.table_id, chunk.low): chunk for chunk in known}
        # The largest tables first, so that small ones keep all readers busy at the end.
        ordered = sorted(tables, key=lambda table: table.estimated, reverse=True)
        self._left = [(table, _build_chunks(table, load.chunk_rows, row_id)) for table in ordered]
        self._chunks = {table.definition.id: chunks for table, chunks in self._left}
        self._open: set[int] = set()
        self._unread: dict[int, int] = {}
        self.tables_read = 0

    def take(self, link: Link) -> BootstrapRange | None:
        """The next range, its upper bound read through `link`; None when no range is left. Raises Permanent."""
        with self._lock:
            while self._left:
                table, chunks = self._left[0]
                taken = self._take_from(table, chunks, link)
                if taken is not None:
                    return taken
                self._left.pop(0)
                self._note_if_read(table.definition.id)
            return None

    def end(self, given: BootstrapRange) -> None:
        """Mark `given` as read and recorded."""
        with self._lock:
            self._open.discard(given.first_ts)
            table_id = given.table.definition.id
            self._chunks[table_id].ranges.finish(given.low, given.high, 0)
            self._unread[table_id] -= 1
            if all(table.definition.id != table_id for table, _ in self._left):
                self._note_if_read(table_id)

    def complete_below(self) -> int:
        """The commit_ts below which all ranges are read."""
        with self._lock:
            return min(self._open, default=self._next_ts)

    def _note_if_read(self, table_id: int) -> None:
        self.tables_read += not self._unread.get(table_id, 0)

    def _take_from(self, table: BootstrapTable, chunks: Chunks, link: Link) -> BootstrapRange | None:
        table_id = table.definition.id
        while (before := self._known.pop((table_id, chunks.low), None)) is not None:
            chunks.pass_over(before.high)
            chunks.ranges.finish(before.low, before.high, 0)
        chunk = chunks.take(link)
        if chunk is None:
            return None
        first = self._next_ts
        # A transaction has at least one row, so a range never has more transactions than rows.
        self._next_ts += self._load.chunk_rows if chunks.is_cut else WHOLE_ROOM
        if self._next_ts > self._load.base_ts:
            raise Permanent(
                "the tables have more ranges than the commit_ts reserved for the load allow",
                where={"table": ".".join(table.name), "chunk_rows": self._load.chunk_rows},
                hint="load with a smaller source.snapshot.chunk-rows into a new lake folder, or fewer tables at once",
            )
        self._open.add(first)
        self._unread[table_id] = self._unread.get(table_id, 0) + 1
        return BootstrapRange(table, chunk.where, chunk.low, chunk.high, first, self._next_ts - 1)


def _build_chunks(table: BootstrapTable, rows: int, row_id: str) -> Chunks:
    own = table.definition.pk_is_handle or table.definition.is_common_handle
    return Chunks(table.name, table.definition, rows, "" if own else row_id)
