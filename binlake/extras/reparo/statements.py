"""The statements of a window of files, as a StatementSource (`binlake.target.segments`) for the guarded apply.

Rows: the net change of each key, computed by the same functions as in `compact` and `convert`. DDL: one segment each,
after an empty segment. The manifest of DDL pins only the contents of the files and nothing read from the target,
because a resumed run may find the target with or without the DDL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.lakecolumns import Change
from binlake.base.sql import Dialect
from binlake.changes.net.columns import compute_net_changes
from binlake.ddl.definitions import Cell, derive_key_defaults
from binlake.extras.reparo.ddl import TargetDdl
from binlake.extras.reparo.rows import WindowRows
from binlake.extras.reparo.windows import FileWindow
from binlake.rows.schema import TableDef
from binlake.statements import UNCHECKED, BatchLimits, Phase, StatementBatch, TableStatements, build_images_from_maps
from binlake.statements.batch import compute_digest_of_index, compute_statement_digest, convert_batch_to_row
from binlake.target import ExpectedState, SegmentPlan
from binlake.window.manifest import ApplyManifest, format_window_name

Name = tuple[str, str]


@dataclass(frozen=True)
class Task:
    """The run to which windows belong: `name`, `cluster_id`, and a hash of the settings that affect the statements."""

    name: str
    cluster_id: int
    config_hash: str
    dialect: Dialect
    limits: BatchLimits


@dataclass(frozen=True)
class RowStatements:
    """A window of rows. `expected`: the forms of its tables at the target; `plain`: without safe mode."""

    task: Task
    window: FileWindow
    found: WindowRows
    expected: ExpectedState
    plain: bool

    def build_manifest(self) -> ApplyManifest:
        """The manifest that pins the window."""
        digest = compute_digest_of_index(convert_batch_to_row(batch) for batch in self._batches)
        rows = sum(batch.rows for batch in self._batches)
        return _build_manifest(self.task, self.window, digest, rows=rows, plain=self.plain)

    def list_segments(self) -> list[SegmentPlan]:
        """As StatementSource: one segment."""
        rows = sum(batch.rows for batch in self._batches)
        size = sum(len(text) for batch in self._batches for text in batch.sql)
        return [SegmentPlan(0, self.window.hi, 0, expected=self.expected, rows=rows, bytes=size)]

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """As StatementSource."""
        return (batch for batch in self._batches if (batch.segment, batch.phase) == (segment, phase))

    @cached_property
    def _batches(self) -> list[StatementBatch]:
        return _render_rows(self.task, self.window, self.found, 0, plain=self.plain)


def _render_rows(
    task: Task, window: FileWindow, found: WindowRows, segment: int, *, plain: bool
) -> list[StatementBatch]:
    """The net changes of a window's rows as batches of `segment`."""
    batches: list[StatementBatch] = []
    numbers = {Phase.DELETE: 0, Phase.WRITE: 0}
    for name, table in sorted(found.tables.items()):
        net = compute_net_changes(found.rows, [_build_cell(name, table, window)]).combine_chunks()
        is_gone = pc.equal(net[Change.OP], "delete")
        for phase, rows in ((Phase.DELETE, net.filter(is_gone)), (Phase.WRITE, net.filter(pc.invert(is_gone)))):
            if rows.num_rows:
                writer = TableStatements(
                    table, segment, dialect=task.dialect, limits=task.limits, first_batch=numbers[phase], plain=plain
                )
                batches += _render_phase(writer, table, rows.combine_chunks(), phase)
                numbers[phase] = writer.next_batch
    return batches


def _build_cell(name: Name, table: TableDef, window: FileWindow) -> Cell:
    identity = table.find_identity()
    filled = tuple(derive_key_defaults(table).values())
    return Cell(*name, 0, window.lo + 1, window.hi + 1, identity.kind, identity.columns, filled)


def _render_phase(writer: TableStatements, table: TableDef, rows: pa.Table, phase: Phase) -> Iterator[StatementBatch]:
    gone, keyless = phase is Phase.DELETE, table.find_identity().kind == "row"
    names = table.find_identity().columns if gone and not keyless else [column.name for column in table.row_columns]
    # Sort by key, so that concurrent connections lock in the same order.
    in_order = np.asarray(pc.sort_indices(rows[Change.KEY].chunk(0)))
    images = build_images_from_maps(rows[Change.BEFORE if gone else Change.AFTER].chunk(0), names, in_order)
    if not keyless:
        return writer.render_deletes(images) if gone else writer.render_writes(images)
    copies: Sequence[int] = np.asarray(rows[Change.COPIES])[in_order]
    return writer.render_image_deletes(images, copies) if gone else writer.render_inserts(images, copies)


@dataclass(frozen=True)
class DdlStatements:
    """A window of DDL with the statements `mapped`, and of rows with the same commit_ts after them.

    `read`: reads these rows after the DDL ran, because it changes their tables.
    """

    task: Task
    window: FileWindow
    mapped: tuple[TargetDdl, ...]
    read: Callable[[], WindowRows]

    def build_manifest(self) -> ApplyManifest:
        """The manifest that pins the window: texts and rows of the files."""
        digest = hashlib.sha256()
        for ddl in self.window.ddls:
            digest.update(f"{ddl.db}\0{ddl.sql}\0".encode("utf-8", "surrogateescape"))
        for transaction in self.window.transactions:
            digest.update(transaction.message.SerializeToString(deterministic=True))
        return _build_manifest(self.task, self.window, digest.hexdigest(), rows=0, plain=False)

    def list_segments(self) -> list[SegmentPlan]:
        """A segment for everything before the DDL, then one per DDL; the last one has the rows."""
        hi, count = self.window.hi, len(self.mapped)
        plans = [SegmentPlan(0, hi - 1, 0)]
        for number, mapped in enumerate(self.mapped, 1):
            last = number == count
            batch = _build_ddl_batch(number, self.window.ddls[number - 1].table, mapped.sql) if mapped.sql else None
            plans.append(
                SegmentPlan(
                    number, hi if last else hi - 1, 0, batch, hi if batch else 0, mapped.touched, mapped.after,
                    mapped.repeatable, rows_ahead=not last or bool(self.window.transactions),
                )
            )  # fmt: skip
        return plans

    def read_batches(self, segment: int, phase: int) -> Iterator[StatementBatch]:
        """As StatementSource."""
        if segment < len(self.mapped) or not self.window.transactions:
            return iter(())
        return (batch for batch in self._batches if batch.phase == phase)

    @cached_property
    def _batches(self) -> list[StatementBatch]:
        return _render_rows(self.task, self.window, self.read(), len(self.mapped), plain=False)


def _build_ddl_batch(segment: int, table: str, sql: tuple[str, ...]) -> StatementBatch:
    unchecked, digest = (UNCHECKED,) * len(sql), compute_statement_digest(sql)
    return StatementBatch(segment, Phase.DDL, 0, "", table, "ddl", sql, unchecked, "", 0, 0, digest)


def _build_manifest(task: Task, window: FileWindow, digest: str, *, rows: int, plain: bool) -> ApplyManifest:
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
        segments=1 + len(window.ddls),
        rows=rows,
        schema_version=0,
        windows=(format_window_name(window.lo, window.hi),),
        cuts=(window.hi,) * len(window.ddls),
    )
