"""Publishes a feed's windows as one sequence of binlog files, in the format of TiDB's drainer.

Order of writes: the window's files, then the index with its hi. The writes depend only on the window and the index, so
a run killed between any two writes is repeated with the same bytes under the same names. Readers of the index never see
half a window; other readers (the original's reparo) see a part that ends after a transaction. There is one writer at a
time: the caller must hold the feed's lock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import IO, Any, cast

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

from binlake import tso
from binlake.binlogfile.folder import INDEX_PATH as PATH
from binlake.binlogfile.folder import (
    BinlogIndex,
    Compression,
    IndexedFile,
    compute_checksum,
    format_file_name,
    read_index,
    select_binlog_files,
)
from binlake.binlogfile.framing import CRC, HEAD, MAGIC, build_damage_error, compress
from binlake.common.arrowcolumns import build_fixed_width_array, join_parts, split_binary_array
from binlake.common.filestore import StoredFiles, open_store
from binlake.common.lakecolumns import Message
from binlake.config.sinkuri import StorageSection
from binlake.errors import Permanent
from binlake.feed.encoding import TRANSACTION, measure_lengths
from binlake.feed.files.publisher import Read
from binlake.feed.manifest import ChangePosition, EncodeManifest
from binlake.feed.messages import DDL

log = structlog.get_logger(__name__)

JOIN_BYTES = 16 << 20
"""A window continues the last file if that is smaller. It is then rewritten completely, as object stores require."""
_IN_MEMORY = 64 << 20
"""How many bytes of a file being written are in memory; the rest is on the local disk."""
_MEMBER_BYTES = 16 << 20
"""The number of bytes that are compressed at once."""
_DAY_MS = 86_400_000


class BinlogPublisher:
    """The only writer of `feed`'s binlog files."""

    def __init__(
        self,
        storage: StorageSection,
        feed: str,
        *,
        time_zone: str = "UTC",
        store: StoredFiles | None = None,
        join_bytes: int = JOIN_BYTES,
    ) -> None:
        """`time_zone`: that of TIMESTAMPs in the files; `store`: used instead of the one at `storage`.

        Raises ConfigError.
        """
        self._time_zone = time_zone
        self._feed, self._store, self._join_bytes = feed, store or open_store(storage), join_bytes
        self._size, self._retention_days = storage.file_size, storage.retention_days
        self._compression = cast(Compression, storage.compression)
        self._index: BinlogIndex | None = None

    def __enter__(self) -> BinlogPublisher:
        """Read the index. Raises Permanent if the files belong to another writer, Transient."""
        self._index = read_index(self._store)
        owner = self._feed if self._index is None else self._index.feed
        if self._index is None and select_binlog_files(self._store.list("")):
            owner = "not Binlake's"
        if owner != self._feed:
            raise Permanent(
                "the folder of a feed has files of another writer",
                where={"folder": self._store.shown, "feed": self._feed, "other": owner},
                hint="give each feed its own folder; the files of a drainer stay readable where they are",
            )
        if self._index is not None and self._index.time_zone not in ("", self._time_zone):
            raise Permanent(
                "the binlog files of a feed have TIMESTAMPs in another time zone",
                where={"folder": self._store.shown, "theirs": self._index.time_zone, "the feed's": self._time_zone},
                hint="restore the feed's time-zone, or give it another folder: a folder has one time zone",
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing stays open between two windows."""

    @property
    def checkpoint(self) -> int | None:
        """The hi of the last published window; None at first."""
        return None if self._index is None else self._index.hi

    def publish_window(self, manifest: EncodeManifest, read: Read) -> int:
        """Write and publish the window's files. Returns the number of its messages, 0 if it was published already.

        Raises DamagedFile, Permanent, Transient.
        """
        if self._index is not None and self._index.hi >= manifest.hi:
            return 0
        before = self._index or self._claim_folder(manifest.lo)
        sent, files = 0, _Files(self._store, before.files, self._size, self._compression, self._join_bytes)
        for part in read(ChangePosition.after_commit(before.hi)):
            records = _Records.of(part)
            files.add(records)
            sent += len(records.commits)
        # After a gap (windows that the feed skipped) the complete range starts at this window.
        lo = before.lo if manifest.lo <= before.hi else manifest.lo
        index = self._drop_expired(BinlogIndex(self._feed, lo, manifest.hi, files.close(), self._time_zone))
        self._store.put(PATH, index.to_json())
        self._index = index
        self._remove_others()
        return sent

    def _claim_folder(self, lo: int) -> BinlogIndex:
        """Claim the folder for this feed."""
        index = BinlogIndex(self._feed, lo, lo, time_zone=self._time_zone)
        self._store.put(PATH, index.to_json())
        return index

    def _drop_expired(self, index: BinlogIndex) -> BinlogIndex:
        """`index` without files whose commits are older than the retention before the checkpoint; the newest stays."""
        if not self._retention_days:
            return index
        end = tso.compose(max(tso.extract_physical(index.hi) - self._retention_days * _DAY_MS, 0))
        expired = next((number for number, file in enumerate(index.files) if file.last >= end), len(index.files))
        expired = min(expired, max(len(index.files) - 1, 0))
        lo = index.files[expired - 1].last if expired else index.lo
        return replace(index, lo=max(index.lo, lo), files=index.files[expired:])

    def _remove_others(self) -> None:
        """Delete expired files, and files written after the last one by an attempt with another section."""
        numbers = [file.file.index for file in self._index.files] if self._index is not None else []
        for file in select_binlog_files(self._store.list("")):
            # An unknown file whose number is in the index's range is a copy or damaged: readers report it.
            if not numbers or not numbers[0] <= file.index <= numbers[-1]:
                self._store.delete(file.name)
                log.info("binlog_file_removed", feed=self._feed, folder=self._store.shown, file=file.name)


@dataclass(frozen=True)
class _Records:
    """Records in commit order: their commit_ts, and their framed bytes."""

    commits: Any
    framed: Any

    @classmethod
    def of(cls, messages: pa.Table) -> _Records:
        """The records of transactions and DDL among `messages`."""
        is_record = pc.is_in(messages.column(Message.OP).cast(pa.string()), pa.array([TRANSACTION, DDL]))
        selected = messages.filter(is_record).combine_chunks()
        commits = np.asarray(selected.column(Message.COMMIT_TS)).astype(np.int64)
        payloads = selected.column(Message.VALUE).combine_chunks() if selected.num_rows else pa.array([], pa.binary())
        return cls(commits, _frame_records(payloads))

    def slice(self, start: int, end: int) -> _Records:
        """The records from `start` to `end`."""
        return _Records(self.commits[start:end], self.framed.slice(start, end - start))


def _frame_records(payloads: Any) -> Any:
    """Frame `payloads` as records (tidb-binlog 1.9)."""
    rows = len(payloads)
    heads = np.zeros(rows, [("magic", "<u4"), ("length", "<u8")])
    heads["magic"], heads["length"] = MAGIC, measure_lengths(payloads)
    tails = np.array([google_crc32c.value(payload) for payload in payloads.to_pylist()], "<u4")
    if not rows:
        return payloads
    return join_parts(
        [
            build_fixed_width_array(heads.view(np.uint8), HEAD.size, rows),
            payloads,
            build_fixed_width_array(tails.view(np.uint8), CRC.size, rows),
        ]
    )


class _Files:
    """Writes the files of a window after the files `before`, and continues the last of these if it is small."""

    def __init__(
        self, store: StoredFiles, before: Iterable[IndexedFile], size: int, compression: Compression, join_bytes: int
    ) -> None:
        self._store, self._size, self._compression = store, size, compression
        self._done = list(before)
        self._next = self._done[-1].file.index + 1 if self._done else 0
        self._join_bytes = min(join_bytes, size)
        self._open: _OpenFile | None = None

    def add(self, records: _Records) -> None:
        """Write more records. A file ends after the record with which it reaches the size."""
        ends = np.cumsum(measure_lengths(records.framed))
        start, rows = 0, len(records.commits)
        while start < rows:
            file = self._open or self._begin(int(records.commits[start]))
            written = int(ends[start - 1]) if start else 0
            end = min(int(np.searchsorted(ends, written + self._size - file.plain)) + 1, rows)
            file.add(records.slice(start, end), self._compression)
            self._open = file
            if file.plain >= self._size:
                self._finish()
            start = end

    def close(self) -> tuple[IndexedFile, ...]:
        """All files, including those before the window. The last one may be continued later."""
        self._finish()
        return tuple(self._done)

    def _begin(self, commit_ts: int) -> _OpenFile:
        last = self._done[-1] if self._done else None
        if last is not None and last.size < self._join_bytes and last.file.compression == self._compression:
            self._done.pop()
            return _OpenFile.reopen(last, self._store)
        name = format_file_name(self._next, commit_ts, self._compression)
        self._next += 1
        return _OpenFile(IndexedFile(name, commit_ts, commit_ts, 0, 0, 0))

    def _finish(self) -> None:
        if self._open is not None:
            self._done.append(self._open.store_file(self._store, self._compression))
            self._open = None


@dataclass
class _OpenFile:
    """A file being written. `plain`: its size before compression; for a reopened file, that of its content.

    The blocks of compression depend only on the bytes of the window, not on the parts in which they arrive.
    """

    indexed: IndexedFile
    plain: int = 0
    pending: bytearray = field(default_factory=bytearray)
    content: IO[bytes] = field(default_factory=lambda: tempfile.SpooledTemporaryFile(_IN_MEMORY))  # noqa: SIM115

    @classmethod
    def reopen(cls, indexed: IndexedFile, store: StoredFiles) -> _OpenFile:
        """Reopen an existing file to continue it. Raises DamagedFile if it differs from its index."""
        content = (store.get(indexed.name) or b"")[: indexed.size]
        if len(content) < indexed.size or compute_checksum(content) != indexed.crc:
            raise build_damage_error("it differs from its index", indexed.name, 0)
        file = cls(indexed, len(content))
        file.content.write(content)
        return file

    def add(self, records: _Records, compression: Compression) -> None:
        """Append records."""
        bounds, data = split_binary_array(records.framed)
        self.plain += int(bounds[-1])
        if compression == "none":
            self._write(data.tobytes())
        else:
            self.pending += data.data
        while len(self.pending) >= _MEMBER_BYTES:
            self._write(compress(bytes(self.pending[:_MEMBER_BYTES]), compression))
            del self.pending[:_MEMBER_BYTES]
        count, last = self.indexed.records + len(records.commits), int(records.commits[-1])
        self.indexed = replace(self.indexed, records=count, last=last)

    def store_file(self, store: StoredFiles, compression: Compression) -> IndexedFile:
        """Write the file to the store."""
        if self.pending:
            self._write(compress(bytes(self.pending), compression))
        with self.content as content:
            content.seek(0)
            store.put_from(self.indexed.name, content)
        return self.indexed

    def _write(self, content: bytes) -> None:
        self.content.write(content)
        crc = compute_checksum(content, self.indexed.crc)
        self.indexed = replace(self.indexed, size=self.indexed.size + len(content), crc=crc)
