"""Threads that read the ranges of a load, each in its own session at the snapshot."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from binlake.lake.baseload import LoadedRange
from binlake.lake.tables import BINLOG
from binlake.mysqlbinlog.tablerows.link import Link
from binlake.spark_jobs.bootstrap.ranges import BootstrapRange, BootstrapRanges
from binlake.spark_jobs.bootstrap.reading import read_range
from binlake.spark_jobs.bootstrap.source import SnapshotSource
from binlake.spark_jobs.job.context import StageContext

Read: TypeAlias = tuple[BootstrapRange, LoadedRange]

_WAITING = 2
"""Finished ranges per reader that may wait to be recorded."""
_POLL_S = 0.2


class _Stopped(Exception):
    """The consumer has stopped, so readers stop too."""


class Readers:
    """`source.snapshot.threads` threads that read `ranges`; a context manager, which ends them."""

    def __init__(self, source: SnapshotSource, ranges: BootstrapRanges, version: int, ctx: StageContext) -> None:
        self._source = source
        self._ranges = ranges
        self._version = version
        self._folder = ctx.paths.locate_table(BINLOG.name)
        count = ctx.replication.source.snapshot.threads
        self._ready: queue.Queue[Read | BaseException | None] = queue.Queue(_WAITING * count)
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run, name=f"load-{number}") for number in range(count)]

    def __enter__(self) -> Readers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def iterate_results(self) -> Iterator[list[Read]]:
        """The ranges that have been read, in batches, until all are read. Raises what a reader raised."""
        running = len(self._threads)
        while running:
            items = [self._ready.get()]
            while not self._ready.empty():
                items.append(self._ready.get_nowait())
            read = [item for item in items if isinstance(item, tuple)]
            if read:
                yield read
            for item in items:
                if isinstance(item, BaseException):
                    raise item
            running -= sum(item is None for item in items)

    def _run(self) -> None:
        try:
            with self._source.open_session() as link:
                self._read(link)
            self._put(None)
        except _Stopped:
            return
        except BaseException as error:  # noqa: BLE001 - carried to iterate_results(), which raises it
            with suppress(_Stopped):
                self._put(error)

    def _read(self, link: Link) -> None:
        while not self._stopped.is_set() and (given := self._ranges.take(link)) is not None:
            self._put((given, read_range(link, given, self._version, self._folder)))

    def _put(self, item: Read | BaseException | None) -> None:
        while not self._stopped.is_set():
            with suppress(queue.Full):
                self._ready.put(item, timeout=_POLL_S)
                return
        raise _Stopped
