"""What the feeder's journal keeps on disk: the tables of its database, and the notes of open batches.

Pumps ask about each undecided prewrite again and again while a full load runs. A file notes these batches for the next
process, which tells the pumps that they are rolled back. It is never synced: if the machine goes down with the process,
the pumps ask on their own, a few dozen a second.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable
from pathlib import Path

TABLES = """
CREATE TABLE IF NOT EXISTS fact (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch (
  first_start INTEGER PRIMARY KEY, count INTEGER NOT NULL, first_commit INTEGER NOT NULL, unsent TEXT);
CREATE INDEX IF NOT EXISTS batch_unsent ON batch (first_start) WHERE unsent IS NOT NULL;
CREATE TABLE IF NOT EXISTS place (
  source TEXT PRIMARY KEY, file TEXT NOT NULL, offset INTEGER NOT NULL, gtids TEXT NOT NULL,
  last_id TEXT NOT NULL, time_ms INTEGER NOT NULL, commit_ts INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS job (id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS load_table (
  source TEXT, db TEXT, name TEXT, body TEXT NOT NULL, PRIMARY KEY (source, db, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS load_batch (
  first_start INTEGER PRIMARY KEY, source TEXT NOT NULL, db TEXT NOT NULL, name TEXT NOT NULL,
  snapshot INTEGER NOT NULL, count INTEGER NOT NULL, body TEXT NOT NULL);
"""
_NOTE = struct.Struct(">QQ")  # first start_ts, count
_MOST_NOTES = 4096


def put_load_tables(db: sqlite3.Connection, bodies: Iterable[tuple[tuple[str, str, str], str]]) -> None:
    """Record the state of each table's load, by (source, db, table)."""
    db.executemany("REPLACE INTO load_table VALUES (?, ?, ?, ?)", [(*table, body) for table, body in bodies])


def delete_load(db: sqlite3.Connection, source: str) -> None:
    """Delete what is recorded of the load of `source`."""
    for table in ("load_batch", "load_table"):
        db.execute(f"DELETE FROM {table} WHERE source = ?", (source,))


class OpenBatches:
    """Open batches by their first start_ts; thread-safe. `from_previous`: (first, count) of what an earlier process
    noted, decided or not. Raises OSError."""

    def __init__(self, notes: Path) -> None:
        self._lock = threading.Lock()
        self._notes = os.open(notes, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        data = notes.read_bytes()
        stored_notes = list(_NOTE.iter_unpack(data[: len(data) // _NOTE.size * _NOTE.size]))
        self.from_previous = list(dict.fromkeys(stored_notes))  # a stored chunk is noted again at each start
        self._note_count = len(stored_notes)
        self._firsts: list[int] = []
        self._counts: dict[int, int] = {}

    def add(self, first: int, count: int) -> None:
        """Add a batch of `count` start_ts from `first` on."""
        with self._lock:
            if first not in self._counts:
                insort(self._firsts, first)
            self._counts[first] = count
            os.write(self._notes, _NOTE.pack(first, count))
            self._note_count += 1
            if self._note_count > _MOST_NOTES + 4 * len(self._counts) and not self.from_previous:
                self._rewrite_notes()

    def forget_previous(self) -> None:
        """Forget the batches of earlier processes, which are settled."""
        with self._lock:
            self.from_previous = []
            self._rewrite_notes()

    def close(self) -> None:
        """Close the file of notes."""
        os.close(self._notes)

    def disown(self, firsts: Iterable[int]) -> int:
        """Treat the batches that begin at `firsts` like those of an earlier process; returns their number of
        start_ts."""
        with self._lock:
            batches = [(first, self._counts[first]) for first in firsts]
            self.from_previous = list(dict.fromkeys([*self.from_previous, *batches]))
        for first, _ in batches:
            self.remove(first)
        return sum(count for _, count in batches)

    def remove(self, first: int) -> None:
        """Remove the batch that begins at `first`, if it is open: it is decided."""
        with self._lock:
            if self._counts.pop(first, None) is not None:
                del self._firsts[bisect_left(self._firsts, first)]

    def has(self, start_ts: int) -> bool:
        """Whether `start_ts` belongs to an open batch."""
        with self._lock:
            index = bisect_right(self._firsts, start_ts)
            return bool(index) and start_ts < (first := self._firsts[index - 1]) + self._counts[first]

    def _rewrite_notes(self) -> None:
        os.ftruncate(self._notes, 0)
        os.write(self._notes, b"".join(_NOTE.pack(*batch) for batch in self._counts.items()))
        self._note_count = len(self._counts)
