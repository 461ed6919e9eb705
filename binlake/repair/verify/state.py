"""The progress of an unfinished verify at one checkpoint: how tables are split, and the chunks found equal.

It is stored in the lake's table `verify`. It is not valid at another checkpoint; a finished run clears it. It only
saves work: a run whose progress cannot be stored goes on, because its result is worth more.
"""

from __future__ import annotations

import time

import pyarrow.dataset as ds
import structlog
from deltalake.exceptions import DeltaError

from binlake.base.lakecolumns import Verify
from binlake.errors import BinlakeError
from binlake.lake.control import ControlTable
from binlake.lake.controltables import VERIFY
from binlake.lake.paths import LakePaths
from binlake.repair.verify.chunks import Cuts

FLUSH_CHUNKS = 64
"""The number of chunks whose comparison a killed run may lose."""

_CUTS = -1
_UNWRITABLE = (BinlakeError, DeltaError, OSError)

log = structlog.get_logger(__name__)

Name = tuple[str, str]


class VerifyState:
    """Progress at commit_ts `ts` `against` lake or source. The caller holds the lake's lock `verify`."""

    def __init__(self, paths: LakePaths, ts: int, against: str) -> None:
        self._table = ControlTable(paths.locate_table(VERIFY.name), VERIFY)
        self._run_columns = {Verify.COMMIT_TS: ts, Verify.AGAINST: against}
        self._pending: list[dict[str, object]] = []
        self._cuts: dict[Name, Cuts] = {}
        self._equal: dict[Name, dict[int, int]] = {}
        for row in self._table.read_rows(
            where=(ds.field(Verify.COMMIT_TS) == ts) & (ds.field(Verify.AGAINST) == against)
        ):
            name = (row[Verify.DB], row[Verify.TABLE])
            if row[Verify.CHUNK] != _CUTS:
                self._equal.setdefault(name, {})[row[Verify.CHUNK]] = row[Verify.ROWS]
            elif (cuts := Cuts.from_json(row[Verify.CUTS])) is not None:
                self._cuts[name] = cuts
            else:
                # An older version of Binlake wrote it: its chunks cannot be matched with this run's.
                self.clear()
                self._cuts, self._equal = {}, {}
                return

    def find_cuts(self, name: Name) -> Cuts | None:
        """How the table was split; None if its comparison did not begin."""
        return self._cuts.get(name)

    def begin(self, name: Name, cuts: Cuts) -> None:
        """Record how the table is split. Durable at once for a large table, since this takes a pass over its index."""
        self._record(name, _CUTS, 0, cuts.to_json())
        if cuts.count > 1:
            self.flush()

    def look_up_equal_chunks(self, name: Name) -> dict[int, int]:
        """By chunk number, the number of rows of the chunks that need not be read again."""
        # Without the recorded cuts, the chunks would differ.
        return self._equal.get(name, {}) if name in self._cuts else {}

    def record_equal(self, name: Name, chunk: int, rows: int) -> None:
        """Record an equal chunk. Durable after some more chunks, or after `flush`."""
        self._record(name, chunk, rows, "")
        if len(self._pending) >= FLUSH_CHUNKS:
            self.flush()

    def flush(self) -> None:
        """Make all records durable, if the lake can be written."""
        pending, self._pending = self._pending, []
        try:
            self._table.append(pending)
        except _UNWRITABLE as error:
            log.warning("verify_progress_not_stored", error=str(error), result="an unfinished run starts again")

    def clear(self) -> None:
        """Delete the state after the run has ended."""
        self._pending = []
        try:
            self._table.clear()
        except _UNWRITABLE as error:
            hint = "run the next verify with --fresh: it would take over what this one found equal"
            log.error("verify_progress_not_cleared", error=str(error), hint=hint)

    def _record(self, name: Name, chunk: int, rows: int, cuts: str) -> None:
        columns = {
            **self._run_columns,
            Verify.DB: name[0],
            Verify.TABLE: name[1],
            Verify.AT_MS: time.time_ns() // 1_000_000,
        }
        self._pending.append({**columns, Verify.CHUNK: chunk, Verify.ROWS: rows, Verify.CUTS: cuts})
