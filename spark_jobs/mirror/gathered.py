"""Consecutive windows whose net changes the mirrors apply as one: a MERGE reads and rewrites each file with a changed
row, whatever number of its rows changed.

Rule: of a key the last change counts. So only windows are joined in which nothing but the last change decides: without
DDL, without tables whose rows have no key, and derived in this process for the same segments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Change, Mutation
from binlake.changes.net.columns import NET
from binlake.ddl.definitions import Cell, SegmentTable
from binlake.spark_jobs.engine.rows import HeldRows
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.job.passed import MergedWindow
from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.tables.compacted import Compacted, Converted
from binlake.spark_jobs.tables.netrows import NetRows
from binlake.window.derived import Merged

ROWS = pa.schema(
    [NET.field(name) for name in (Change.OP, Change.BEFORE, Change.AFTER, Change.COPIES, Change.LAST_COMMIT_TS)]
)
"""The columns of a net change that a mirror needs."""
_KEYLESS = "row"

Given = MergedWindow | Compacted | Converted | None
"""What this process has derived of one window: its rows, or their net changes as well."""


@dataclass(frozen=True)
class GatheredWindows:
    """The net changes of consecutive windows in memory: `places`, in order of the windows; `merged`: without rows."""

    merged: MergedWindow
    places: tuple[tuple[SegmentTable, HeldRows], ...]
    cells: frozenset[Cell]

    @property
    def bounds(self) -> Bounds:
        """From the beginning of the first window to the end of the last one."""
        return self.merged.bounds

    @property
    def bytes(self) -> int:
        """Bytes of Arrow that are held."""
        return sum(rows.bytes for _, rows in self.places)

    def join(self, following: GatheredWindows) -> GatheredWindows:
        """These windows and those that follow them."""
        first, last = self.merged, following.merged
        merged = MergedWindow(
            Bounds(first.bounds.lo, last.bounds.hi),
            Merged.add_up((first.merged, last.merged)),
            (),
            (first.schemas[0], last.schemas[1]),
        )
        return GatheredWindows(merged, (*self.places, *following.places), self.cells | following.cells)

    def has_cells(self, cells: Iterable[Cell]) -> bool:
        """Whether the changes are those of `cells`, with the same form of keys: the bounds differ by window."""
        return self.cells.issuperset(map(_forget_bounds, cells))


def gather(ctx: StageContext, given: object) -> GatheredWindows | None:
    """The window of `given`, to be joined with others; None if it must be applied, or is better applied, alone.

    New rows are only added, which costs no more for each window.
    """
    merged, net = unpack(given) if isinstance(given, Compacted | Converted) else (None, None)
    if merged is None or net is None or net.places is None or ctx.rules.routes:
        return None
    total, cells = merged.merged, frozenset(map(_forget_bounds, net.cells))
    of_window = all((cell.since, cell.until - 1) == (merged.bounds.lo + 1, merged.bounds.hi) for cell in net.cells)
    if total.ddls or total.base or not of_window or any(cell.identity == _KEYLESS for cell in cells):
        return None
    held = [(place, rows) for place, rows in net.places if isinstance(rows, HeldRows)]
    if len(held) < len(net.places) or _only_adds(merged):
        return None
    places = tuple((place, HeldRows(rows.table.select(ROWS.names))) for place, rows in held)
    return GatheredWindows(replace(merged, rows=()), places, cells)


def unpack(given: Given) -> tuple[MergedWindow | None, NetRows | None]:
    """(the rows, the net changes) of `given`."""
    if given is None or isinstance(given, MergedWindow):
        return given, None
    compacted = given.compacted if isinstance(given, Converted) else given
    return compacted.merged, compacted.net


def _only_adds(merged: MergedWindow) -> bool:
    ops = (batch.column(0) for rows in merged.rows for batch in rows.read([Mutation.OP]))
    return all(pc.all(pc.equal(own, "insert")).as_py() for own in ops)


def _forget_bounds(cell: Cell) -> Cell:
    return replace(cell, since=0, until=0)
