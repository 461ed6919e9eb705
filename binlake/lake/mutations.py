"""What the table `mutation` says of a range without its rows: three narrow columns, batch by batch, no Spark job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from binlake.lake.dataset import dataset
from binlake.lake.opened import opened
from binlake.lake.paths import LakePaths
from binlake.lake.rowhistory import between


def touched_cells(paths: LakePaths, lo: int, hi: int, starts: Sequence[int]) -> list[tuple[str, str, int]]:
    """(db, table, segment) of every row change with lo < commit_ts <= hi, sorted; `starts` open segments 1, 2, ..."""
    data = dataset(opened(paths.table("mutation")))
    return cells_in(data.to_batches(columns=["db", "table", "commit_ts"], filter=between(lo, hi)), starts)


def cells_in(batches: Iterable[pa.RecordBatch], starts: Sequence[int]) -> list[tuple[str, str, int]]:
    """(db, table, segment) of the row changes in `batches`, sorted; `starts` open segments 1, 2, ..."""
    edges = np.asarray(starts, dtype=np.int64)
    found: set[tuple[str, str, int]] = set()
    for batch in batches:
        segments = np.searchsorted(edges, np.asarray(batch.column("commit_ts")), side="right")
        names = [batch.column("db"), batch.column("table")]
        places = pa.Table.from_arrays([*names, pa.array(segments)], names=["db", "table", "segment"])
        rows = places.group_by(["db", "table", "segment"]).aggregate([]).to_pylist()
        found |= {(row["db"], row["table"], row["segment"]) for row in rows}
    return sorted(found)
