"""What an unfinished verify has done: the cuts of its tables and the chunks found equal, at one checkpoint.

Kept in the lake's table `verify`. At another checkpoint it says nothing; a run that ends clears it.
"""

from __future__ import annotations

import time

import pyarrow.dataset as ds

from binlake.base.lakecolumns import Verify
from binlake.lake.control import ControlTable
from binlake.lake.paths import LakePaths
from binlake.lake.tables import VERIFY
from binlake.repair.verify.chunks import Cuts

FLUSH_CHUNKS = 64
"""Chunks that a killed run may have compared without recording them."""

_CUTS = -1

Name = tuple[str, str]


class VerifyState:
    """Progress at commit_ts `ts` `against` lake or source. Caller holds the lake's lock `verify`."""

    def __init__(self, paths: LakePaths, ts: int, against: str) -> None:
        self._table = ControlTable(paths.table(VERIFY.name), VERIFY)
        self._place = {Verify.COMMIT_TS: ts, Verify.AGAINST: against}
        self._pending: list[dict[str, object]] = []
        self._cuts: dict[Name, Cuts] = {}
        self._equal: dict[Name, dict[int, int]] = {}
        for row in self._table.rows(where=(ds.field(Verify.COMMIT_TS) == ts) & (ds.field(Verify.AGAINST) == against)):
            name = (row[Verify.DB], row[Verify.TABLE])
            if row[Verify.CHUNK] != _CUTS:
                self._equal.setdefault(name, {})[row[Verify.CHUNK]] = row[Verify.ROWS]
            elif (cuts := Cuts.from_json(row[Verify.CUTS])) is not None:
                self._cuts[name] = cuts
            else:
                # An older Binlake's: nothing of that run can be told apart from this one's.
                self.clear()
                self._cuts, self._equal = {}, {}
                return

    def cuts(self, name: Name) -> Cuts | None:
        """How the table was cut; None when it was not begun."""
        return self._cuts.get(name)

    def begin(self, name: Name, cuts: Cuts) -> None:
        """Remember the cuts; those of a large table at once, since they cost a pass over its index."""
        self._note(name, _CUTS, 0, cuts.to_json())
        if cuts.count > 1:
            self.flush()

    def equal(self, name: Name) -> dict[int, int]:
        """Rows by number of the chunks that need not be read again."""
        # Chunks of other cuts would be others.
        return self._equal.get(name, {}) if name in self._cuts else {}

    def record_equal(self, name: Name, chunk: int, rows: int) -> None:
        """Remember a chunk; durable after some more, or `flush`."""
        self._note(name, chunk, rows, "")
        if len(self._pending) >= FLUSH_CHUNKS:
            self.flush()

    def flush(self) -> None:
        """Make all durable."""
        self._table.append(self._pending)
        self._pending = []

    def clear(self) -> None:
        """The run has ended."""
        self._pending = []
        self._table.clear()

    def _note(self, name: Name, chunk: int, rows: int, cuts: str) -> None:
        place = {**self._place, Verify.DB: name[0], Verify.TABLE: name[1], Verify.AT_MS: time.time_ns() // 1_000_000}
        self._pending.append({**place, Verify.CHUNK: chunk, Verify.ROWS: rows, Verify.CUTS: cuts})
