"""Bounds the streams of the embedded placement driver: each holds a thread, and calls must always find one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

STREAMS = 2000
"""Streams at a time; further ones are refused, and their clients retry or go elsewhere."""

Stream = Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]]


class Streams:
    """Counts them."""

    def __init__(self, limit: int = STREAMS) -> None:
        self._limit = limit
        self._free = threading.BoundedSemaphore(limit)

    def bound(self, serve: Stream) -> Stream:
        """`serve`, refused while there are too many."""

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            if not self._free.acquire(blocking=False):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._limit} streams are already open")
            try:
                yield from serve(requests, context)
            finally:
                self._free.release()

        return answer
