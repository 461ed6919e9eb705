"""Reads row changes of `mutation`: those of one row, found by its key, and the tables that a range touches.

Reads filter by range and key, so files without them are not opened. The tables of a range are found in three narrow
columns, in batches, without a Spark job.

A change's `key` is the row's key before it, and `new_key` the key to which an update moved the row. Both are searched,
so a move is in the history of both keys.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds

from binlake import tso
from binlake.changes.net import RowEvent
from binlake.common.lakecolumns import History, Mutation
from binlake.ddl.definitions import SegmentTable, derive_key_defaults
from binlake.errors import ConfigError
from binlake.lake.columntypes import choose_arrow_type
from binlake.lake.damage import name_damage
from binlake.lake.opentable import open_dataset, open_known, open_once
from binlake.lake.paths import LakePaths
from binlake.lake.tables import MUTATION, LakeTable
from binlake.rows.codec import format_key_text
from binlake.rows.schema import TableDef

Row = dict[str, str | None]
"""Column name -> canonical text."""

CHANGE_COLUMNS = (
    Mutation.COMMIT_TS, Mutation.START_TS, Mutation.SEQ, Mutation.SCHEMA_VERSION, Mutation.DB, Mutation.TABLE,
    Mutation.OP, Mutation.KEY, Mutation.NEW_KEY, Mutation.BEFORE, Mutation.AFTER,
)  # fmt: skip
"""The columns of a RowVersion."""
_AT_SOURCE = {Mutation.DB: Mutation.SOURCE_DB, Mutation.TABLE: Mutation.SOURCE_TABLE}


@dataclass(frozen=True)
class RowVersion:
    """One change of a row: its position in the total order, `op`, keys as in `mutation`, the images (or None).

    commit_ts and start_ts are TSOs; `seq` is the row's number in its transaction.
    """

    commit_ts: int
    start_ts: int
    seq: int
    schema_version: int
    db: str
    table: str
    op: str
    key: str
    new_key: str | None
    before: Row | None
    after: Row | None

    @property
    def place(self) -> tuple[int, int, int]:
        """The change's position in the total order."""
        return self.commit_ts, self.start_ts, self.seq

    def to_event(self) -> RowEvent:
        """The change as input of compaction."""
        return RowEvent(self.commit_ts, self.start_ts, self.seq, self.op, self.before, self.after)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """For `--output json`: timestamps as strings, the commit's time in UTC."""
        time = tso.to_datetime(self.commit_ts).isoformat(timespec="milliseconds")
        return {**vars(self), "commit_ts": str(self.commit_ts), "start_ts": str(self.start_ts), "commit_time": time}


def read_changes(
    paths: LakePaths, lo: int, hi: int, where: ds.Expression | None = None, *, at_source: bool = False
) -> list[RowVersion]:
    """The row changes with lo < commit_ts <= hi that match `where`, in the total order.

    `at_source`: with the source's table names.
    """
    return [] if hi <= lo else build_row_versions([read_change_table(paths, lo, hi, where, at_source=at_source)])


def read_change_table(
    paths: LakePaths, lo: int, hi: int, where: ds.Expression | None = None, *, at_source: bool = False
) -> pa.Table:
    """As `read_changes`, as a table (CHANGE_COLUMNS) in any order."""
    condition = match_commit_ts(lo, hi) if where is None else match_commit_ts(lo, hi) & where
    data = open_dataset(open_once(paths.locate_table(MUTATION.name)))
    names = _AT_SOURCE if at_source else {}
    named = {name: ds.field(names.get(name, name)) for name in CHANGE_COLUMNS}
    with name_damage(paths.locate_table(MUTATION.name)):
        return data.to_table(columns=named, filter=condition)


def build_row_versions(tables: Iterable[pa.Table]) -> list[RowVersion]:
    """The rows of `tables` (CHANGE_COLUMNS of `mutation`), in the total order."""
    found = (row for table in tables for row in table.to_pylist())
    rows = (
        RowVersion(**row | {side: _build_image(row[side]) for side in (Mutation.BEFORE, Mutation.AFTER)})
        for row in found
    )
    return sorted(rows, key=lambda row: row.place)


def match_commit_ts(lo: int, hi: int) -> ds.Expression:
    """The condition lo < commit_ts <= hi, restricted to the partitions that can have such rows."""
    days = (ds.field(History.COMMIT_DATE) >= commit_day(max(lo, 0))) & (ds.field(History.COMMIT_DATE) <= commit_day(hi))
    return days & (ds.field(History.COMMIT_TS) > lo) & (ds.field(History.COMMIT_TS) <= hi)


def read_rows(
    paths: LakePaths, table: LakeTable, lo: int, hi: int, columns: Iterable[str], where: ds.Expression | None = None
) -> pa.Table:
    """`columns` of the rows of a history table with lo < commit_ts <= hi, in memory, so only for small ranges.

    `where`: only rows that match it.
    """
    condition = match_commit_ts(lo, hi) if where is None else match_commit_ts(lo, hi) & where
    path = paths.locate_table(table.name)
    with name_damage(path):
        return open_dataset(open_known(path)).to_table(columns=list(columns), filter=condition)


def commit_day(ts: int) -> pa.Scalar:
    """The partition value of a commit_ts."""
    return pa.scalar(tso.to_datetime(ts).date())


def match_table(db: str, table: str) -> ds.Expression:
    """The condition for rows of one table."""
    return (ds.field(Mutation.DB) == db) & (ds.field(Mutation.TABLE) == table)


def match_definitions(definitions: Iterable[TableDef]) -> ds.Expression:
    """The condition for rows of one table in every spelling of its name, which may change when it is recreated."""
    names = sorted({(definition.db, definition.name) for definition in definitions})
    return functools.reduce(operator.or_, [match_table(*name) for name in names])


def match_keys(keys: Iterable[str]) -> ds.Expression:
    """The condition for rows that had, or were moved to, one of `keys` (texts of the column `key`)."""
    # One comparison per key, so that each is compared with a file's minimum and maximum key.
    terms = [(ds.field(Mutation.KEY) == key) | (ds.field(Mutation.NEW_KEY) == key) for key in sorted(set(keys))]
    return functools.reduce(operator.or_, terms)


def build_key_texts(definitions: Iterable[TableDef], key: Sequence[str | None]) -> set[str]:
    """The texts of the key in `mutation.key` under each of `definitions`. Raises ConfigError if none has such a key.

    Binary values may be given in either letter case and with the prefix 0x.
    """
    shapes, texts = set(), set()
    for definition in definitions:
        names = definition.find_identity().columns
        shapes.add(", ".join(names))
        if len(names) == len(key):
            texts |= set(_build_key_variants(definition, key))
    if not texts:
        raise ConfigError(
            f"the key has {len(key)} values, but rows are identified by ({') or ('.join(sorted(shapes))})",
            hint="give each column's value, or one JSON array",
        )
    return texts


def _build_key_variants(definition: TableDef, key: Sequence[str | None]) -> Iterator[str]:
    names = definition.find_identity().columns
    texts = [_normalize_value(definition, name, value) for name, value in zip(names, key, strict=True)]
    yield format_key_text(texts)
    # The key of a keyless row written before ADD COLUMN lacks the columns that were added later.
    filled = list(derive_key_defaults(definition).values()) if definition.find_identity().kind == "row" else []
    while len(texts) > 1 and filled and texts[-1] == filled.pop():
        texts.pop()
        yield format_key_text(texts)


def _normalize_value(definition: TableDef, name: str, value: str | None) -> str | None:
    column = definition.find_column(name)
    if value is None or column is None or not pa.types.is_binary(choose_arrow_type(column)):
        return value
    return value.removeprefix("0x").removeprefix("0X").upper()


def _build_image(pairs: list[tuple[str, str | None]] | None) -> Row | None:
    return None if pairs is None else dict(pairs)


def read_touched_tables(paths: LakePaths, lo: int, hi: int, starts: Sequence[int]) -> list[SegmentTable]:
    """The tables and segments of all row changes with lo < commit_ts <= hi, sorted; `starts` open segments 1, 2, ..."""
    data = open_dataset(open_known(paths.locate_table(MUTATION.name)))
    return find_touched_tables(
        data.to_batches(columns=[Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS], filter=match_commit_ts(lo, hi)),
        starts,
    )


def find_touched_tables(batches: Iterable[pa.RecordBatch], starts: Sequence[int]) -> list[SegmentTable]:
    """The tables and segments of the row changes in `batches`, sorted; `starts` open segments 1, 2, ..."""
    return sorted(count_touched_tables(batches, starts))


def count_touched_tables(batches: Iterable[pa.RecordBatch], starts: Sequence[int]) -> Counter[SegmentTable]:
    """The row changes in `batches` by table and segment; `starts` open segments 1, 2, ..."""
    edges = np.asarray(starts, dtype=np.int64)
    touched: Counter[SegmentTable] = Counter()
    for batch in batches:
        segments = np.searchsorted(edges, np.asarray(batch.column(Mutation.COMMIT_TS)), side="right")
        columns = [pa.array(segments), batch.column(Mutation.DB), batch.column(Mutation.TABLE)]
        rows = pa.Table.from_arrays(columns, names=list(SegmentTable._fields))
        counts = rows.group_by(list(SegmentTable._fields)).aggregate([([], "count_all")]).to_pylist()
        for row in counts:
            touched[SegmentTable(row["segment"], row["db"], row["table"])] += row["count_all"]
    return touched
