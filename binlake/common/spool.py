"""Data too large for memory: a file without a name, and pieces of it that are read when they are used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Protocol

from binlake.common.localfiles import describe_os_error
from binlake.errors import BinlakeError


class MessagePiece(Protocol):
    """A part of a message: bytes, or what reads them when they are wanted."""

    def __len__(self) -> int:
        """Its bytes."""

    def __getitem__(self, at: slice, /) -> bytes:
        """Some of its bytes."""


class SpoolFile:
    """A file in `folder` (None: the system's folder for temporary files) that ends with its last user.

    It has no name, so nothing is left of it after a crash. Raises BinlakeError when the disk is full or fails.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.size = 0
        try:
            self._handle, name = tempfile.mkstemp(prefix=".large-", dir=folder)
            os.unlink(name)
        except OSError as error:
            raise self._describe(error) from error

    def append(self, data: bytes | bytearray | memoryview) -> int:
        """Write `data` at the end; returns where it begins."""
        begin, view = self.size, memoryview(data)
        try:
            while view:
                written = os.pwrite(self._handle, view, self.size)
                view, self.size = view[written:], self.size + written
        except OSError as error:
            raise self._describe(error) from error
        return begin

    def read(self, at: int, size: int) -> bytes:
        """At most `size` bytes from offset `at`; fewer at the end."""
        try:
            return os.pread(self._handle, size, at)
        except OSError as error:
            raise self._describe(error) from error

    def _describe(self, error: OSError) -> BinlakeError:
        described = describe_os_error(error)
        described.where.setdefault("folder", str(self.folder or tempfile.gettempdir()))
        return described

    def __del__(self) -> None:
        if (handle := getattr(self, "_handle", None)) is not None:
            os.close(handle)


class SpoolPiece:
    """`size` bytes of `file` from offset `begin`."""

    __slots__ = ("_begin", "_file", "_size")

    def __init__(self, file: SpoolFile, begin: int, size: int) -> None:
        self._file, self._begin, self._size = file, begin, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: slice, /) -> bytes:
        first, last, _ = at.indices(self._size)
        return self._file.read(self._begin + first, last - first)
