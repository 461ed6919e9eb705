"""Limits the open streams of the embedded placement driver: each holds a thread, and calls need threads, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

STREAMS = 2000
"""Streams open at a time; more are refused, and their clients retry or try another member."""

Stream = Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]]


class Streams:
    """Counts open streams."""

    def __init__(self, limit: int = STREAMS) -> None:
        self._limit = limit
        self._free = threading.BoundedSemaphore(limit)

    def wrap(self, serve: Stream) -> Stream:
        """Wrap `serve` so that a call is refused while too many streams are open."""

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            if not self._free.acquire(blocking=False):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._limit} streams are already open")
            try:
                yield from serve(requests, context)
            finally:
                self._free.release()

        return answer
