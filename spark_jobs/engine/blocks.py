"""Where tasks put rows for other tasks: in memory in one process, in files of Arrow streams elsewhere.

A file is written by one attempt of one task, under a new name; readers get its name and the place of their rows in it.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

import pyarrow as pa
import pyarrow.ipc as ipc

from binlake.lake.access import is_remote
from binlake.lake.objects import delete_objects
from binlake.lake.paths import LakePaths
from binlake.lake.store import open_files
from binlake.spark_jobs.engine.rows import HeldRows, Rows, StoredRows

_OPTIONS = ipc.IpcWriteOptions(compression="lz4")


class RowStore(Protocol):
    """Takes rows from tasks. A task gets it as a part of itself, wherever it runs."""

    def put(self, tables: Sequence[pa.Table]) -> list[Rows]:
        """Store `tables`; returns where each one is."""


@dataclass
class FileStore:
    """Stores rows in files of `folder`, which the context manager removes.

    It also removes the folders of killed runs with the same `purpose`: the caller holds the lock of its stage.
    """

    folder: str
    purpose: str = ""

    @classmethod
    def of(cls, paths: LakePaths, purpose: str) -> FileStore:
        """A new folder for this process: in the lake or, if that is in an object store, on this machine."""
        if paths.local is None:
            return cls(str(Path(tempfile.gettempdir()) / f"binlake-{purpose}-{uuid.uuid4().hex}"))
        return cls.shared(paths, purpose)

    @classmethod
    def shared(cls, paths: LakePaths, purpose: str) -> FileStore:
        """A new folder in the lake, which all workers can reach."""
        return cls(paths.locate_staging(f"{purpose}-{uuid.uuid4().hex}"), purpose)

    def __enter__(self) -> FileStore:
        if self.purpose and is_remote(self.folder):
            delete_objects(f"{self.folder.rpartition('/')[0]}/{self.purpose}-")
        elif self.purpose:
            for left in Path(self.folder).parent.glob(f"{self.purpose}-*"):
                shutil.rmtree(left, ignore_errors=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if is_remote(self.folder):
            delete_objects(self.folder)
        else:
            shutil.rmtree(self.folder, ignore_errors=True)

    def put(self, tables: Sequence[pa.Table]) -> list[Rows]:
        """As Store: one file."""
        path = f"{self.folder}/{uuid.uuid4().hex}.arrow"
        files, below = open_files(path)
        if not is_remote(path):
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        stored: list[Rows] = []
        with files.open_output_stream(below) as file:
            for table in tables:
                first = file.tell()
                with ipc.new_stream(file, table.schema, options=_OPTIONS) as stream:
                    stream.write_table(table)
                stored.append(StoredRows(path, ((first, file.tell() - first),)))
        return stored


@dataclass
class MemoryStore:
    """Holds rows of tasks in this process up to `most_bytes`; what would exceed them goes to `overflow`."""

    most_bytes: int
    overflow: FileStore
    _held: int = field(default=0, init=False)

    def __enter__(self) -> MemoryStore:
        self.overflow.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.overflow.__exit__(kind, error, trace)

    def put(self, tables: Sequence[pa.Table]) -> list[Rows]:
        """As Store."""
        size = sum(table.nbytes for table in tables)
        if self._held + size > self.most_bytes:
            return self.overflow.put(tables)
        self._held += size
        return [HeldRows(table) for table in tables]
