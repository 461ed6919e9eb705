"""The embedded etcd's journal: records that are fsynced before an answer, and a snapshot that keeps it short.

Record: kind (1 byte), length u32 LE, CRC-32C of the body u32 LE, body (a protobuf message). A torn tail is cut off at
open: it was never answered.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import google_crc32c

from binlake.errors import WireError
from pump_service.durable import replace_file, sync_folder

EVENTS, STATE, GRANT, REVOKE = b"E", b"S", b"G", b"R"
_HEAD = struct.Struct("<cII")

Record = tuple[bytes, bytes]


class Journal:
    """Appends records to `path`; one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._broken = False
        sync_folder(path.parent)

    def read(self) -> Iterator[Record]:
        """All whole records; a torn tail is removed. Raises WireError for damage before the tail."""
        data = self._path.read_bytes()
        at = 0
        while at < len(data):
            body = _body(data, at)
            if body is None:
                self._cut(data, at)
                return
            yield data[at : at + 1], body
            at += _HEAD.size + len(body)

    def append(self, records: Iterable[Record]) -> None:
        """Durable when it returns. Raises OSError; the journal takes nothing more then: what a failed fsync left is
        not known."""
        if self._broken:
            raise OSError(f"the journal {self._path} failed before: restart the placement driver")
        try:
            _write_all(self._file, b"".join(map(_frame, records)))
            os.fdatasync(self._file)
        except OSError:
            self._broken = True
            raise

    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._file).st_size

    def replace(self, records: Iterable[Record]) -> None:
        """Write `records` in place of everything, at once."""
        replace_file(self._path, map(_frame, records))
        os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _cut(self, data: bytes, at: int) -> None:
        if not _is_torn(data, at):
            raise WireError(
                "the registry's journal is damaged",
                where={"file": self._path, "offset": at},
                hint="restore the data directory from a copy",
            )
        os.ftruncate(self._file, at)
        os.fsync(self._file)


def _body(data: bytes, at: int) -> bytes | None:
    """The body of the record at `at`; None when the record is not whole."""
    if at + _HEAD.size > len(data):
        return None
    kind, size, crc = _HEAD.unpack_from(data, at)
    body = data[at + _HEAD.size : at + _HEAD.size + size]
    whole = kind in (EVENTS, STATE, GRANT, REVOKE) and len(body) == size and google_crc32c.value(body) == crc
    return body if whole else None


def _is_torn(data: bytes, at: int) -> bool:
    # A crash leaves one record short, or its last blocks as zeros; anything after it means real damage.
    if at + _HEAD.size > len(data) or not any(data[at:]):
        return True
    size = int(_HEAD.unpack_from(data, at)[1])
    return at + _HEAD.size + size >= len(data)


def _write_all(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _frame(record: Record) -> bytes:
    kind, body = record
    return _HEAD.pack(kind, len(body), google_crc32c.value(body)) + body
