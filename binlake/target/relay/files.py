"""Relay files `relay-INDEX-LO-HI.log`, each with records of the window (LO, HI] only, in a folder or a store.

In a store no lock is needed, because the target's fence decides which process applies. A writer that lost the fence and
still writes does no harm: the file names contain the writer's mark, a file is visible once its upload is complete, and
a window is read from the files of one attempt only.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, BinaryIO, Protocol

from binlake.common.filestore import StoredFiles
from binlake.common.localfiles import FileLock, sync_folder
from binlake.errors import LeaseHeld, Transient

_NAME = re.compile(r"relay-(\d{16})-(\d+)-(\d+)(?:-([0-9a-f]{8}))?\.log")
_UNFINISHED = ".tmp"
_IN_MEMORY = 32 << 20


@dataclass(frozen=True, order=True)
class RelayFile:
    """One file. Its `index` always increases; `lo` and `hi` (commit_ts) are the bounds of its window.

    `mark`: in an object store, the writer's mark, so that two writers never write the same file.
    """

    index: int
    lo: int
    hi: int
    folder: PurePath
    mark: str = ""

    @property
    def path(self) -> PurePath:
        """The path of the file."""
        mark = f"-{self.mark}" if self.mark else ""
        return self.folder / f"relay-{self.index:016d}-{self.lo}-{self.hi}{mark}.log"


class RelayStorage(Protocol):
    """Stores the relay files of one replication and target.

    A failing disk raises OSError or Transient; a store that does not answer raises Transient, one that refuses raises
    Permanent.
    """

    label: str
    """Names the storage in messages."""
    mark: str
    """The mark in the names of files written by this process; "" if a lock excludes other writers."""

    @property
    def folder(self) -> PurePath:
        """The folder of all files."""

    def list_finished_files(self) -> list[RelayFile]:
        """The finished files, by index."""

    def open(self, file: RelayFile) -> BinaryIO:
        """Open the file for reading from any byte."""

    def lock_for_writing(self) -> AbstractContextManager[None]:
        """A context for all writes: creates the folder and, if it can, excludes other writers. Raises LeaseHeld."""

    def create(self, file: RelayFile) -> IO[bytes]:
        """A new file, invisible to readers until `publish`."""

    def close(self, opened: IO[bytes]) -> None:
        """Finish writing the file."""

    def publish(self, files: list[RelayFile]) -> None:
        """Make finished files visible, in order, and durable."""

    def sync_files(self) -> None:
        """Make the visible files durable."""

    def remove_unfinished(self) -> None:
        """Remove files that were created but not published; nothing was applied from them."""

    def delete(self, file: RelayFile) -> None:
        """Delete a file that is no longer needed; it may be missing already."""


def parse_names(names: Iterable[str], folder: PurePath) -> list[RelayFile]:
    """The relay files among the names in `folder`, by index."""
    found = (_NAME.fullmatch(name) for name in names)
    return sorted(RelayFile(int(m[1]), int(m[2]), int(m[3]), folder, m[4] or "") for m in found if m)


def list_files(folder: Path) -> list[RelayFile]:
    """The finished files of a folder, by index; empty if the folder is missing."""
    return parse_names((path.name for path in folder.iterdir()), folder) if folder.exists() else []


class FolderStorage:
    """Relay files in `folder`, which is created on demand below the existing `root`; flock allows one writer."""

    mark = ""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self.folder, self.label = root, folder, str(folder)

    def list_finished_files(self) -> list[RelayFile]:
        """As RelayStorage.files."""
        return list_files(self.folder)

    def open(self, file: RelayFile) -> BinaryIO:
        """As RelayStorage.open."""
        return Path(file.path).open("rb")

    @contextmanager
    def lock_for_writing(self) -> Iterator[None]:
        """As RelayStorage.lock_for_writing."""
        build_folders(self._root, self.folder)
        with hold_folder_lock(self.folder):
            yield

    def create(self, file: RelayFile) -> IO[bytes]:
        """As RelayStorage.create."""
        return _build_unfinished_path(file).open("wb")

    def close(self, opened: IO[bytes]) -> None:
        """As RelayStorage.close."""
        opened.flush()
        os.fsync(opened.fileno())
        opened.close()

    def publish(self, files: list[RelayFile]) -> None:
        """As RelayStorage.publish."""
        with raise_transient_on_failure(self.folder):
            for file in files:
                _build_unfinished_path(file).rename(file.path)
        sync_names(self.folder)

    def sync_files(self) -> None:
        """As RelayStorage.sync_files."""
        sync_names(self.folder)

    def remove_unfinished(self) -> None:
        """As RelayStorage.remove_unfinished."""
        for path in self.folder.glob(f"relay-*{_UNFINISHED}"):
            path.unlink()

    def delete(self, file: RelayFile) -> None:
        """As RelayStorage.delete."""
        Path(file.path).unlink(missing_ok=True)


def _build_unfinished_path(file: RelayFile) -> Path:
    """The path of the file while it is being written."""
    return Path(file.path.with_suffix(_UNFINISHED))


def sync_names(folder: Path) -> None:
    """Make the folder's name and the names in it durable. Raises Transient."""
    with raise_transient_on_failure(folder):
        for each in (folder, folder.parent):
            sync_folder(each)


@contextmanager
def raise_transient_on_failure(folder: object) -> Iterator[None]:
    """Raise OSError inside the context as Transient."""
    try:
        yield
    except OSError as error:
        raise Transient(
            f"the relay files cannot be written: {error.strerror}",
            where={"folder": folder},
            hint="free space, or repair the folder; no part of the window was applied without relay files",
        ) from error


def build_folders(root: Path, folder: Path) -> None:
    """Make `folder` below `root`, which must exist, and make the names durable. Raises Transient.

    Existing names are synced too: the process that made them may not have synced them.
    """
    with raise_transient_on_failure(folder):
        parent = root
        for part in folder.relative_to(root).parts:
            (parent / part).mkdir(exist_ok=True)
            sync_folder(parent)
            parent /= part


@contextmanager
def hold_folder_lock(folder: Path) -> Iterator[None]:
    """Allow one writer per folder (flock, as tidb-binlog 1.9), named in `.lock`. Raises LeaseHeld, Transient."""
    lock = FileLock(folder / ".lock")
    with raise_transient_on_failure(folder):
        if not lock.take(f"process {os.getpid()} on {socket.gethostname()}"):
            holder = lock.read_holder()
            raise LeaseHeld(
                "another process writes these relay files",
                where={"folder": folder, "holder": holder},
                hint=f"wait for it ({holder}); two replications with the same name and target need separate log-dirs",
            )
    try:
        yield
    finally:
        lock.release()


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
