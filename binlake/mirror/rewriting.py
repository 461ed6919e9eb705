"""Replaces rows of a keyed mirror on a local disk: the files that have them are written anew without them, by Arrow.

It does what a MERGE of delta-rs does, in one commit, for two fifths of the CPU: keys are looked up in a hash table
instead of joined, and only a row group is in memory at a time. A file that has none of the rows stays. Which keys have
rows is found by reading only the keys, of the files that may have one: a file is left out only if its statistics say
so.

Rule: a commit is the next file of the log, put in place (linked to its name) only if there is none, as delta-rs
commits. So of two writers of a version one is refused. What Delta's protocol asks besides of a writer of newer tables
is delta-rs's to do: `may_rewrite`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from binlake.common.lakecolumns import Mirror
from binlake.lake.access import is_remote
from binlake.lake.opentable import open_dataset
from binlake.lake.parts import describe_file
from binlake.lake.storetable import Action, build_add, build_remove, format_commit


@dataclass(frozen=True)
class KeyMatch:
    """A file in full: the `keys` of its rows, their `places` among the keys looked for (-1: none), and another column
    of whole numbers."""

    file: ds.Fragment
    keys: pa.Array
    places: npt.NDArray[np.int32]
    also: npt.NDArray[np.int64]


def has_key(table: DeltaTable, keys: pa.ChunkedArray | pa.Array) -> bool:
    """Whether a row of `table` has one of `keys` (texts of `_rowkey`). Raises OSError."""
    return next(iterate_present_keys(table, keys), None) is not None


def iterate_present_keys(table: DeltaTable, keys: pa.ChunkedArray | pa.Array) -> Iterator[pa.Array]:
    """Those of `keys` that rows of `table` have, some at a time and at least one. Raises OSError."""
    wanted = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    if (fragments := _find_fragments(data := open_dataset(table), wanted)) is None:
        return
    for file in fragments:
        for batch in file.to_batches(schema=data.schema, columns=[Mirror.ROWKEY], batch_readahead=2):
            # delta-rs leaves views of texts in files that it rewrites.
            own = batch.column(0).cast(wanted.type)
            if len(found := own.filter(pc.is_in(own, value_set=wanted))):
                yield found


def match_keys(data: ds.Dataset, keys: pa.Array, also: str, passed: Collection[str] = ()) -> Iterator[KeyMatch]:
    """Each file of a mirror that may have rows with one of `keys`, with the column `also`.

    Files with the names `passed` are left out. Raises OSError.
    """
    for file in _find_fragments(data, keys) or ():
        if file.path in passed:
            continue
        rows = file.to_table(schema=data.schema, columns=[Mirror.ROWKEY, also])
        own = rows[Mirror.ROWKEY].cast(keys.type).combine_chunks()
        places = pc.fill_null(pc.index_in(own, value_set=keys), -1)
        yield KeyMatch(file, own, np.asarray(places), np.asarray(rows[also]))


def _find_fragments(data: ds.Dataset, keys: pa.Array) -> Iterator[ds.Fragment] | None:
    """The files whose statistics do not exclude all `keys`; None if there are no keys."""
    ends = pc.min_max(keys).as_py()
    if ends["min"] is None:
        return None
    column = ds.field(Mirror.ROWKEY)
    found: Iterator[ds.Fragment] = data.get_fragments((column >= ends["min"]) & (column <= ends["max"]))
    return found


log = structlog.get_logger(__name__)

_CHECKPOINT_EVERY = 50
"""Commits between two checkpoints, if the table has no such property."""


def commit_actions(path: str, table: DeltaTable, actions: Sequence[Action], about: Mapping[str, Any]) -> None:
    """Commit `actions` to `table` at `path` as the version after its own, with `about` as the commit's information.

    `table` is at that version afterwards. Raises CommitFailedError if there is one already, OSError.
    """
    version = table.version() + 1
    folder = Path(path) / "_delta_log"
    own = folder / f"_commit_{uuid.uuid4()}.json.tmp"
    try:
        own.write_bytes(format_commit(actions, about))
        os.link(own, folder / f"{version:020}.json")
    except FileExistsError as error:
        raise CommitFailedError(f"version {version} of {path} was committed by another process") from error
    finally:
        own.unlink(missing_ok=True)
    table.update_incremental()
    interval = int(table.metadata().configuration.get("delta.checkpointInterval") or _CHECKPOINT_EVERY)
    if (version + 1) % interval == 0:
        try:
            table.create_checkpoint()
            table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            # What was committed is there; without a checkpoint, the log is read further back.
            log.warning("checkpoint_not_written", table=path, error=str(error))


def build_transaction(app: str, version: int) -> Action:
    """The action that records `version` as the position of the application `app`."""
    return {"txn": {"appId": app, "version": version, "lastUpdated": int(time.time() * 1000)}}


ADDED = "binlake.added"
"""In a commit: it only adds rows, with keys that no row had."""
_ADDS = {"operation": "WRITE", "operationParameters": {"mode": "Append"}, ADDED: "true"}
_MERGES = {"operation": "MERGE"}
_WRITER = 2
"""The newest writer version of Delta's protocol whose rules this keeps."""
_FEATURES = frozenset({"timestampNtz"})
"""Features of newer versions that ask nothing of this writer."""
_SETTINGS = frozenset({"delta.deletedFileRetentionDuration", "delta.logRetentionDuration", "delta.checkpointInterval"})
"""Properties of a table that ask nothing of this writer, as those with which mirrors are created."""
_NOTES = frozenset({"comment"})
"""The same of a column: others may say what its values must be."""
_GROUP_ROWS = 32_768
_FILE_BYTES = 64 << 20
"""Bytes of a file after which the next one begins."""

Mask = npt.NDArray[np.bool_]


def may_rewrite(path: str, table: DeltaTable, rows: pa.Schema) -> bool:
    """Whether `replace_rows` can write `rows` to the mirror `table` at `path`."""
    if is_remote(path):
        return False
    protocol, about, fields = table.protocol(), table.metadata(), table.schema().fields
    if protocol.min_writer_version > _WRITER and not _FEATURES.issuperset(protocol.writer_features or ("",)):
        return False
    if about.partition_columns or not _SETTINGS.issuperset(about.configuration):
        return False
    is_plain = all(_NOTES.issuperset(field.metadata) for field in fields)
    return is_plain and sorted(field.name for field in fields) == sorted(rows.names)


def replace_rows(
    path: str,
    table: DeltaTable,
    rows: pa.Table,
    deleted: pa.ChunkedArray,
    about: Mapping[str, Any],
    also: list[Action],
    passed: set[str],
) -> None:
    """Write `rows`, and remove those that are `deleted`, in one commit with `about` and the actions `also`.

    `passed`: names of files without any of the keys, which are not read; files with new rows only join them.
    No two of `rows` have the same `_rowkey`. A row of the mirror with a newer `_commit_ts` stays as it is. `table` is
    at the new version afterwards. Raises CommitFailedError if another writer came first, OSError.
    """
    rewriting = _Rewriting(open_dataset(table), rows, deleted, passed)
    files = _NewFiles(path, rewriting.schema)
    try:
        for group in _regroup(rewriting.iterate_rows()):
            files.write(group)
        added = files.close()
        sizes = _read_sizes(table)
        removed = [build_remove(*sizes[name]) for name in rewriting.replaced]
    except BaseException:
        files.discard()
        raise
    try:
        commit_actions(path, table, [*also, *removed, *added], {**(_MERGES if removed else _ADDS), **about})
    except CommitFailedError:
        # After any other error it may be committed.
        files.discard()
        raise
    if not rewriting.replaced:
        passed.update(files.names)


class _Rewriting:
    """The rows of the new files; `replaced`: the names of the files that they replace, known when all were read."""

    def __init__(self, data: ds.Dataset, rows: pa.Table, deleted: pa.ChunkedArray, passed: Collection[str]) -> None:
        self.schema: pa.Schema = data.schema
        self.replaced: list[str] = []
        self._data, self._rows, self._passed = data, rows, passed
        self._written: Mask = np.array(pc.invert(deleted))

    def iterate_rows(self) -> Iterator[pa.Table]:
        """The rows that stay of each file with rows to replace, then the new ones. Raises OSError."""
        keys, at = self._rows[Mirror.ROWKEY].combine_chunks(), np.asarray(self._rows[Mirror.COMMIT_TS])
        for match in match_keys(self._data, keys, Mirror.COMMIT_TS, self._passed):
            hit = match.places >= 0
            newer = hit & (match.also > at[match.places])
            self._written[match.places[newer]] = False
            if (replaced := hit & ~newer).any():
                self.replaced.append(match.file.path)
                yield from self._read_others(match, ~replaced)
        new = self._rows if self._written.all() else self._rows.filter(pa.array(self._written))
        for first in range(0, new.num_rows, _GROUP_ROWS):
            yield new.slice(first, _GROUP_ROWS).select(self.schema.names).cast(self.schema)

    def _read_others(self, match: KeyMatch, kept: Mask) -> Iterator[pa.Table]:
        at = 0
        for batch in match.file.to_batches(schema=self.schema, columns=self.schema.names, batch_readahead=1):
            # delta-rs leaves views of texts in files that it rewrites.
            rows = pa.Table.from_batches([batch]).cast(self.schema)
            own = slice(at, at + rows.num_rows)
            assert rows[Mirror.ROWKEY].combine_chunks().equals(match.keys[own]), "rows come in the order of the file"
            at = own.stop
            yield rows.filter(pa.array(kept[own]))


def _regroup(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The same rows in tables of _GROUP_ROWS at least, except for the last one."""
    held: list[pa.Table] = []
    for table in tables:
        held.append(table)
        if sum(one.num_rows for one in held) >= _GROUP_ROWS:
            yield pa.concat_tables(held)
            held = []
    if any(one.num_rows for one in held):
        yield pa.concat_tables(held)


def _read_sizes(table: DeltaTable) -> dict[str, tuple[str, Mapping[str, str], int]]:
    """By file name: (path as the log has it, values of its partition, bytes)."""
    adds = pa.table(table.get_add_actions(flatten=True))
    pairs = zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True)
    return {unquote(path): (path, {}, size) for path, size in pairs}


class _NewFiles:
    """Writes rows to new files of the table in `folder`; `names`: of these files."""

    def __init__(self, folder: str, schema: pa.Schema) -> None:
        self._folder, self._schema = folder, schema
        self.names: list[str] = []
        self._writer: pq.ParquetWriter | None = None
        self._sink: pa.NativeFile | None = None
        self._added: list[Action] = []

    def write(self, rows: pa.Table) -> None:
        """Write one row group."""
        if self._writer is None:
            self.names.append(f"part-{uuid.uuid4()}.zstd.parquet")
            self._sink = pa.OSFile(f"{self._folder}/{self.names[-1]}", "wb")
            self._writer = pq.ParquetWriter(
                self._sink,
                self._schema,
                compression="zstd",
                compression_level=1,
                # Of a column with many values a large dictionary is built in vain.
                dictionary_pagesize_limit=64 << 10,
                store_schema=False,
            )
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        if self._sink is not None and self._sink.tell() >= _FILE_BYTES:
            self._end()

    def close(self) -> list[Action]:
        """Complete the files, and return what adds them to the table."""
        self._end()
        return self._added

    def discard(self) -> None:
        """Delete the files, complete or not."""
        for opened in (self._writer, self._sink):
            # On a disk that is full, closing fails as writing did, and that error is raised already.
            with suppress(OSError):
                if opened is not None:
                    opened.close()
        for name in self.names:
            Path(self._folder, name).unlink(missing_ok=True)

    def _end(self) -> None:
        if self._writer is None or self._sink is None:
            return
        self._writer.close()
        self._sink.close()
        name, metadata = self.names[-1], self._writer.writer.metadata
        size = os.path.getsize(f"{self._folder}/{name}")
        self._added.append(build_add(name, {}, size, describe_file(metadata)))
        self._writer = self._sink = None
