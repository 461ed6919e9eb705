"""Passes rows and manifests from a stage to the next one in the same process, so that it need not read the lake.

Rule: a stage writes them to the lake before it puts them here, and a stage that finds nothing here reads the lake, so
both ways give the same result. The total size is bounded: what would exceed the bound is not stored.

Results derived ahead (`spark_jobs.job.ahead`) are stored here too, with the target position that they assume.
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
"""Limit for the stored Arrow bytes: the row changes, net changes and statements of a small window fit."""


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
    """Rows by lake table and window, each for a number of takers. Thread-safe: sinks run their stages in parallel."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, Bounds], _Entry] = {}
        self._compacted: dict[Bounds, CompactManifest] = {}
        self._ahead: dict[str, _Ahead] = {}

    def put(self, table: LakeTable, bounds: Bounds, rows: pa.Table, takers: int = 1) -> None:
        """Store `rows`, all rows of `table` in the window `bounds`, until `takers` stages have taken them.

        They replace rows put before. Nothing is stored if the total would exceed the bound.
        """
        size, place = rows.nbytes, (table.name, bounds)
        with self._lock:
            self._entries.pop(place, None)
            if takers > 0 and size + sum(entry.bytes for entry in self._entries.values()) <= self._most:
                self._entries[place] = _Entry(rows, size, takers)

    def take(self, table: LakeTable, bounds: Bounds) -> pa.Table | None:
        """The stored rows of the window; None if there are none."""
        with self._lock:
            entry = self._entries.get((table.name, bounds))
            if entry is None:
                return None
            entry.takers -= 1
            if not entry.takers:
                del self._entries[table.name, bounds]
            return entry.rows

    def put_compacted(self, manifest: CompactManifest) -> None:
        """Store the manifest that compact has just sealed, until its window is dropped or sealed again."""
        with self._lock:
            self._compacted[Bounds(manifest.lo, manifest.hi)] = manifest

    def find_compacted(self, bounds: Bounds) -> CompactManifest | None:
        """The manifest that compact last sealed in this process for the window `bounds`."""
        with self._lock:
            return self._compacted.get(bounds)

    def put_ahead(self, stage: str, bounds: Bounds, position: Position, derived: object) -> None:
        """Store what `stage` derived of `bounds` for a target that will be at `position`."""
        with self._lock:
            self._ahead[stage] = _Ahead(bounds, position, derived)

    def take_ahead(self, stage: str, bounds: Bounds, position: Position) -> Any:
        """What `stage` derived ahead for `bounds`, if the target is at the assumed position; else None.

        If the target is elsewhere, everything derived ahead by any stage is discarded.
        """
        with self._lock:
            ahead = self._ahead.pop(stage, None)
            if ahead is None or (ahead.bounds, ahead.position) != (bounds, position):
                self._ahead.clear()
                return None
            return ahead.derived

    def drop(self, hi: int) -> None:
        """Discard everything of windows that end at or below `hi`: they are finished."""
        with self._lock:
            self._entries = {place: entry for place, entry in self._entries.items() if place[1].hi > hi}
            self._compacted = {bounds: manifest for bounds, manifest in self._compacted.items() if bounds.hi > hi}

    @property
    def bytes(self) -> int:
        """Bytes of all stored rows."""
        with self._lock:
            return sum(entry.bytes for entry in self._entries.values())
