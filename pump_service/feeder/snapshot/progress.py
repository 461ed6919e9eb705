"""The progress of a full load: rows and chunks of each table, for the status port."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from binlake.mysqlbinlog.tablerows.link import Name
from binlake.pump_service.feeder.snapshot.tableload import TableLoad


@dataclass
class TableProgress:
    """`estimated`: the server's estimate of the rows; `done`: all chunks are read."""

    estimated: int
    rows: int = 0
    chunks: int = 0
    done: bool = False


@dataclass
class Progress:
    """Progress of one load; thread-safe. `state`: `reading`, `catching up` (with the log, if read in several
    snapshots), `committing` or `done`: then it lies in (`from_ts`, `commit_ts`]. `began`: Unix seconds of the first
    attempt. `trouble`: why the log cannot be read just now; "" while it can.
    """

    tables: dict[Name, TableProgress]
    from_ts: int
    state: str = "reading"
    commit_ts: int = 0
    began: float = field(default_factory=time.time)
    trouble: str = ""
    _has_read: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(
        cls, guesses: Mapping[Name, int], names: Iterable[Name], from_ts: int = 0, began: float | None = None
    ) -> Progress:
        """Progress of the tables `names`, of which nothing is read yet. `began`: None = now."""
        tables = {name: TableProgress(guesses.get(name, 0)) for name in names}
        return cls(tables, from_ts, began=time.time() if began is None else began)

    def resume(self, tables: Mapping[Name, TableLoad]) -> None:
        """Count what earlier attempts have read."""
        with self._lock:
            for name, load in tables.items():
                table = self.tables[name]
                table.rows, table.chunks, table.done = load.rows, load.chunks, load.ranges.is_complete

    def add_rows(self, name: Name, rows: int) -> None:
        """Count more rows of a table."""
        with self._lock:
            self.tables[name].rows += rows
            self._has_read = True

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
            tables = {f"{db}.{table}": {**vars(progress)} for (db, table), progress in self.tables.items()}
        return {
            "state": self.state,
            "from_ts": str(self.from_ts),
            "commit_ts": str(self.commit_ts),
            "seconds": round(time.time() - self.began, 1),
            "tables": len(tables),
            "tables_done": sum(table["done"] for table in tables.values()),
            "rows": sum(table["rows"] for table in tables.values()),
            "rows_estimated": sum(max(table["estimated"], table["rows"]) for table in tables.values()),
            "by_table": tables,
        }
