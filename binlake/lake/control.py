"""A small append-only Delta table written through delta-rs only, so that no JVM is needed to read or extend it.

Spark may read these tables but never writes them: one writing engine per table (hazards R-41). Appends do not conflict;
whoever needs exclusion holds the lake's lock. Small files are compacted every `COMPACT_EVERY` versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from binlake.lake.dataset import dataset

COMPACT_EVERY = 64

Row = Mapping[str, Any]


class ControlTable:
    """The table at `path` with the Arrow `schema`, created at the first append."""

    def __init__(self, path: str, schema: pa.Schema, comment: str, partition_by: Sequence[str] = ()) -> None:
        self.path = path
        self.schema = schema
        self._comment = comment
        self._partition_by = list(partition_by)

    def append(self, rows: Sequence[Row]) -> None:
        """Append `rows` (missing columns become NULL) in one commit; durable when it returns."""
        if not rows:
            return
        data = pa.Table.from_pylist([dict(row) for row in rows], schema=self.schema)
        write_deltalake(
            self.path,
            data,
            mode="append",
            partition_by=self._partition_by or None,
            description=self._comment,
            configuration={"delta.logRetentionDuration": "interval 30 days"},
        )
        self._compact()

    def rows(self, columns: Sequence[str] | None = None, where: ds.Expression | None = None) -> list[dict[str, Any]]:
        """The rows that match `where`; an absent table has none."""
        table = self._open()
        if table is None:
            return []
        found = dataset(table).to_table(columns=list(columns) if columns else None, filter=where)
        result: list[dict[str, Any]] = found.to_pylist()
        return result

    def exists(self) -> bool:
        """True when the table has been written."""
        return bool(DeltaTable.is_deltatable(self.path))

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(self.path)
        except TableNotFoundError:
            return None

    def _compact(self) -> None:
        table = DeltaTable(self.path)
        version = table.version()
        if version and version % COMPACT_EVERY == 0:
            table.optimize.compact()
            table.update_incremental()
            table.create_checkpoint()
