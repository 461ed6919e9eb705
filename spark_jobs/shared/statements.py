"""The table `statement` for its writer and its reader: the same digest, column order and sequence of batches.

finalize executes only what is in this table, so everything it reads is first checked against the digests (R-62).
Batches that convert hands over in the same process need no check: their texts were digested when they were rendered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from binlake.common.lakecolumns import Statement
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import SegmentTable
from binlake.lake.mutations import read_touched_tables
from binlake.lake.opentable import load_table, open_dataset
from binlake.lake.paths import LakePaths
from binlake.lake.tables import STATEMENT, parse_schema
from binlake.spark_jobs.job.context import StageContext
from binlake.spark_jobs.shared.sinks import SinkWindow
from binlake.statements import Phase, StatementBatch, format_copy_name
from binlake.statements.batch import INDEX, compute_digest_of_index, restore_checked_batch
from binlake.statements.ddlsteps import assume_default_variables
from binlake.statements.literal import quote_qualified_name
from binlake.target import SegmentPlan
from binlake.target.segments import SegmentContent, WindowPlans

_BATCH = tuple(name for name in STATEMENT.list_column_names() if name != Statement.WINDOW)
STATEMENT_ARROW = parse_schema(STATEMENT.build_spark_schema())
_STRETCH_ROWS = 10_000
"""Row changes read at a time in mode ordered."""
_READ_AHEAD = 8
"""Batches read at a time: each may have some MiB of text."""
_SMALL_SEGMENTS_BYTES = 16 << 20
"""Bytes of text of neighbouring segments that are read together."""


def quote_copy_name(target: TargetSection, replication: str, window: str, place: SegmentTable) -> str:
    """The quoted name of the copy of a table that a segment of `window` creates."""
    return quote_qualified_name(target.checkpoint_schema, format_copy_name(replication, window, *place))


@dataclass(frozen=True)
class RenderedBatch:
    """A batch in memory: `batch` without its statements, and their `texts` as UTF-8.

    A str takes up to four times as much memory, and an Arrow column twice the CPU.
    """

    batch: StatementBatch
    texts: tuple[bytes, ...]

    @classmethod
    def of(cls, batch: StatementBatch) -> RenderedBatch:
        """`batch`, to be held."""
        return cls(replace(batch, sql=()), tuple(text.encode("utf-8", "surrogateescape") for text in batch.sql))

    def restore(self) -> StatementBatch:
        """The batch that is held."""
        return replace(self.batch, sql=tuple(text.decode("utf-8", "surrogateescape") for text in self.texts))


class LakeStatements:
    """The statements of one window (a StatementSource), read from one Delta version through delta-rs.

    `held`: the same batches, if they are still in memory. `assumes_defaults`: that sessions of the source had the
    default variables.
    """

    def __init__(
        self,
        paths: LakePaths,
        window: SinkWindow,
        target: TargetSection,
        replication: str,
        held: Sequence[RenderedBatch] | None = None,
        *,
        assumes_defaults: bool = False,
    ) -> None:
        self.window = window
        self._assumes_defaults = assumes_defaults
        self._paths = paths
        self._replication = replication
        self._target = target
        self._plans = WindowPlans(window.definitions, window.segments, window.cuts, window.versions, target.db_type)
        self._own = ds.field(Statement.WINDOW) == window.bounds.window
        self._held = None if held is None else _group_by_place(held)
        if held is None:
            self._data = open_dataset(load_table(paths.locate_table(STATEMENT.name)))
            stored = self._data.to_table(columns=list(INDEX), filter=self._own)
        else:
            stored = build_index([one.batch for one in held])
        self._index = stored.to_pylist()
        self._last_read: tuple[list[int], dict[tuple[int, int], list[dict[str, Any]]]] | None = None

    def compute_digest(self) -> str:
        """SHA-256 over the position, row count and digest of every batch, in order."""
        return compute_digest_of_index(self._index)

    @property
    def rows(self) -> int:
        """Row changes in all batches."""
        return sum(row[Statement.ROWS] for row in self._index)

    @property
    def count(self) -> int:
        """The number of batches and DDL."""
        return len(self._index)

    def list_segments(self) -> list[SegmentPlan]:
        """All segments in order."""
        return list(self._segments)

    def list_ddls(self) -> list[StatementBatch]:
        """The DDL of all segments, as stored."""
        return [self._ddls[number] for number in sorted(self._ddls)]

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """The batches of a phase in the order of the files: within a phase the order does not matter (invariant 6).

        In mode ordered, they are sorted by number.
        """
        if not any(row[Statement.PHASE] == phase for row in self._index_of(segment)):
            # Most segments of a window with many DDL have no rows; do not search the files for each of them.
            return
        if self._held is not None:
            yield from (one.restore() for one in self._held.get((segment, phase), ()))
            return
        if len(self._neighbours[segment]) > 1:
            yield from map(restore_checked_batch, self._read_with_neighbours(segment).get((segment, phase), ()))
            return
        if phase == Phase.ORDERED:
            yield from self._read_in_order(segment)
            return
        where = (ds.field(Statement.SEGMENT) == segment) & (ds.field(Statement.PHASE) == phase)
        for batch in self._read_by_groups(_BATCH, where):
            yield from map(restore_checked_batch, batch.to_pylist())

    def _read_by_groups(self, columns: Sequence[str], where: ds.Expression) -> Iterator[pa.RecordBatch]:
        """`columns` of the stored rows `where`, one row group after the other.

        A scan of the whole table reads far ahead of a target that takes its time.
        """
        schema = self._data.schema
        for file in self._data.get_fragments(self._own & where):
            for group in file.split_by_row_group(where, schema):
                yield from group.to_batches(schema, columns=list(columns), filter=where, batch_size=_READ_AHEAD)

    def _read_with_neighbours(self, segment: int) -> dict[tuple[int, int], list[dict[str, Any]]]:
        """Batches by (segment, phase), in order, of `segment` and its neighbours, which will be requested next.

        Each read searches all files: with one read for each segment, a window of 3,000 DDL took half an hour.
        """
        segments = self._neighbours[segment]
        if self._last_read is None or self._last_read[0] is not segments:
            place = (ds.field(Statement.SEGMENT) >= segments[0]) & (ds.field(Statement.SEGMENT) <= segments[-1])
            where = self._own & place & (ds.field(Statement.PHASE) != int(Phase.DDL))
            stored = self._data.to_table(columns=list(_BATCH), filter=where).sort_by(Statement.BATCH)
            batches: dict[tuple[int, int], list[dict[str, Any]]] = {}
            for row in stored.to_pylist():
                batches.setdefault((row[Statement.SEGMENT], row[Statement.PHASE]), []).append(row)
            self._last_read = segments, batches
        return self._last_read[1]

    @cached_property
    def _neighbours(self) -> dict[int, list[int]]:
        """For each segment with rows, the segments read with it, ascending; a large one is read alone, in parts."""
        with_rows = sorted({row[Statement.SEGMENT] for row in self._index if row[Statement.PHASE] != Phase.DDL})
        if len(with_rows) < 2:
            return {segment: [segment] for segment in with_rows}
        groups: list[list[int]] = []
        room = 0
        for segment in with_rows:
            room -= self._bytes[segment]
            if room < 0 or not groups:
                groups.append([])
                room = _SMALL_SEGMENTS_BYTES - self._bytes[segment]
            groups[-1].append(segment)
        return {segment: group for group in groups for segment in group}

    def _read_in_order(self, segment: int) -> Iterator[StatementBatch]:
        place = self._own & (ds.field(Statement.SEGMENT) == segment) & (ds.field(Statement.PHASE) == int(Phase.ORDERED))
        index = sorted(
            (row[Statement.BATCH], row[Statement.ROWS])
            for row in self._index_of(segment)
            if row[Statement.PHASE] == Phase.ORDERED
        )
        for first, last in _group_into_stretches(index):
            where = place & (ds.field(Statement.BATCH) >= first) & (ds.field(Statement.BATCH) <= last)
            stretch = self._data.to_table(columns=list(_BATCH), filter=where)
            yield from map(restore_checked_batch, stretch.sort_by(Statement.BATCH).to_pylist())

    def _plan_segment(self, number: int) -> SegmentPlan:
        own = [row for row in self._index_of(number) if row[Statement.PHASE] != Phase.DDL]
        ordered = any(row[Statement.PHASE] == Phase.ORDERED for row in own)
        names = sorted({(row[Statement.DB], row[Statement.TABLE]) for row in own})
        if ordered:
            # In mode ordered a batch may change several tables.
            names = self._touched.get(number, [])
        size = self._bytes.get(number, 0) if self._target.mode == "auto" else None
        ddl = self._ddls.get(number)
        if ddl is not None and self._assumes_defaults:
            ddl = assume_default_variables(ddl)
        plan = self._plans.plan_segment(
            number, SegmentContent(names, sum(row[Statement.ROWS] for row in own), size, ordered, ddl)
        )
        return replace(plan, copies=self._list_copies(number, own))

    def _list_copies(self, segment: int, own: list[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
        """(quoted copy, quoted table) of the tables of the segment that have batches of phase KEEP."""
        names = sorted({(row[Statement.DB], row[Statement.TABLE]) for row in own if row[Statement.PHASE] == Phase.KEEP})
        window = self.window.bounds.window
        return tuple(
            (
                quote_copy_name(self._target, self._replication, window, SegmentTable(segment, *name)),
                quote_qualified_name(*name),
            )
            for name in names
        )

    def _index_of(self, segment: int) -> list[dict[str, Any]]:
        return self._indices.get(segment, [])

    @cached_property
    def _indices(self) -> dict[int, list[dict[str, Any]]]:
        by_segment: dict[int, list[dict[str, Any]]] = {}
        for row in self._index:
            by_segment.setdefault(row[Statement.SEGMENT], []).append(row)
        return by_segment

    @cached_property
    def _ddls(self) -> dict[int, StatementBatch]:
        """The DDL of each segment that begins with one, in one pass over the files."""
        if self._held is not None:
            ddls = (one for (_, phase), some in self._held.items() if phase == Phase.DDL for one in some)
            return {one.batch.segment: one.restore() for one in ddls}
        stored = self._data.to_table(
            columns=list(_BATCH), filter=self._own & (ds.field(Statement.PHASE) == int(Phase.DDL))
        )
        return {batch.segment: batch for batch in map(restore_checked_batch, stored.to_pylist())}

    @cached_property
    def _segments(self) -> list[SegmentPlan]:
        return [self._plan_segment(number) for number in range(len(self.window.segments.starts) + 1)]

    @cached_property
    def _touched(self) -> dict[int, list[tuple[str, str]]]:
        """Tables with row changes, by segment."""
        bounds = self.window.bounds
        names: dict[int, list[tuple[str, str]]] = {}
        for place in read_touched_tables(self._paths, bounds.lo, bounds.hi, self.window.segments.starts):
            names.setdefault(place.segment, []).append(place.name)
        return names

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """Bytes of text by segment. Reads all texts once; used only if the sizes are needed before the apply."""
        sizes: dict[int, int] = {}
        if self._held is not None:
            for (segment, phase), some in self._held.items():
                size = sum(len(text) for one in some for text in one.texts) if phase != Phase.DDL else 0
                sizes[segment] = sizes.get(segment, 0) + size
            return sizes
        where = ds.field(Statement.PHASE) != int(Phase.DDL)
        for part in self._read_by_groups((Statement.SEGMENT, Statement.SQL), where):
            for segment, texts in zip(part[Statement.SEGMENT].to_pylist(), part[Statement.SQL], strict=True):
                sizes[segment] = sizes.get(segment, 0) + pc.sum(pc.binary_length(texts.values)).as_py()
        return sizes


def read_statements(
    ctx: StageContext, window: SinkWindow, target: TargetSection, held: Sequence[RenderedBatch] | None = None
) -> LakeStatements:
    """The statements of `window` in the lake; `held`: the same batches, if they are still in memory."""
    assumes_defaults = ctx.replication.source.session_variables == "default"
    return LakeStatements(ctx.paths, window, target, ctx.replication.name, held, assumes_defaults=assumes_defaults)


def _group_into_stretches(index: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """(first, last) batch of runs of about _STRETCH_ROWS rows, from (batch, rows) in order."""
    first, rows = 0, 0
    for place, (batch, size) in enumerate(index):
        rows += size
        if rows >= _STRETCH_ROWS or place == len(index) - 1:
            yield index[first][0], batch
            first, rows = place + 1, 0


def _group_by_place(held: Iterable[RenderedBatch]) -> dict[tuple[int, int], list[RenderedBatch]]:
    """By segment and phase, in order of their numbers."""
    groups: dict[tuple[int, int], list[RenderedBatch]] = {}
    for one in sorted(held, key=lambda one: one.batch.batch):
        groups.setdefault((one.batch.segment, one.batch.phase), []).append(one)
    return groups


def build_statement_table(window: str, batches: Sequence[StatementBatch]) -> pa.Table:
    """Rows of `statement`."""
    own = pa.array([window] * len(batches), STATEMENT_ARROW.field(Statement.WINDOW).type)
    columns = {name: _build_column(batches, name) for name in _BATCH} | {Statement.WINDOW: own}
    return pa.Table.from_arrays([columns[name] for name in STATEMENT_ARROW.names], schema=STATEMENT_ARROW)


def build_index(batches: Sequence[StatementBatch]) -> pa.Table:
    """The columns INDEX of the rows of `statement` for `batches`."""
    columns = [_build_column(batches, name) for name in INDEX]
    return pa.Table.from_arrays(columns, schema=pa.schema([STATEMENT_ARROW.field(name) for name in INDEX]))


def _build_column(batches: Sequence[StatementBatch], name: str) -> pa.Array:
    return pa.array([getattr(batch, name) for batch in batches], STATEMENT_ARROW.field(name).type)
