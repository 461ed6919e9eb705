"""Names in the folder of relay files: `relay-INDEX-LO-HI.log`, each holding records of the window (LO, HI] only."""

from __future__ import annotations

import fcntl
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from binlake.base.durable import sync_folder
from binlake.errors import LeaseHeld, Transient

_NAME = re.compile(r"relay-(\d{16})-(\d+)-(\d+)\.log")
_UNFINISHED = ".tmp"


@dataclass(frozen=True, order=True)
class RelayFile:
    """One file: its `index` counts up for ever; `lo` and `hi` (commit_ts) are its window's."""

    index: int
    lo: int
    hi: int
    folder: Path

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.folder / f"relay-{self.index:016d}-{self.lo}-{self.hi}.log"

    @property
    def unfinished(self) -> Path:
        """Where it is while it is written."""
        return self.path.with_suffix(_UNFINISHED)


def list_files(folder: Path) -> list[RelayFile]:
    """The finished files, by index. A missing folder has none."""
    if not folder.exists():
        return []
    found = (_NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted(RelayFile(int(m[1]), int(m[2]), int(m[3]), folder) for m in found if m)


def remove_unfinished(folder: Path) -> None:
    """What a writer that died left; nothing was applied from it."""
    for path in folder.glob(f"relay-*{_UNFINISHED}"):
        path.unlink()


def publish(files: list[RelayFile]) -> None:
    """Give written and synced files their names, the last one last, and make the names durable."""
    folder = files[0].folder
    with raise_transient_on_failure(folder):
        for file in files:
            file.unfinished.rename(file.path)
    sync_names(folder)


def sync_names(folder: Path) -> None:
    """Make the names in the folder durable, and its own. Raises Transient."""
    with raise_transient_on_failure(folder):
        for place in (folder, folder.parent):
            sync_folder(place)


@contextmanager
def raise_transient_on_failure(folder: Path) -> Iterator[None]:
    """A failure to write is raised as Transient."""
    try:
        yield
    except OSError as error:
        raise Transient(
            f"the relay files cannot be written: {error.strerror}",
            where={"folder": folder},
            hint="free space there, or repair the folder; nothing of the window was applied without them",
        ) from error


def make_folders(root: Path, folder: Path) -> None:
    """Make `folder` below `root`, which must be there, and its names durable. Raises Transient.

    Names that exist already are synced too: the process that made them may not have done it.
    """
    with raise_transient_on_failure(folder):
        place = root
        for part in folder.relative_to(root).parts:
            (place / part).mkdir(exist_ok=True)
            sync_folder(place)
            place /= part


def _lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(handle, 300, 0).decode(errors="replace")
        raise LeaseHeld(
            "another process writes these relay files",
            where={"folder": folder, "holder": holder},
            hint=f"wait for it ({holder}); two replications of one name and target need a log-dir each",
        ) from None
    os.ftruncate(handle, 0)
    os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """One writer in a folder (flock, as tidb-binlog 1.9), named in `.lock`. Raises LeaseHeld, Transient."""
    with raise_transient_on_failure(folder):
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with raise_transient_on_failure(folder):
            _lock(handle, folder)
        yield
    finally:
        os.close(handle)
