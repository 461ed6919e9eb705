"""The statements of a window of files, as a StatementSource (`binlake.target.segments`) for the guarded apply.

Rows: the net change of each key, computed by the same functions as in `compact` and `convert`. A row has the columns of
the target's table at this position. A column that the file lacks was added after the row was written. A column that the
target lacks stops the run, as its value would be lost. DDL: one segment each, after an empty segment. The manifest of
DDL pins only the contents of the files and nothing read from the target, because a resumed run may find the target with
or without the DDL.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from binlake.binlogfile.framing import build_damage_error
from binlake.binlogfile.reading import BinlogTransaction
from binlake.changes.net.columns import compute_net_changes
from binlake.changes.net.events import COLUMNS
from binlake.changes.net.images import MAP
from binlake.common.lakecolumns import Change
from binlake.common.sql import Dialect
from binlake.ddl.definitions import Cell, derive_key_defaults
from binlake.errors import SchemaError
from binlake.extras.reparo.cells import CellError, GroupColumn, ReadDatum, build_datum_reader, read_texts, split_columns
from binlake.extras.reparo.ddl import CURRENT, ReparoTables, TargetDdl, with_json_columns
from binlake.extras.reparo.windows import FileWindow
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.codec.lanes import repeat_names
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.forms import fold_name
from binlake.statements import UNCHECKED, BatchLimits, Phase, StatementBatch, TableStatements, build_images_from_maps
from binlake.statements.batch import compute_digest_of_index, compute_statement_digest, convert_batch_to_row
from binlake.target import ExpectedState, SegmentPlan
from binlake.window.manifest import ApplyManifest, format_window_name
from binlake.wire import pb_binlog_pb2 as pb

Name = tuple[str, str]
Image = list[tuple[str, pa.Array]]
"""The texts of each column, by its name at the target."""
_Key = tuple[str, str, int, int]
"""Database, table, kind of event, number of columns."""


@dataclass(frozen=True)
class WindowRows:
    """`rows`: COLUMNS of the lake's `mutation`, in any order; `tables`: the tables of these rows."""

    rows: pa.Table
    tables: Mapping[Name, TableDef]


@dataclass
class _Group:
    """Rows of one kind and table. `numbers`: per row (transaction, position in it); `raws`: their columns, flat."""

    numbers: list[tuple[int, int]] = field(default_factory=list)
    raws: list[bytes] = field(default_factory=list)

    @property
    def width(self) -> int:
        """The number of columns of a row."""
        return len(self.raws) // len(self.numbers)


def read_rows(
    transactions: Iterable[BinlogTransaction], target: ReparoTables, zone: ZoneInfo, keeps: Callable[[str, str], bool]
) -> WindowRows:
    """The selected rows of `transactions`. Raises SchemaError for rows that do not fit the target's tables."""
    known = list(transactions)
    tables: dict[Name, _TableReader] = {}
    parts = [_build_table([], pa.nulls(0, MAP), pa.nulls(0, MAP), ("", ""))]
    for key, group in _group_rows(known).items():
        name = key[:2]
        if not keeps(*name):
            continue
        if name not in tables:
            at = known[group.numbers[0][0]]
            tables[name] = _TableReader(target.require(*name, at.commit_ts), at, name, zone)
        parts += tables[name].read(group, key[2], known)
    found = {(reader.table.db, reader.table.name): reader.table for reader in tables.values()}
    return WindowRows(pa.concat_tables(parts).combine_chunks(), found)


def _group_rows(transactions: list[BinlogTransaction]) -> dict[_Key, _Group]:
    groups: dict[_Key, _Group] = {}
    for number, transaction in enumerate(transactions):
        for seq, event in enumerate(transaction.message.dml_data.events):
            raws = event.row
            key = (event.schema_name, event.table_name, event.tp, len(raws))
            group = groups.get(key)
            if group is None:
                group = groups[key] = _Group()
            group.numbers.append((number, seq))
            group.raws.extend(raws)
    return groups


def _build_table(numbers: list[tuple[int, int]], before: pa.Array, after: pa.Array, name: Name) -> pa.Table:
    commit_ts, seq = (pa.array([pair[at] for pair in numbers], pa.int64()) for at in (0, 1))
    names = [pa.repeat(pa.scalar(text, pa.string()), len(numbers)) for text in name]
    return pa.Table.from_arrays([commit_ts, commit_ts, seq, *names, before, after], names=list(COLUMNS))


class _TableReader:
    """Reads the groups of one table. A row of `first` shows which columns are JSON at the source."""

    def __init__(self, table: TableDef, first: BinlogTransaction, name: Name, zone: ZoneInfo) -> None:
        self.table = with_json_columns(table, _list_json_columns(first, name))
        self._zone = zone
        self._where = f"{table.db}.{table.name}"
        self._columns = {fold_name(column.name): column for column in self.table.row_columns}
        self._hidden = {fold_name(column.name) for column in self.table.all_columns} - self._columns.keys()
        self._readers: dict[str, ReadDatum] = {
            name: build_datum_reader(column, zone) for name, column in self._columns.items()
        }

    def read(self, group: _Group, kind: int, transactions: list[BinlogTransaction]) -> list[pa.Table]:
        """The rows of `group`. Raises SchemaError, DamagedFile."""
        try:
            columns = split_columns(group.raws, group.width, update=kind == pb.Update) if group.width else []
            if columns is None and len(group.numbers) == 1:
                raise DecodeError("a column without a value")
            if columns is None:
                return [part for one in _split_group(group) for part in self.read(one, kind, transactions)]
        except DecodeError as error:
            place = transactions[group.numbers[0][0]].place
            raise build_damage_error(f"a row cannot be read: {error!r}", place.file, place.offset) from error
        commits = [transactions[number].commit_ts for number, _ in group.numbers]
        first, second = self._read_images(columns, kind, commits)
        none = pa.nulls(len(commits), MAP)
        before = none if kind == pb.Insert else _build_maps(first, len(commits))
        last = second if kind == pb.Update else self._complete_image(first, commits)
        after = none if kind == pb.Delete else _build_maps(last, len(commits))
        numbers = [(ts, seq) for ts, (_, seq) in zip(commits, group.numbers, strict=True)]
        return [_build_table(numbers, before, after, (self.table.db, self.table.name))]

    def _read_images(self, columns: list[GroupColumn], kind: int, commits: list[int]) -> tuple[Image, Image]:
        first: Image = []
        second: Image = []
        for found in columns:
            column = self._find_column(found.head.name, kind, commits[0])
            if column is None:
                continue
            read = self._readers[fold_name(column.name)]
            try:
                first.append((column.name, read_texts(found.value, column, read, self._zone)))
                if found.changed is not None:
                    second.append((column.name, read_texts(found.changed, column, read, self._zone)))
            except CellError as error:
                raise self._build_misfit_error(found.head, commits[error.row], error) from error
        return first, self._complete_image(second, commits) if kind == pb.Update else second

    def _find_column(self, name: str, kind: int, commit_ts: int) -> ColumnInfo | None:
        """The column by its name in the file; None for a column that the target computes or that no longer exists."""
        folded = fold_name(name)
        # A deleted row also has columns that were no longer visible at the source.
        if folded not in self._columns and kind != pb.Delete and folded not in self._hidden:
            raise SchemaError(
                "the files have a column that the target's table does not have",
                where={"table": self._where, "column": name, "commit_ts": commit_ts},
                hint="the target is not at the position in the files at which the run began: restore the base that"
                " belongs to start-tso, or add the column",
            )
        return self._columns.get(folded)

    def _complete_image(self, image: Image, commits: list[int]) -> Image:
        """`image` with the columns that it lacks, which were added but not public yet."""
        there = {name for name, _ in image}
        lacking = [column for column in self._columns.values() if column.name not in there]
        filled = [(column.name, self._derive_fill(column, commits[0])) for column in lacking]
        return [*image, *((name, pa.repeat(pa.scalar(text, pa.string()), len(commits))) for name, text in filled)]

    def _derive_fill(self, column: ColumnInfo, commit_ts: int) -> str | None:
        if column.default_is_expr or column.default == CURRENT:
            raise SchemaError(
                "a row lacks a column whose default differs for each row",
                where={"table": self._where, "column": column.name, "commit_ts": commit_ts},
                hint="set the column's values by hand after this commit_ts, or restore up to it",
            )
        return derive_filled_text(column)

    def _build_misfit_error(self, head: pb.Column, commit_ts: int, error: Exception) -> SchemaError:
        return SchemaError(
            f"a value of a file does not fit the target's column: {error}",
            where={"table": self._where, "column": head.name, "type": head.mysql_type, "commit_ts": commit_ts},
            hint="the target's definition differs from the source's at this position: restore the base that belongs to"
            " start-tso",
        )


def _list_json_columns(transaction: BinlogTransaction, name: Name) -> list[str]:
    events = (e for e in transaction.message.dml_data.events if (e.schema_name, e.table_name) == name)
    columns = map(pb.Column.FromString, next(iter(events)).row)
    return [column.name for column in columns if column.tp == bytes([t.JSON])]


def _split_group(group: _Group) -> list[_Group]:
    """One group per row, each re-serialised in the standard order of fields. Raises DecodeError."""
    again = [pb.Column.FromString(raw).SerializeToString() for raw in group.raws]
    width = group.width
    return [_Group([number], again[at * width : (at + 1) * width]) for at, number in enumerate(group.numbers)]


def _build_maps(image: Image, count: int) -> pa.MapArray:
    """Build one image per row from the columns."""
    width = len(image)
    offsets = pa.array(
        np.arange(0, (count + 1) * width, width, dtype=np.int32) if width else np.zeros(count + 1, np.int32)
    )
    if not width:
        return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string())).cast(MAP)
    by_row = np.arange(width * count).reshape(width, count).T.ravel()
    values = pa.concat_arrays([texts for _, texts in image]).take(pa.array(by_row))
    return pa.MapArray.from_arrays(offsets, repeat_names([name for name, _ in image], count), values).cast(MAP)


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
