"""Relay files in an object store: the same files as in a folder, visible once their upload is complete.

Rule: no lock is needed, because the target's fence decides which process applies. A writer that lost the fence and
still writes does no harm: the file names contain the writer's mark, and a window is read from the files of one attempt
only.
"""

from __future__ import annotations

import io
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import IO, BinaryIO

from binlake.base.filestore import StoredFiles
from binlake.target.relay.files import RelayFile, parse_names

_IN_MEMORY = 32 << 20


class BucketStorage:
    """Relay files in `folder` of an object store."""

    def __init__(self, store: StoredFiles, folder: PurePosixPath) -> None:
        self._store, self.folder = store, folder
        self.mark, self.label = secrets.token_hex(4), f"{store.shown}/{folder}"
        self._created: dict[RelayFile, IO[bytes]] = {}
        self._last: tuple[RelayFile, bytes] | None = None

    def list_finished_files(self) -> list[RelayFile]:
        """As RelayStorage.files."""
        paths = (PurePosixPath(path) for path in self._store.list(str(self.folder)))
        return parse_names((path.name for path in paths if path.parent == self.folder), self.folder)

    def open(self, file: RelayFile) -> BinaryIO:
        """As RelayStorage.open. The last opened file stays in memory, as its batches are read one by one."""
        if self._last is None or self._last[0] != file:
            content = self._store.get(str(file.path))
            if content is None:
                raise FileNotFoundError(2, "No such file", str(file.path))
            self._last = file, content
        return io.BytesIO(self._last[1])

    @contextmanager
    def lock_for_writing(self) -> Iterator[None]:
        """As RelayStorage.lock_for_writing, but takes no lock."""
        yield

    def create(self, file: RelayFile) -> IO[bytes]:
        """As RelayStorage.create."""
        opened: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115
        self._created[file] = opened
        return opened

    def close(self, opened: IO[bytes]) -> None:
        """As RelayStorage.close; `publish` uploads the content."""
        opened.seek(0)

    def publish(self, files: list[RelayFile]) -> None:
        """As RelayStorage.publish."""
        for file in files:
            with self._created.pop(file) as content:
                self._store.put_from(str(file.path), content)

    def sync_files(self) -> None:
        """As RelayStorage.sync_files; a visible object is durable already."""

    def remove_unfinished(self) -> None:
        """As RelayStorage.remove_unfinished."""
        for opened in self._created.values():
            opened.close()
        self._created.clear()

    def delete(self, file: RelayFile) -> None:
        """As RelayStorage.delete."""
        self._store.delete(str(file.path))
