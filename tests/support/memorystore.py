"""A store of files in memory whose process can be killed at any write."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, BinaryIO


class Killed(BaseException):
    """Stands for the end of the process."""


class MemoryStore:
    """Raises Killed at its `fails`-th write or deletion, before it, or after it if `late`. `puts`: the paths
    written.
    """

    shown = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.writes, self.fails, self.late = 0, 0, False

    def put(self, path: str, content: bytes) -> None:
        """As Store.put."""

        def write() -> None:
            self.files[path] = content
            self.puts.append(path)

        self._change(write)

    def put_from(self, path: str, content: IO[bytes]) -> None:
        """As Store.put_from."""
        self.put(path, content.read())

    def get(self, path: str) -> bytes | None:
        """As Store.get."""
        return self.files.get(path)

    def open(self, path: str) -> BinaryIO:
        """As Store.open."""
        return io.BytesIO(self.files[path])

    def delete(self, path: str) -> None:
        """As Store.delete, for an existing file."""
        self._change(lambda: self.files.pop(path))

    def list(self, folder: str) -> list[str]:
        """As Store.list."""
        return sorted(path for path in self.files if path.startswith(folder))

    def _change(self, change: Callable[[], object]) -> None:
        self.writes += 1
        if self.writes == self.fails and not self.late:
            raise Killed
        change()
        if self.writes == self.fails:
            raise Killed
