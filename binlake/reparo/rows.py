"""The row events of a window as the columns from which the net change is made (`binlake.changes.net`).

Rule: a row has the columns that the target's table has at this place. A column that the file lacks is the one that a
row had before it was added; one that the target lacks stops the run, as its value would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from binlake.binlogfile.reading import DELETE, UPDATE, Column, RowEvent, Transaction
from binlake.changes.net.events import COLUMNS
from binlake.changes.net.images import MAP
from binlake.errors import SchemaError
from binlake.reparo.definitions import CURRENT, TargetTables, with_json_columns
from binlake.reparo.values import ReadDatum, datum_reader
from binlake.rows.codec.writers import filled_text
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.names import fold_name

Name = tuple[str, str]
Image = list[tuple[str, str | None]]


@dataclass(frozen=True)
class WindowRows:
    """`rows`: COLUMNS of the lake's `mutation`, the rows of `count` events; `tables`: those that they go into."""

    rows: pa.Table
    tables: Mapping[Name, TableDef]
    count: int


def read_rows(
    transactions: Iterable[Transaction], target: TargetTables, zone: ZoneInfo, keeps: Callable[[str, str], bool]
) -> WindowRows:
    """The rows of `transactions` that count. Raises SchemaError for what does not fit the target's tables."""
    images = _Images()
    readers: dict[Name, _TableReader] = {}
    for transaction in transactions:
        for event in transaction.events:
            name = (event.db, event.table)
            reader = readers.get(name)
            if reader is None and not keeps(*name):
                continue
            if reader is None:
                table = target.require(*name, transaction.commit_ts)
                reader = readers[name] = _TableReader(table, event.columns, zone)
            before, after = reader.read(event, transaction.commit_ts)
            images.add(transaction.commit_ts, (reader.table.db, reader.table.name), before, after)
    tables = {(reader.table.db, reader.table.name): reader.table for reader in readers.values()}
    return WindowRows(images.table(), tables, images.count)


class _TableReader:
    """Reads the events of one table; `columns`: those of its first event, which say what is JSON."""

    def __init__(self, table: TableDef, columns: Sequence[Column], zone: ZoneInfo) -> None:
        self.table = with_json_columns(table, (column.name for column in columns if column.tp == t.JSON))
        self._where = f"{table.db}.{table.name}"
        self._columns = {fold_name(column.name): column for column in self.table.row_columns}
        self._hidden = {fold_name(column.name) for column in self.table.all_columns} - self._columns.keys()
        self._readers: dict[str, tuple[str, ReadDatum] | None] = {
            name: (column.name, datum_reader(column, zone)) for name, column in self._columns.items()
        }
        self._width = len(self._columns)

    def read(self, event: RowEvent, commit_ts: int) -> tuple[Image | None, Image | None]:
        """(before, after) of `event`. Raises SchemaError."""
        first: Image = []
        second: Image = []
        update, delete = event.kind == UPDATE, event.kind == DELETE
        for column in event.columns:
            known = self._readers.get(column.name) or self._reader_of(column.name, delete, commit_ts)
            if known is None:
                continue
            name, read = known
            try:
                first.append((name, read(column.value)))
                if update:
                    second.append((name, read(column.changed or b"")))
            except (IndexError, ValueError, KeyError, OverflowError) as error:
                raise self._misfit(column, commit_ts, error) from error
        if delete:
            return first, None
        return (first, self._whole(second, commit_ts)) if update else (None, self._whole(first, commit_ts))

    def _reader_of(self, name: str, delete: bool, commit_ts: int) -> tuple[str, ReadDatum] | None:
        """By the name as the file spells it; None for a column whose value the target computes, or that is gone."""
        folded = fold_name(name)
        known = self._readers.get(folded)
        # A deleted row also has columns that no reader of the source saw any more.
        if known is None and not delete and folded not in self._hidden:
            raise SchemaError(
                "the files have a column that the target's table does not have",
                where={"table": self._where, "column": name, "commit_ts": commit_ts},
                hint="the target is not at the place in the files where the run began: restore the base that belongs to"
                " start-tso, or add the column",
            )
        if known is not None or not delete:
            self._readers[name] = known
        return known

    def _whole(self, image: Image, commit_ts: int) -> Image:
        if len(image) == self._width:
            return image
        there = {name for name, _ in image}
        return [*image, *((c.name, self._filled(c, commit_ts)) for c in self._columns.values() if c.name not in there)]

    def _filled(self, column: ColumnInfo, commit_ts: int) -> str | None:
        """What a row has in a column that its event lacks: that column was added, and not public yet."""
        if column.default_is_expr or column.default == CURRENT:
            raise SchemaError(
                "a row lacks a column whose default is another one for each row",
                where={"table": self._where, "column": column.name, "commit_ts": commit_ts},
                hint="set the column's values by hand behind this commit_ts, or restore up to it",
            )
        return filled_text(column)

    def _misfit(self, column: Column, commit_ts: int, error: Exception) -> SchemaError:
        return SchemaError(
            f"a value of a file does not fit the target's column: {error}",
            where={"table": self._where, "column": column.name, "type": column.mysql_type, "commit_ts": commit_ts},
            hint="the target's definition is not the source's at this place: restore the base that"
            " belongs to start-tso",
        )


class _Images:
    """Gathers rows and their images."""

    def __init__(self) -> None:
        self._numbers: list[tuple[int, int]] = []
        self._names: list[Name] = []
        self._sides: tuple[list[Image | None], list[Image | None]] = ([], [])
        self._seq = 0
        self._commit_ts = -1

    @property
    def count(self) -> int:
        """How many rows."""
        return len(self._names)

    def add(self, commit_ts: int, name: Name, before: Image | None, after: Image | None) -> None:
        """One more row, in their order."""
        self._seq = self._seq + 1 if commit_ts == self._commit_ts else 0
        self._commit_ts = commit_ts
        self._numbers.append((commit_ts, self._seq))
        self._names.append(name)
        self._sides[0].append(before)
        self._sides[1].append(after)

    def table(self) -> pa.Table:
        """All rows: COLUMNS."""
        commit_ts = pa.array([ts for ts, _ in self._numbers], pa.int64())
        seq = pa.array([seq for _, seq in self._numbers], pa.int64())
        names = [pa.array([name[at] for name in self._names], pa.string()) for at in (0, 1)]
        columns = [commit_ts, commit_ts, seq, *names, *map(_map_array, self._sides)]
        return pa.Table.from_arrays(columns, names=list(COLUMNS))


def _map_array(images: list[Image | None]) -> pa.MapArray:
    ends = [0, *accumulate(0 if image is None else len(image) for image in images)]
    missing = [image is None for image in images]
    offsets = pa.array(ends, pa.int32(), mask=np.asarray([*missing, False]) if any(missing) else None)
    entries = [entry for image in images if image is not None for entry in image]
    keys = pa.array([name for name, _ in entries], pa.string())
    return pa.MapArray.from_arrays(offsets, keys, pa.array([text for _, text in entries], pa.string())).cast(MAP)
