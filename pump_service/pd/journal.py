"""The embedded etcd's journal: records that are fsynced before an answer, and a snapshot that keeps it short.

Record: kind (1 byte), length u32 LE, CRC-32C of kind and body (in earlier versions: of the body) u32 LE, body (a
protobuf message). A torn tail is cut off at open: it was never acknowledged. All other damage is an error, even in the
last record: a torn write leaves a short record or blocks of zeros, and no whole record follows it. With `binlake pd
--drop-damaged` the driver starts without the damaged entries.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c
import structlog

from binlake.common.localfiles import replace_file, sync_folder
from binlake.errors import WireError

EVENTS, STATE, GRANT, REVOKE = b"E", b"S", b"G", b"R"
_HEAD = struct.Struct("<cII")
_KINDS = (EVENTS, STATE, GRANT, REVOKE)
_SECTOR = 512  # bytes that a disk writes completely or not at all

Record = tuple[bytes, bytes]

log = structlog.get_logger(__name__)


class PdJournal:
    """Appends records to `path`; one writer. `drop_damaged`: `read` skips damaged records and logs that. `is_broken`: a
    write failed, so nothing more is accepted until the next start."""

    def __init__(self, path: Path, *, drop_damaged: bool = False) -> None:
        self._path = path
        self._drop_damaged = drop_damaged
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.is_broken = False
        sync_folder(path.parent)

    def read(self) -> Iterator[Record]:
        """All whole records; a torn tail is removed. Raises WireError for all other damage, OSError."""
        data = self._path.read_bytes()
        self._rewrite(data)
        at = 0
        while at < len(data):
            body = _read_body(data, at)
            if body is None:
                at = self._skip_damage(data, at)
                continue
            yield data[at : at + 1], body
            at += _HEAD.size + len(body)

    def append(self, records: Iterable[Record]) -> None:
        """Append durably. Raises OSError; after that nothing more is accepted, because the file's state is unknown."""
        if self.is_broken:
            raise OSError(f"the journal {self._path} failed before: restart the placement driver")
        try:
            _write_all(self._file, b"".join(map(_encode_record, records)))
            os.fdatasync(self._file)
        except OSError:
            self.is_broken = True
            raise

    def read_size(self) -> int:
        """The length in bytes."""
        return os.fstat(self._file).st_size

    def replace(self, records: Iterable[Record]) -> None:
        """Replace the whole content by `records` atomically. Raises OSError: then either all or nothing was
        replaced."""
        try:
            replace_file(self._path, map(_encode_record, records))
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            # Close the old file, because records appended to it after it was unlinked would be lost.
            self.is_broken = self.is_broken or not self._is_current()
            raise
        os.close(self._file)
        self._file = file

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _rewrite(self, data: bytes) -> None:
        """Rewrite the content durably: after a failed sync, or a kill before it, it may be only in the page cache, as
        clean pages that no later sync would write."""
        handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            _write_all(handle, data)
            os.fdatasync(handle)
        finally:
            os.close(handle)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except OSError:
            return False

    def _skip_damage(self, data: bytes, at: int) -> int:
        """Where to continue after damage at `at`; a torn tail is cut off, and reading ends. Raises WireError."""
        following = _find_record(data, at + 1)
        if following is None and _is_torn(data, at):
            log.warning("journal_tail_cut", file=str(self._path), offset=at, bytes=len(data) - at)
            os.ftruncate(self._file, at)
            os.fsync(self._file)
            return len(data)
        if not self._drop_damaged:
            raise WireError(
                "the registry's journal is damaged",
                where={"file": self._path, "offset": at, "whole_records_follow_at": following or "none"},
                hint="restore the data directory from a copy; or start once with --drop-damaged, which drops "
                "the damaged entries: pumps and replications write theirs again",
            )
        end = len(data) if following is None else following
        log.error("journal_entries_dropped_by_command", file=str(self._path), offset=at, bytes=end - at)
        return end


def _read_body(data: bytes, at: int) -> bytes | None:
    """The body of the record at `at`; None when the record is incomplete or damaged."""
    if at + _HEAD.size > len(data):
        return None
    kind, size, crc = _HEAD.unpack_from(data, at)
    begin = at + _HEAD.size
    if kind not in _KINDS or begin + size > len(data):
        return None
    body = data[begin : begin + size]
    return body if crc in _compute_crcs(kind, body) else None


def _compute_crcs(kind: bytes, body: bytes) -> tuple[int, int]:
    """The crcs that such a record may have: the present form and that of earlier versions."""
    return google_crc32c.value(kind + body), google_crc32c.value(body)


def _find_record(data: bytes, at: int) -> int | None:
    """The offset of the first whole record at or after `at`; None = there is none. An empty body proves nothing."""
    for begin in range(at, len(data) - _HEAD.size):
        if data[begin : begin + 1] in _KINDS and _read_body(data, begin):
            return begin
    return None


def _is_torn(data: bytes, at: int) -> bool:
    """Whether the last record, which is incomplete, may be a write that a crash cut short."""
    left = len(data) - at - _HEAD.size
    if left <= 0:
        return True
    kind, size, crc = _HEAD.unpack_from(data, at)
    rest = data[at + _HEAD.size :]
    if any(rest) and any(crc in _compute_crcs(one, rest) for one in _KINDS):
        return False  # the body is complete, so its head was damaged
    short = kind in _KINDS and size > left
    return short or _has_empty_sector(data, at)


def _has_empty_sector(data: bytes, at: int) -> bool:
    """Whether a sector after `at`, or the part of one at either end, contains only zeros."""
    while at < len(data):
        end = min(at - at % _SECTOR + _SECTOR, len(data))
        if not any(data[at:end]):
            return True
        at = end
    return False


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _encode_record(record: Record) -> bytes:
    kind, body = record
    return _HEAD.pack(kind, len(body), _compute_crcs(kind, body)[0]) + body
