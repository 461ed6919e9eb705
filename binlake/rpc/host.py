"""What a server and its connections know of each other, whatever a connection speaks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from binlake.rpc.assembly import Assembly
from binlake.rpc.call import Handler
from binlake.rpc.http import HttpRequest, HttpResponse
from binlake.rpc.limits import Limits


class Peer(Protocol):
    """What a server needs of a connection, whatever it speaks."""

    @property
    def idle(self) -> bool:
        """Whether nothing runs on it."""

    def drain(self) -> None:
        """Take no new calls, close after the last."""

    def end_calls(self) -> None:
        """End what runs, then close."""

    def tick(self, now: float) -> None:
        """Look for what takes too long."""


class Host(Protocol):
    """What a connection needs of its server."""

    methods: dict[str, Handler]
    limits: Limits
    assembly: Assembly
    clock: Callable[[], float]

    def http(self, asked: HttpRequest, answer: Callable[[HttpResponse], None]) -> None:
        """Answer a plain HTTP request, later."""

    def joined(self, connection: Peer) -> None:
        """It is open."""

    def left(self, connection: Peer) -> None:
        """It is closed."""
