"""What the table `mutation` says of a range without its rows: three narrow columns, batch by batch, no Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from binlake.base.lakecolumns import Mutation
from binlake.lake.dataset import open_dataset
from binlake.lake.opentable import open_table
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import where_commit_ts
from binlake.lake.tables import MUTATION


def read_touched_tables(paths: LakePaths, lo: int, hi: int, starts: Sequence[int]) -> list[tuple[str, str, int]]:
    """(db, table, segment) of every row change with lo < commit_ts <= hi, sorted; `starts` open segments 1, 2, ..."""
    data = open_dataset(open_table(paths.table(MUTATION.name)))
    return touched_tables_in(
        data.to_batches(columns=[Mutation.DB, Mutation.TABLE, Mutation.COMMIT_TS], filter=where_commit_ts(lo, hi)),
        starts,
    )


def touched_tables_in(batches: Iterable[pa.RecordBatch], starts: Sequence[int]) -> list[tuple[str, str, int]]:
    """(db, table, segment) of the row changes in `batches`, sorted; `starts` open segments 1, 2, ..."""
    edges = np.asarray(starts, dtype=np.int64)
    found: set[tuple[str, str, int]] = set()
    for batch in batches:
        segments = np.searchsorted(edges, np.asarray(batch.column(Mutation.COMMIT_TS)), side="right")
        names = [batch.column(Mutation.DB), batch.column(Mutation.TABLE)]
        places = pa.Table.from_arrays([*names, pa.array(segments)], names=[Mutation.DB, Mutation.TABLE, "segment"])
        rows = places.group_by([Mutation.DB, Mutation.TABLE, "segment"]).aggregate([]).to_pylist()
        found |= {(row[Mutation.DB], row[Mutation.TABLE], row["segment"]) for row in rows}
    return sorted(found)
