"""What a stage hands to the next one of the same process: rows and a manifest that it has just written to the lake.

Rule: they are in the lake before they are put here, and a stage that finds none here reads them there, so that both
ways give the same result. The bytes are bounded: what would pass the bound is not kept.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pyarrow as pa

from binlake.lake.tables import LakeTable
from binlake.window.derived import CompactManifest
from spark_jobs.job.results import Bounds

MOST_BYTES = 256 << 20
"""Bytes of Arrow that wait for their takers: the row changes, net changes and statements of a small window."""


@dataclass
class _Entry:
    rows: pa.Table
    bytes: int
    takers: int


class Handover:
    """Rows by lake table and window, each for a number of takers. Stages of several sinks may call it side by side."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, Bounds], _Entry] = {}
        self._compacted: CompactManifest | None = None

    def put(self, table: LakeTable, bounds: Bounds, rows: pa.Table, takers: int = 1) -> None:
        """Keep `rows`, all that `table` has of the window `bounds`, until `takers` took them.

        They take the place of rows that were put before. Nothing is kept where all would pass the bound.
        """
        size, place = rows.nbytes, (table.name, bounds)
        with self._lock:
            self._entries.pop(place, None)
            if takers > 0 and size + sum(entry.bytes for entry in self._entries.values()) <= self._most:
                self._entries[place] = _Entry(rows, size, takers)

    def take(self, table: LakeTable, bounds: Bounds) -> pa.Table | None:
        """The rows of the window as they were put; None when nothing is kept of it."""
        with self._lock:
            entry = self._entries.get((table.name, bounds))
            if entry is None:
                return None
            entry.takers -= 1
            if not entry.takers:
                del self._entries[table.name, bounds]
            return entry.rows

    def put_compacted(self, manifest: CompactManifest) -> None:
        """Keep what compact has just sealed, until it seals another window."""
        with self._lock:
            self._compacted = manifest

    def compacted(self, bounds: Bounds) -> CompactManifest | None:
        """What compact sealed last in this process, if it was the window `bounds`."""
        with self._lock:
            found = self._compacted
        return found if found is not None and (found.lo, found.hi) == (bounds.lo, bounds.hi) else None

    def drop(self, hi: int) -> None:
        """Keep nothing of windows that end at or below `hi`: they are over."""
        with self._lock:
            self._entries = {place: entry for place, entry in self._entries.items() if place[1].hi > hi}

    @property
    def bytes(self) -> int:
        """Bytes of all rows that are kept."""
        with self._lock:
            return sum(entry.bytes for entry in self._entries.values())
