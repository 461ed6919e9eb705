"""The statements of a window of files: what the guarded apply asks for (`binlake.target.segments.StatementSource`).

Rows: the net change of each key, by the same functions as `compact` and `convert`. A DDL: a window of two segments, the
first without rows. The manifest pins what the files hold and nothing that the target shows, since a run that is
continued finds another target: with the DDL, or without.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.dialects import Dialect
from binlake.base.lakecolumns import Change
from binlake.changes.net.columns import net_changes
from binlake.reparo.ddl import TargetDdl
from binlake.reparo.rows import WindowRows
from binlake.reparo.windows import FileWindow
from binlake.rows.schema import TableDef
from binlake.statements import UNCHECKED, BatchLimits, Phase, StatementBatch, TableStatements, images_from_maps
from binlake.statements.batch import statement_digest
from binlake.statements.digests import batch_to_row, digest_of_index
from binlake.target import Expected, SegmentPlan
from binlake.window.definitions import Cell, key_defaults_of
from binlake.window.manifest import ApplyManifest, window_name

Name = tuple[str, str]


@dataclass(frozen=True)
class Task:
    """Whose windows they are: `name` of the run, its number, and what decides the statements (`config_hash`)."""

    name: str
    cluster_id: int
    config_hash: str
    dialect: Dialect
    limits: BatchLimits


@dataclass(frozen=True)
class RowStatements:
    """A window of rows. `expected`: the forms of its tables at the target; `plain`: outside safe mode."""

    task: Task
    window: FileWindow
    found: WindowRows
    expected: Expected
    plain: bool

    def manifest(self) -> ApplyManifest:
        """What pins it."""
        digest = digest_of_index(batch_to_row(batch) for batch in self._batches)
        rows = sum(batch.rows for batch in self._batches)
        return _manifest(self.task, self.window, digest, rows=rows, segments=1, plain=self.plain)

    def segments(self) -> list[SegmentPlan]:
        """One."""
        rows, size = (sum(values) for values in ((b.rows for b in self._batches), (_size(b) for b in self._batches)))
        return [SegmentPlan(0, self.window.hi, 0, expected=self.expected, rows=rows, bytes=size)]

    def batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """As StatementSource."""
        return (batch for batch in self._batches if (batch.segment, batch.phase) == (segment, phase))

    @cached_property
    def _batches(self) -> list[StatementBatch]:
        batches: list[StatementBatch] = []
        numbers = {Phase.DELETE: 0, Phase.WRITE: 0}
        for name, table in sorted(self.found.tables.items()):
            net = net_changes(self.found.rows, [_cell(name, table, self.window)]).combine_chunks()
            is_gone = pc.equal(net[Change.OP], "delete")
            for phase, rows in ((Phase.DELETE, net.filter(is_gone)), (Phase.WRITE, net.filter(pc.invert(is_gone)))):
                if rows.num_rows:
                    writer = TableStatements(table, 0, dialect=self.task.dialect, limits=self.task.limits,
                                             first_batch=numbers[phase], plain=self.plain)  # fmt: skip
                    batches += _rendered(writer, table, rows.combine_chunks(), phase)
                    numbers[phase] = writer.next_batch
        return batches


def _cell(name: Name, table: TableDef, window: FileWindow) -> Cell:
    identity = table.identity()
    filled = tuple(key_defaults_of(table).values())
    return Cell(*name, 0, window.lo + 1, window.hi + 1, identity.kind, identity.columns, filled)


def _rendered(writer: TableStatements, table: TableDef, rows: pa.Table, phase: Phase) -> Iterator[StatementBatch]:
    gone, keyless = phase is Phase.DELETE, table.identity().kind == "row"
    names = table.identity().columns if gone and not keyless else [column.name for column in table.row_columns]
    # By key: connections that write side by side then lock in one order.
    in_order = np.asarray(pc.sort_indices(rows[Change.KEY].chunk(0)))
    images = images_from_maps(rows[Change.BEFORE if gone else Change.AFTER].chunk(0), names, in_order)
    if not keyless:
        return writer.render_deletes(images) if gone else writer.render_writes(images)
    copies: Sequence[int] = np.asarray(rows[Change.COPIES])[in_order]
    return writer.render_image_deletes(images, copies) if gone else writer.render_inserts(images, copies)


def _size(batch: StatementBatch) -> int:
    return sum(map(len, batch.sql))


@dataclass(frozen=True)
class DdlStatements:
    """A window of one DDL, which runs as `mapped` says."""

    task: Task
    window: FileWindow
    mapped: TargetDdl

    def manifest(self) -> ApplyManifest:
        """What pins it: the text of the file."""
        ddl = self.window.ddl
        text = f"{ddl.db}\0{ddl.sql}" if ddl is not None else ""
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
        return _manifest(self.task, self.window, digest, rows=0, segments=2, plain=False)

    def segments(self) -> list[SegmentPlan]:
        """All before the DDL, and the DDL."""
        hi, mapped = self.window.hi, self.mapped
        batch = _ddl_batch(self.window, mapped.sql) if mapped.sql else None
        return [
            SegmentPlan(0, hi - 1, 0),
            SegmentPlan(1, hi, 0, batch, hi if batch else 0, mapped.touched, mapped.after, mapped.repeatable),
        ]

    def batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """No rows."""
        del segment, phase
        return iter(())


def _ddl_batch(window: FileWindow, sql: tuple[str, ...]) -> StatementBatch:
    table = window.ddl.table if window.ddl is not None else ""
    return StatementBatch(
        1, Phase.DDL, 0, "", table, "ddl", sql, (UNCHECKED,) * len(sql), "", 0, 0, statement_digest(sql)
    )


def _manifest(task: Task, window: FileWindow, digest: str, *, rows: int, segments: int, plain: bool) -> ApplyManifest:
    return ApplyManifest(
        replication=task.name,
        sink="files",
        cluster_id=task.cluster_id,
        lo=window.lo,
        hi=window.hi,
        config_hash=task.config_hash,
        safe_mode="plain" if plain else "safe",
        definitions="",
        change="",
        statement=digest,
        segments=segments,
        rows=rows,
        schema_version=0,
        windows=(window_name(window.lo, window.hi),),
        cuts=(window.hi,) if segments > 1 else (),
    )
