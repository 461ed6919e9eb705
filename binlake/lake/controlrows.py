"""The rows of a control table at one version: what its small files hold is in memory, its large files are read.

Rule: a file of a Delta table never changes, so what was read of one counts for as long as a version names it. A stage
asks its control tables some sixty times, and each question read up to 64 files of one row.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from binlake.lake.dataset import open_dataset

SMALL_BYTES = 64 << 10
"""A file of at most this size is kept in memory: some hundred events."""
_MOST_TABLES = 64
"""Tables that are cached, those asked for last: a process may see many lakes."""


@dataclass(frozen=True)
class ControlRows:
    """The rows of one version: `small`, those of the small files; `large`: the other files, if there are any, and by
    path the greatest values of their columns (`max.COLUMN`), where they have statistics."""

    table: DeltaTable
    version: int
    small: pa.Table
    large: ds.FileSystemDataset | None
    adds: pa.Table
    files: dict[str, pa.Table] = field(repr=False)

    def read(self, columns: Sequence[str], where: ds.Expression | None) -> pa.Table:
        """The rows that match `where`. Large files and groups of rows that it excludes by statistics are not read."""
        small = self.read_small(columns, where)
        if self.large is None:
            return small
        return pa.concat_tables([self.large.to_table(columns=list(columns), filter=where), small])

    def read_small(self, columns: Sequence[str], where: ds.Expression | None) -> pa.Table:
        """As `read`, of the small files alone."""
        return ds.dataset(self.small).to_table(columns=list(columns), filter=where)

    def newest_first(self, column: str, where: ds.Expression | None) -> Iterator[tuple[int, ds.Fragment]]:
        """Large files that `where` does not exclude with their greatest `column`, greatest first."""
        if self.large is None:
            return
        most: dict[str, int | None] = {}
        if f"max.{column}" in self.adds.column_names:
            most = dict(zip(self.adds["path"].to_pylist(), self.adds[f"max.{column}"].to_pylist(), strict=True))
        fragments = [(most.get(fragment.path), fragment) for fragment in self.large.get_fragments(filter=where)]
        # A file without statistics could hold anything: it goes first.
        known = [(2**63 - 1 if value is None else value, fragment) for value, fragment in fragments]
        yield from sorted(known, key=lambda pair: -pair[0])


_lock = threading.Lock()
_cached: dict[tuple[str, pa.Schema], ControlRows] = {}


def rows_of(path: str, table: DeltaTable, schema: pa.Schema) -> ControlRows:
    """The rows of `table`, which is at `path`, at the version it was opened at, as `schema` has them."""
    key = (path, schema)
    with _lock:
        cached = _cached.get(key)
    if cached is None or cached.table is not table or cached.version != table.version():
        # Not under the lock: stages that run side by side would wait for each other's files.
        cached = _read(table, schema, {} if cached is None else cached.files)
    with _lock:
        _cached.pop(key, None)
        _cached[key] = cached
        if len(_cached) > _MOST_TABLES:
            del _cached[next(iter(_cached))]
    return cached


def _read(table: DeltaTable, schema: pa.Schema, before: dict[str, pa.Table]) -> ControlRows:
    """`before`: rows of small files that were read for another version."""
    version, adds = table.version(), pa.table(table.get_add_actions(flatten=True))
    sizes = dict(zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True))
    data = open_dataset(table)
    files, large = {}, []
    for fragment in data.get_fragments():
        if sizes.get(fragment.path, SMALL_BYTES + 1) > SMALL_BYTES:
            large.append(fragment)
        else:
            rows = before.get(fragment.path)
            files[fragment.path] = fragment.to_table(schema) if rows is None else rows
    small = pa.concat_tables([schema.empty_table(), *files.values()]).combine_chunks()
    own = ds.FileSystemDataset(large, data.schema, data.format, data.filesystem) if large else None
    return ControlRows(table, version, small, own, adds, files)
