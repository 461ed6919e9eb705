"""The row changes of a sink's window if tables that share a target wait for each other's DDL (pessimistic mode).

Rows of the window that are held are left out; rows that the window releases are added, from earlier windows in the
lake.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Mutation
from binlake.changes.net.events import COLUMNS, SOURCE
from binlake.ddl.definitions import SegmentTable
from binlake.ddl.shardlocks import Hold
from binlake.ddl.sharedrows import ReleasedRange, apply_holds, find_released_ranges
from binlake.lake.mutations import count_touched_tables
from binlake.lake.sharedtargets import read_locks
from binlake.lake.tables import MUTATION
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.lakerows import list_history_rows
from binlake.spark_jobs.engine.rows import MappedRows, Rows, cut_rows, pack_rows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.passed import MergedWindow

_GIVEN_TASK_BYTES = 16 << 20
"""Bytes of given rows that a task of this process takes."""
_NEEDED = (*COLUMNS, *SOURCE)
_NARROW = (
    Mutation.COMMIT_TS,
    Mutation.START_TS,
    Mutation.DB,
    Mutation.TABLE,
    Mutation.SOURCE_DB,
    Mutation.SOURCE_TABLE,
)


@dataclass(frozen=True)
class WindowChanges:
    """Row changes that a window applies: its own `parts` and `earlier` ones that it releases; `holds` change them."""

    parts: tuple[Rows, ...]
    earlier: tuple[Rows, ...] = ()
    holds: tuple[Hold, ...] = ()
    hi: int = 0

    @property
    def rows(self) -> list[Rows]:
        """The parts as the window applies them, with the columns COLUMNS and SOURCE."""
        return self._apply(_NEEDED, self.holds)

    def find_touched(self, starts: Sequence[int]) -> list[SegmentTable]:
        """The tables and segments of the row changes, sorted; `starts` open segments 1, 2, ..."""
        return sorted(self.count_touched(starts))

    def count_touched(self, starts: Sequence[int]) -> Counter[SegmentTable]:
        """The row changes by table and segment; `starts` open segments 1, 2, ..."""
        names = [Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS]
        # No column is filled here, as only names and places are read.
        parts = self._apply(_NARROW, [replace(hold, filled={}) for hold in self.holds])
        return count_touched_tables((batch for rows in parts for batch in rows.read(names)), starts)

    def _apply(self, needed: tuple[str, ...], holds: Sequence[Hold]) -> list[Rows]:
        every = [*self.parts, *self.earlier]
        if not self.holds:
            return every
        return [MappedRows(rows, partial(_place, holds=tuple(holds), hi=self.hi), needed) for rows in every]


def read_window_changes(
    ctx: StageContext, engine: Engine, bounds: Bounds, count: int, given: MergedWindow | None = None
) -> WindowChanges | None:
    """The changes to apply in a window that has `count` rows; None if there are none. Raises DamagedManifest."""
    holds = read_locks(ctx.windows, ctx.rules, bounds.lo, bounds.hi).holds
    earlier = find_released_ranges(holds, bounds.lo, bounds.hi)
    if not count and not earlier:
        return None
    released = [rows for one in earlier for rows in _list_released(ctx, one, engine.task_bytes)]
    parts = list_mutation_parts(ctx, engine, bounds, given) if count else []
    return WindowChanges(tuple(parts), tuple(released), tuple(holds), bounds.hi)


def list_mutation_parts(
    ctx: StageContext, engine: Engine, bounds: Bounds, given: MergedWindow | None = None
) -> list[Rows]:
    """The row changes of `bounds`: those that merge has `given` for this window, else the lake's."""
    if given is not None and given.bounds == bounds:
        # A task copies its rows, and in this process that is memory: there more tasks cost nothing.
        most = _GIVEN_TASK_BYTES if engine.holds else engine.task_bytes
        own = [piece for rows in given.rows for piece in cut_rows(rows, most)]
        return own if engine.holds else pack_rows(own, engine.task_bytes)
    return [*list_history_rows(ctx.paths, MUTATION, bounds.lo, bounds.hi, engine.task_bytes)]


def _place(rows: pa.Table, holds: Sequence[Hold], hi: int) -> pa.Table:
    return apply_holds(rows, holds, hi)


def _list_released(ctx: StageContext, one: ReleasedRange, task_bytes: int) -> list[Rows]:
    """The rows of the range's source table."""
    parts = list_history_rows(ctx.paths, MUTATION, one.lo, one.hi, task_bytes)
    return [MappedRows(rows, partial(_select_source, source=one.source), _NEEDED) for rows in parts]


def _select_source(rows: pa.Table, source: tuple[str, str]) -> pa.Table:
    db, table = (
        pc.equal(rows[name], value)
        for name, value in zip((Mutation.SOURCE_DB, Mutation.SOURCE_TABLE), source, strict=True)
    )
    return rows.filter(pc.and_(db, table))
