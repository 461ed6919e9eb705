"""What a stage hands to the next one of the same process: rows and a manifest that it has just written to the lake.

Rule: they are in the lake before they are put here, and a stage that finds none here reads them there, so that both
ways give the same result. The bytes are bounded: what would pass the bound is not kept.

What was derived ahead (`spark_jobs.job.ahead`) waits here too, with the position of the target that it supposes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from binlake.lake.tables import LakeTable
from binlake.window.derived import CompactManifest
from spark_jobs.job.results import Bounds

if TYPE_CHECKING:
    from binlake.target import Position

MOST_BYTES = 256 << 20
"""Bytes of Arrow that wait for their takers: the row changes, net changes and statements of a small window."""


@dataclass
class _Entry:
    rows: pa.Table
    bytes: int
    takers: int


@dataclass(frozen=True)
class _Ahead:
    bounds: Bounds
    position: Position
    derived: Any


class Handover:
    """Rows by lake table and window, each for a number of takers. Stages of several sinks may call it side by side."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, Bounds], _Entry] = {}
        self._compacted: dict[Bounds, CompactManifest] = {}
        self._ahead: dict[str, _Ahead] = {}

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
        """Keep what compact has just sealed, until its window is dropped or sealed again."""
        with self._lock:
            self._compacted[Bounds(manifest.lo, manifest.hi)] = manifest

    def compacted(self, bounds: Bounds) -> CompactManifest | None:
        """What compact sealed last in this process of the window `bounds`."""
        with self._lock:
            return self._compacted.get(bounds)

    def put_ahead(self, stage: str, bounds: Bounds, position: Position, derived: object) -> None:
        """Keep what `stage` derived of `bounds` for a target that will be at `position`."""
        with self._lock:
            self._ahead[stage] = _Ahead(bounds, position, derived)

    def take_ahead(self, stage: str, bounds: Bounds, position: Position) -> Any:
        """What `stage` derived ahead of `bounds`, if the target is where that supposes it; else None.

        Where it is elsewhere, nothing that any stage derived ahead is of use.
        """
        with self._lock:
            ahead = self._ahead.pop(stage, None)
            if ahead is None or (ahead.bounds, ahead.position) != (bounds, position):
                self._ahead.clear()
                return None
            return ahead.derived

    def drop(self, hi: int) -> None:
        """Keep nothing of windows that end at or below `hi`: they are over."""
        with self._lock:
            self._entries = {place: entry for place, entry in self._entries.items() if place[1].hi > hi}
            self._compacted = {bounds: manifest for bounds, manifest in self._compacted.items() if bounds.hi > hi}

    @property
    def bytes(self) -> int:
        """Bytes of all rows that are kept."""
        with self._lock:
            return sum(entry.bytes for entry in self._entries.values())
