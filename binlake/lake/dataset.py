"""A Delta table as an Arrow dataset that is read without Python code in Arrow's threads.

delta-rs gives Arrow a file system written in Python. Arrow still closes files in its threads when the interpreter
exits, and a thread that then requests the interpreter's lock aborts the process (measured: 9 of 12 short programs,
after they had done their work). Arrow's own file systems do the same without Python.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as fs

from binlake.lake.opentable import KnownTable, open_files_of
from binlake.lake.store import open_files
from binlake.lake.storetable import StoreTable

FEW_REQUESTS = ds.ParquetFragmentScanOptions(
    pre_buffer=True, cache_options=pa.CacheOptions(hole_size_limit=256 << 10, range_size_limit=16 << 20, lazy=True)
)
"""Reads columns of a file in a store that are close to each other in one request: what lies between them takes 5 ms."""


def open_dataset(table: KnownTable, repeated: Iterable[str] = ()) -> ds.Dataset:
    """The files of `table` at its opened version. Columns in `repeated` are read as dictionaries."""
    options, files = ds.ParquetReadOptions(dictionary_columns=set(repeated)), open_table_files(table)
    found = open_files_of(table).to_pyarrow_dataset(filesystem=files, parquet_read_options=options)
    return _describe_stored(found, table, files, options) if isinstance(table, StoreTable) else found


def _describe_stored(
    data: ds.FileSystemDataset, table: StoreTable, files: fs.FileSystem, options: ds.ParquetReadOptions
) -> ds.FileSystemDataset:
    """`data` with the sizes that the log has, so that the store is not asked for each; columns that are close to each
    other come in one request."""
    form = ds.ParquetFileFormat(read_options=options, default_fragment_scan_options=FEW_REQUESTS)
    adds = table.get_add_actions()
    sizes = dict(zip(map(unquote, adds["path"].to_pylist()), adds["size_bytes"].to_pylist(), strict=True))
    named = [
        form.make_fragment(one.path, files, one.partition_expression, file_size=sizes.get(one.path))
        for one in data.get_fragments()
    ]
    return ds.FileSystemDataset(named, data.schema, form, files)


def open_table_files(table: KnownTable) -> fs.FileSystem:
    """A file system rooted at the folder of `table`, for the paths of its files."""
    place = table.table_uri.rstrip("/")
    if place.startswith("file://"):
        place = fs.FileSystem.from_uri(place)[1]
    files, root = open_files(place)
    return fs.SubTreeFileSystem(root, files)
