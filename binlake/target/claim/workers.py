"""Connections side by side: each takes the next piece of work when it is free; the first failure stops them all.

The caller's thread waits, so a call of `each` is a barrier: what it returns from is done by all (invariant 6).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import structlog

from binlake.errors import BinlakeError
from binlake.target.claim.writer import FencedWriter

log = structlog.get_logger()

T = TypeVar("T")


class _Feed(Generic[T]):
    """An iterator that threads share. It ends for all of them after the first error."""

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._lock = threading.Lock()
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        with self._lock:
            if self.error is not None:
                raise StopIteration
            return next(self._items)

    def fail(self, error: BaseException) -> None:
        """Remember the first error."""
        with self._lock:
            self.error = self.error or error


class Workers:
    """At most `count` writers, numbered from 1; `connect` opens one when it gets its first work."""

    def __init__(self, count: int, connect: Callable[[int], FencedWriter]) -> None:
        self._count = count
        self._connect = connect
        self._writers: dict[int, FencedWriter] = {}

    def each(self, items: Iterator[T], act: Callable[[FencedWriter, T], None], *, most: int | None = None) -> None:
        """`act` on every item, in any order, by any of the writers (`most` of them). Returns when all have stopped.

        Raises the first error, of `items` too. `items` is read by one thread at a time.
        """
        feed = _Feed(items)
        threads = [
            threading.Thread(target=self._work, args=(number, feed, act), name=f"apply-{number}", daemon=True)
            for number in range(1, min(self._count, most or self._count) + 1)
        ]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        except BaseException as error:
            # Ctrl-C: no thread may write once the caller has gone on.
            feed.fail(error)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            raise
        if feed.error is not None:
            raise feed.error

    def connections(self) -> list[int]:
        """The server's numbers of the connections that are open."""
        return [writer.session.connection_id for writer in list(self._writers.values())]

    def close(self) -> None:
        """Close the connections; what is open rolls back at the server."""
        for writer in self._writers.values():
            try:
                writer.session.close()
            except BinlakeError as error:
                log.warning("worker_not_closed", worker=writer.fence.worker, error=str(error))
        self._writers.clear()

    def _work(self, number: int, feed: _Feed[T], act: Callable[[FencedWriter, T], None]) -> None:
        try:
            for item in feed:
                if number not in self._writers:
                    self._writers[number] = self._connect(number)
                act(self._writers[number], item)
        except BaseException as error:  # noqa: BLE001 - carried to the caller's thread, which raises it
            feed.fail(error)
