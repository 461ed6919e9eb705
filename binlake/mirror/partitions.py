"""Remove from a mirror the rows of partitions that a DDL removed (R-34).

No log has these rows, so they are found by their values, as the source found their partition.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlake.mirror.rows import read_mirror_texts
from binlake.rows.schema import TableDef
from binlake.rows.schema.partitions import find_partition


class RemovedPartitions:
    """The partitions of `before` that `after` does not have. Each method raises SchemaError if it cannot be told."""

    def __init__(self, before: TableDef, after: TableDef) -> None:
        self._before = before
        self._gone = set(before.partition_ids) - set(after.partition_ids)
        self._types = {column.name: column.tp for column in before.row_columns}

    def count_rows(self, batch: pa.RecordBatch) -> int:
        """The number of rows of `batch` (of the mirror of `before`) in the removed partitions."""
        return int(self._find_rows(batch).sum())

    def drop_rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """`batch` without those rows."""
        kept = batch.filter(pa.array(~self._find_rows(batch)))
        if kept.num_rows:
            yield kept

    def _find_rows(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        texts = read_mirror_texts(self._before, pa.Table.from_batches([batch]))
        rows = (dict(zip(texts, values, strict=True)) for values in zip(*texts.values(), strict=True))
        partition = self._before.raw["partition"]
        found = (find_partition(partition, row, self._types) in self._gone for row in rows)
        return np.fromiter(found, np.bool_, batch.num_rows)
