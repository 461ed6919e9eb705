"""Sends many requests at once and waits for all answers, so that one fsync of a pump serves many requests."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterable

from binlake.cluster.pumpclient.pumps import PumpState
from binlake.cluster.pumpclient.transport import WriteRefusal
from binlake.wire.pump_pb2 import WriteBinlogReq


def send_all(requests: Iterable[tuple[PumpState, WriteBinlogReq]], timeout_s: float) -> list[WriteRefusal | None]:
    """Send each request to its pump; returns the outcomes in order, None = stored."""
    waiting = list(requests)
    answers = _Answers(len(waiting))
    for number, (pump, request) in enumerate(waiting):
        pump.connection.send(request, timeout_s, functools.partial(answers.put, number))
    return answers.wait()


class _Answers:
    def __init__(self, count: int) -> None:
        self._outcomes: list[WriteRefusal | None] = [None] * count
        self._left = count
        self._lock = threading.Lock()
        self._done = threading.Event()
        if not count:
            self._done.set()

    def put(self, number: int, refused: WriteRefusal | None) -> None:
        self._outcomes[number] = refused
        with self._lock:
            self._left -= 1
            left = self._left
        if not left:
            self._done.set()

    def wait(self) -> list[WriteRefusal | None]:
        self._done.wait()
        return self._outcomes
