"""One object beside a control table in a store with the rows of its small files, for processes that have read none.

Rule: a file never changes, so its rows are those of the object, however old that is. Files that it does not have are
read one by one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from binlake.lake.objects import find_object, put_object

_NAME = "_rows/small.parquet"
_FILE = "_file"
_MOST_BYTES = 4 << 20
"""Of the rows in memory: more are not stored again and again."""


def store_small_rows(path: str, files: Mapping[str, pa.Table]) -> None:
    """Store the rows of these files of the table at `path` in one request, unless they are many.

    Raises BinlakeError.
    """
    if not files or sum(rows.nbytes for rows in files.values()) > _MOST_BYTES:
        return
    named = [rows.append_column(_FILE, pa.repeat(pa.scalar(file), rows.num_rows)) for file, rows in files.items()]
    sink = io.BytesIO()
    pq.write_table(pa.concat_tables(named), sink, compression="zstd", store_schema=False)
    put_object(path, _NAME, sink.getvalue())


def fetch_small_rows(path: str, schema: pa.Schema) -> dict[str, pa.Table]:
    """The stored rows by file, with the columns of `schema`; none if others were stored. Raises BinlakeError."""
    content = find_object(path, _NAME)
    if content is None:
        return {}
    stored = pq.read_table(pa.BufferReader(content))
    if stored.schema.names != [*schema.names, _FILE]:
        return {}
    files = stored.column(_FILE)
    return {
        file: stored.filter(pc.equal(files, file)).select(schema.names).cast(schema)
        for file in pc.unique(files).to_pylist()
    }
