"""Finds the tables that a range of `mutation` touches: reads three narrow columns in batches, without a Spark job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from binlake.base.lakecolumns import Mutation
from binlake.ddl.definitions import SegmentTable
from binlake.lake.dataset import open_dataset
from binlake.lake.opentable import open_known
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import match_commit_ts
from binlake.lake.tables import MUTATION


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
