"""Payloads to rows, in the workers: apart from the stage, whose imports would cost each worker more than its work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from binlake.codec import MutationBatch
from binlake.config.model import Filter
from binlake.filter import TableFilter
from binlake.schema import TableDef, WindowSchemas

BATCH_ROWS = 8192


@dataclass(frozen=True)
class Decoder:
    """Payloads to rows of `mutation`, in the workers; carries the window's schemas and the filter."""

    schemas: WindowSchemas
    filter: Filter

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of (commit_ts, start_ts, payload) to batches of `mutation`. Raises WireError, SchemaError."""
        tables = TableFilter(self.filter)
        decoded = MutationBatch(lambda table: _route(tables, table))
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("payload", "commit_ts", "start_ts"))
            for payload, commit_ts, start_ts in zip(*columns, strict=True):
                decoded.add(payload, commit_ts, start_ts, self.schemas.place(commit_ts))
                if len(decoded) >= BATCH_ROWS:
                    yield decoded.take()
        if len(decoded):
            yield decoded.take()


def _route(tables: TableFilter, table: TableDef) -> tuple[str, str] | None:
    return (table.db, table.name) if tables.keeps(table.db, table.name) else None
