"""Runs the tasks of a stage. One rule: a task gets and returns small values; rows travel in files or in memory.

A task is a function of one input. Its result must not depend on where or how often it runs, or on the other tasks:
files that it writes have new names, and count only if the driver commits the names that it returns. So a task may be
lost, repeated, or run twice at a time.

Rows for other tasks are put into memory in one process, and into files of Arrow streams elsewhere. A file is written by
one attempt of one task, under a new name; readers get its name and the place of their rows in it.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.ipc as ipc

from binlake.common.process import give_memory_back
from binlake.common.spans import NO_SPAN, Span, Values
from binlake.lake.access import is_remote
from binlake.lake.objects import delete_objects
from binlake.lake.paths import LakePaths
from binlake.lake.store import open_files
from binlake.spark_jobs.engine.rows import MemoryRows, Rows, StoredRows

_OPTIONS = ipc.IpcWriteOptions(compression="lz4")
Input = TypeVar("Input")
Output = TypeVar("Output")
Batch = TypeVar("Batch", pa.RecordBatch, pa.Table)
LOCAL_TASK_BYTES = 64 << 20
"""Bytes of rows that a task of this process takes: its memory is a few times that."""
SPARK_TASK_BYTES = 16 << 20
"""Bytes of rows for which a task of Spark pays: to start one takes 20 ms of CPU, and to reduce a row 3 us."""
HELD_BYTES = 256 << 20
"""Bytes of rows between tasks that this process holds in memory; more of them are written to files."""
LARGE_WINDOW_BYTES = 64 << 20
"""Bytes of binlogs above which this process holds only a little of a window, as of one large transaction."""
_LARGE_HELD_BYTES, _LARGE_TASK_BYTES = 16 << 20, 16 << 20


class Keeper:
    """Holds rows in memory beside the files that have them: up to `most_bytes`, and nothing of what exceeds them."""

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes

    def take(self, size: int) -> bool:
        """Whether `size` more bytes may be held; they count in any case."""
        self._left -= size
        return self._left >= 0

    def keep(self, rows: Iterable[Batch], kept: list[Batch]) -> Iterator[Batch]:
        """Yield the same rows and add them to `kept`, which is cleared for good if they do not fit."""
        fits = True
        for batch in rows:
            fits = self.take(batch.nbytes) and fits
            if fits:
                kept.append(batch)
            else:
                kept.clear()
            yield batch


class Engine(Protocol):
    """Runs tasks somewhere. `task_bytes`: bytes of rows for which one more task pays."""

    @property
    def fuses(self) -> bool:
        """Whether a run costs so much that tasks should also do what a later stage would do with their rows."""

    @property
    def holds(self) -> bool:
        """Whether tasks run in this process, so that a reader here can have their rows from memory."""

    @property
    def name(self) -> str:
        """The engine's name for people."""

    @property
    def task_bytes(self) -> int:
        """Bytes of rows that a task should take."""

    def describe(self) -> dict[str, object]:
        """For the event of a stage: what ran its tasks; empty for this process."""

    def run(self, task: Callable[[Input], Output], inputs: Sequence[Input]) -> list[Output]:
        """The task's results, in the order of `inputs`. Raises the first error of a task; then no result counts."""

    def open_store(self, paths: LakePaths, purpose: str) -> AbstractContextManager[RowStore]:
        """Where tasks put rows for later tasks; its files are gone when the context ends."""

    def build_keeper(self) -> Keeper:
        """Holds what tasks write to the lake for a reader in this process, if they run in it."""


def name_task(task: object) -> str:
    """A task's name for people, as on Spark's pages and in traces."""
    inner = getattr(task, "split", task)
    return str(getattr(inner, "func", type(inner)).__name__)


def describe_task(number: int, count: int) -> Values:
    """The attributes of the span of task `number` (from 0) of `count`."""
    return {"binlake.task": number + 1, "binlake.tasks": count}


class LocalEngine:
    """Runs tasks in this process, one after the other: a table's rows are one part, up to `task_bytes`."""

    name = "local"
    fuses = False
    holds = True

    def __init__(self, held_bytes: int = HELD_BYTES, span: Span = NO_SPAN, task_bytes: int = LOCAL_TASK_BYTES) -> None:
        self.task_bytes = task_bytes
        self._held_bytes = held_bytes
        self._span = span

    @classmethod
    def of_window(cls, size: int, span: Span = NO_SPAN) -> LocalEngine:
        """For a window of `size` bytes of binlogs: the rows of a large one are in files, and read a few at a time."""
        if size <= LARGE_WINDOW_BYTES:
            return cls(span=span)
        return cls(_LARGE_HELD_BYTES, span, _LARGE_TASK_BYTES)

    def describe(self) -> dict[str, object]:
        """As Engine."""
        return {}

    def run(self, task: Callable[[Input], Output], inputs: Sequence[Input]) -> list[Output]:
        """As Engine."""
        results = []
        for number, one in enumerate(inputs):
            with self._span.begin(name_task(task), describe_task(number, len(inputs))):
                results.append(task(one))
            give_memory_back()
        return results

    def open_store(self, paths: LakePaths, purpose: str) -> AbstractContextManager[RowStore]:
        """As Engine: in memory as far as there is room, the rest in files."""
        return MemoryStore(self._held_bytes, FileStore.of(paths, purpose))

    def build_keeper(self) -> Keeper:
        """As Engine."""
        return Keeper(self._held_bytes)


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
        return [MemoryRows(table) for table in tables]
