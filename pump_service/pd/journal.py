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

EVENTS, GRANT, REVOKE = b"E", b"G", b"R"
_HEAD = struct.Struct("<cII")

Record = tuple[bytes, bytes]


class Journal:
    """Appends records to `path`; one writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def read(self) -> Iterator[Record]:
        """All whole records; a torn tail is removed. Raises WireError for damage before the tail."""
        data = self._path.read_bytes()
        at = 0
        while at + _HEAD.size <= len(data):
            kind, size, crc = _HEAD.unpack_from(data, at)
            body = data[at + _HEAD.size : at + _HEAD.size + size]
            if len(body) < size:
                break
            if google_crc32c.value(body) != crc:
                raise WireError("the registry's journal is damaged", where={"file": self._path, "offset": at})
            yield kind, body
            at += _HEAD.size + size
        if at < len(data):
            os.ftruncate(self._file, at)
            os.fsync(self._file)

    def append(self, records: Iterable[Record]) -> None:
        """Durable when it returns."""
        os.write(self._file, b"".join(map(_frame, records)))
        os.fdatasync(self._file)

    def size(self) -> int:
        """Bytes."""
        return os.fstat(self._file).st_size

    def replace(self, records: Iterable[Record]) -> None:
        """Write `records` in place of everything, at once."""
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.writelines(map(_frame, records))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _frame(record: Record) -> bytes:
    kind, body = record
    return _HEAD.pack(kind, len(body), google_crc32c.value(body)) + body
