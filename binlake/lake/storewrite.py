"""Writes the rows of a control table in an object store: two requests for an append, its file and its commit.

Rule: rows become a file of each partition, put under a new name before the commit that names it. Small files are
joined from their rows in memory, which every writer has read.
"""

from __future__ import annotations

import io
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from deltalake.exceptions import CommitFailedError

from binlake.errors import Transient
from binlake.lake.controlrows import SMALL_BYTES, ControlRows, read_control_rows, remember_files, store_small_rows
from binlake.lake.objects import create_object
from binlake.lake.parts import describe_file
from binlake.lake.storetable import Action, StoreTable, build_add, build_remove
from binlake.lake.tables import LakeTable

log = structlog.get_logger(__name__)

_TRIES = 15
"""Of a commit: one fewer of other processes may come first."""
_PLAIN = re.compile(r"[\w-]+")
"""Values of a partition that are folder names as they are."""


@dataclass(frozen=True)
class _File:
    path: str
    values: Mapping[str, str]
    rows: pa.Table
    size: int
    stats: str


class StoreWriter:
    """Writes to the control table `definition`, whose rows are read with the columns of `schema`."""

    def __init__(self, table: StoreTable, definition: LakeTable, schema: pa.Schema) -> None:
        self._table, self._definition, self._schema = table, definition, schema

    def append(self, rows: pa.Table) -> int:
        """Add `rows` in one commit, after those of others if need be; returns the version.

        Raises CommitFailedError, BinlakeError.
        """
        files = self._put_files(rows)
        return self._commit(lambda: [_add(file) for file in files], "Append")

    def replace(self, rows: pa.Table) -> int:
        """Replace all rows by `rows` in one commit; returns the version. Raises CommitFailedError, BinlakeError."""
        files = self._put_files(rows) if rows.num_rows else []
        return self._commit(lambda: [*self._remove_all(), *(_add(file) for file in files)], "Overwrite")

    def join(self) -> int:
        """Join the small files of each partition, and return how many. Raises CommitFailedError, BinlakeError."""
        before = read_control_rows(self._table.path, self._table, self._schema)
        small: dict[tuple[tuple[str, str], ...], list[tuple[str, int]]] = {}
        for path, values, size in self._list_files(before):
            if size <= SMALL_BYTES:
                small.setdefault(tuple(values.items()), []).append((unquote(path), size))
        actions: list[Action] = []
        for own, files in small.items():
            if len(files) > 1:
                rows = pa.concat_tables([before.files[path] for path, _ in files])
                joined = self._put_file(rows.combine_chunks(), dict(own))
                remember_files(self._table.path, self._schema, {joined.path: joined.rows})
                actions += [build_remove(path, joined.values, size, is_change=False) for path, size in files]
                actions.append(_add(joined, is_change=False))
        if actions:
            self._table.commit(actions, {"operation": "OPTIMIZE"})
        return sum("remove" in action for action in actions)

    def tidy_log(self) -> None:
        """Write a checkpoint, and the rows of small files as one object: three requests."""
        self._table.write_checkpoint()
        rows = read_control_rows(self._table.path, self._table, self._schema)
        present = set(map(unquote, rows.adds["path"].to_pylist()))
        try:
            store_small_rows(self._table.path, {path: own for path, own in rows.files.items() if path in present})
        except Transient as error:
            # What was committed is durable; others read the files themselves.
            log.warning("small_rows_not_stored", table=self._table.path, error=str(error))

    def _commit(self, build_actions: Callable[[], Sequence[Action]], mode: str) -> int:
        about = {"operation": "WRITE", "operationParameters": {"mode": mode}}
        for _ in range(_TRIES - 1):
            try:
                return self._table.commit(build_actions(), about)
            except CommitFailedError:
                self._table.look()
        return self._table.commit(build_actions(), about)

    def _remove_all(self) -> list[Action]:
        rows = read_control_rows(self._table.path, self._table, self._schema)
        return [build_remove(path, values, size) for path, values, size in self._list_files(rows)]

    def _put_files(self, rows: pa.Table) -> list[_File]:
        files = [self._put_file(own, values) for values, own in self._split(rows)]
        remember_files(self._table.path, self._schema, {file.path: file.rows for file in files})
        return files

    def _split(self, rows: pa.Table) -> Iterable[tuple[dict[str, str], pa.Table]]:
        if not self._definition.partitioned_by:
            return [({}, rows)]
        (name,) = self._definition.partitioned_by
        values = pc.unique(rows.column(name)).to_pylist()
        return [({name: value}, rows.filter(pc.equal(rows.column(name), value))) for value in values]

    def _put_file(self, rows: pa.Table, values: Mapping[str, str]) -> _File:
        stored, sink = rows.drop_columns(list(values)), io.BytesIO()
        written: list[pq.FileMetaData] = []
        pq.write_table(
            stored,
            sink,
            row_group_size=self._definition.group_rows,
            compression="zstd",
            store_schema=False,
            metadata_collector=written,
        )
        folder = "".join(f"{name}={value}/" for name, value in values.items())
        path, content = f"{folder}part-{uuid.uuid4()}.zstd.parquet", sink.getvalue()
        create_object(self._table.path, path, content)
        return _File(path, values, rows, len(content), describe_file(written[0]))

    def _list_files(self, rows: ControlRows) -> list[tuple[str, dict[str, str], int]]:
        """(path as the log has it, values of its partition, bytes) of each file of `rows`."""
        names = list(self._definition.partitioned_by)
        listed = rows.adds.select(["path", "size_bytes", *(f"partition.{name}" for name in names)]).to_pylist()
        return [(one["path"], {name: one[f"partition.{name}"] for name in names}, one["size_bytes"]) for one in listed]


def may_write(table: StoreTable, definition: LakeTable, rows: pa.Table) -> bool:
    """Whether `rows` can be written as here: the table has their columns, and plain names of folders."""
    if not table.takes_commits() or [field.name for field in table.schema().fields] != rows.schema.names:
        return False
    values = [pc.unique(rows.column(name)).to_pylist() for name in definition.partitioned_by]
    return len(values) < 2 and all(value and _PLAIN.fullmatch(value) for column in values for value in column)


def _add(file: _File, *, is_change: bool = True) -> Action:
    return build_add(file.path, file.values, file.size, file.stats, is_change=is_change)
