"""The progress of a full load: rows, bytes, rate and expected end of each table, for the status port.

The rate is that of the present attempt. Tables are read one after the other, the largest first, so the expected end of
a table is that of all rows up to its last one, by the server's estimates.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from binlake.mysqlbinlog.tablerows.link import Name
from binlake.mysqlbinlog.tablerows.ranges import KeyRanges


@dataclass
class TableLoad:
    """What has been read of a table whose definition in the catalog has this id. `is_visible`: some of its rows are
    committed; `bytes`: of the prewrites."""

    table_id: int
    ranges: KeyRanges
    rows: int = 0
    chunks: int = 0
    is_visible: bool = False
    bytes: int = 0

    def to_json(self) -> str:
        """For the journal."""
        done, ranges = self.ranges.is_complete, self.ranges.store()
        counts = {"table_id": self.table_id, "rows": self.rows, "chunks": self.chunks}
        return json.dumps({**counts, "done": done, "ranges": ranges, "visible": self.is_visible, "bytes": self.bytes})

    @classmethod
    def from_json(cls, text: str) -> TableLoad:
        """Parse the result of `to_json`."""
        values = json.loads(text)
        ranges, counts = KeyRanges.of(values["ranges"]), (values["rows"], values["chunks"])
        # A load that an older version began has neither: it commits all rows at its end.
        return cls(values["table_id"], ranges, *counts, values.get("visible", False), values.get("bytes", 0))


@dataclass
class TableProgress:
    """`estimated`: the server's estimate of the rows; `bytes`: of their prewrites; `done`: all chunks are read."""

    estimated: int
    rows: int = 0
    bytes: int = 0
    chunks: int = 0
    done: bool = False


@dataclass
class SnapshotProgress:
    """Progress of one load; thread-safe. `state`: `reading`, `catching up` (with the log, up to a new snapshot),
    `paused`, `committing` or `done`: then it lies in (`from_ts`, `commit_ts`]. `began`: Unix seconds of the first
    attempt. `trouble`: why the log cannot be read just now; "" while it can.
    """

    tables: dict[Name, TableProgress]
    from_ts: int
    state: str = "reading"
    commit_ts: int = 0
    began: float = field(default_factory=time.time)
    trouble: str = ""
    _has_read: bool = False
    _new_rows: int = 0
    _reading_since: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(
        cls, guesses: Mapping[Name, int], names: Iterable[Name], from_ts: int = 0, began: float | None = None
    ) -> SnapshotProgress:
        """Progress of the tables `names`, of which nothing is read yet. `began`: None = now."""
        tables = {name: TableProgress(guesses.get(name, 0)) for name in names}
        return cls(tables, from_ts, began=time.time() if began is None else began)

    def resume(self, tables: Mapping[Name, TableLoad]) -> None:
        """Count what earlier attempts have read."""
        with self._lock:
            for name, load in tables.items():
                table = self.tables[name]
                table.rows, table.chunks, table.done = load.rows, load.chunks, load.ranges.is_complete
                table.bytes = load.bytes

    def add_rows(self, name: Name, rows: int, size: int) -> None:
        """Count more rows of a table, and the bytes of their prewrite."""
        with self._lock:
            self.tables[name].rows += rows
            self.tables[name].bytes += size
            self._new_rows += rows
            self._has_read = True

    def begin_reading(self) -> None:
        """The rate counts from here on."""
        with self._lock:
            self.state, self._new_rows, self._reading_since = "reading", 0, time.monotonic()

    def add_chunk(self, name: Name) -> None:
        """Count one more chunk of a table."""
        with self._lock:
            self.tables[name].chunks += 1
            self._has_read = True

    def finish(self, name: Name) -> None:
        """Mark a table as read."""
        with self._lock:
            self.tables[name].done = True
            self._has_read = True

    @property
    def is_moving(self) -> bool:
        """Whether this attempt has read anything: one that has not may still wait for what the last one waited for."""
        return self._has_read or self.state != "reading"

    def report_trouble(self, reason: str) -> None:
        """Set `trouble`."""
        self.trouble = reason

    def to_json(self) -> dict[str, Any]:
        """For the status port: the load as a whole, and each table."""
        with self._lock:
            rate = self._new_rows / max(time.monotonic() - self._reading_since, 1e-3) if self.state == "reading" else 0
            left = _expect_ends(self.tables, rate)
            ends = [seconds for seconds in left.values() if seconds is not None]
            tables = {
                ".".join(name): {**vars(progress), "seconds_left": left[name]} for name, progress in self.tables.items()
            }
        return {
            "state": self.state,
            "from_ts": str(self.from_ts),
            "commit_ts": str(self.commit_ts),
            "seconds": round(time.time() - self.began, 1),
            "tables": len(tables),
            "tables_done": sum(table["done"] for table in tables.values()),
            "rows": sum(table["rows"] for table in tables.values()),
            "rows_estimated": sum(max(table["estimated"], table["rows"]) for table in tables.values()),
            "bytes": sum(table["bytes"] for table in tables.values()),
            "rows_per_second": round(rate, 1),
            "seconds_left": max(ends, default=0.0) if len(ends) == len(left) else None,
            "by_table": tables,
        }


def _expect_ends(tables: Mapping[Name, TableProgress], rate: float) -> dict[Name, float | None]:
    """The seconds until each table is read, at `rate` rows a second; None = not known, 0 = it is."""
    ends: dict[Name, float | None] = {}
    rows = 0
    for name, table in sorted(tables.items(), key=lambda item: item[1].estimated, reverse=True):
        rows += 0 if table.done else max(table.estimated - table.rows, 0)
        ends[name] = 0.0 if table.done else round(rows / rate, 1) if rate else None
    return ends
