"""The interface between a server and its connections, whatever protocol a connection speaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from binlake.rpc.assembly import Assembly
from binlake.rpc.call import Handler
from binlake.rpc.http import HttpRequest, HttpResponse
from binlake.rpc.limits import Limits


class Peer(Protocol):
    """A connection as its server sees it, whatever its protocol.

    `address`: the client's host. `heard_at`: when it last sent something, on the server's clock. `waiting_calls`: how
    many of its calls waited for the peer at the last tick: for the rest of a request, or to accept an answer.
    """

    address: str
    heard_at: float
    waiting_calls: int

    @property
    def idle(self) -> bool:
        """Whether no call is running on it."""

    def drain(self) -> None:
        """Accept no new calls, and close after the last one."""

    def end_calls(self) -> None:
        """End running calls, then close."""

    def evict(self) -> None:
        """Close, since its slot is needed."""

    def tick(self, now: float) -> None:
        """Check for timeouts."""


class Host(Protocol):
    """The interface of a server for its connections."""

    methods: dict[str, Handler]
    take_views: set[str]
    limits: Limits
    assembly: Assembly
    clock: Callable[[], float]

    def answer_http(self, request: HttpRequest, answer: Callable[[HttpResponse], None], address: str) -> None:
        """Answer a plain HTTP request from `address`, later."""

    def run_in_thread(self, action: Callable[[], Callable[[], None]]) -> None:
        """Run `action` in a thread, then call its result on the loop."""

    def add_connection(self, connection: Peer) -> None:
        """Called when a connection is open."""

    def remove_connection(self, connection: Peer) -> None:
        """Called when a connection is closed."""


def read_peer_address(transport: asyncio.BaseTransport) -> str:
    """The host of the peer; empty for a Unix socket."""
    name = transport.get_extra_info("peername")
    return str(name[0]) if isinstance(name, tuple) and name else ""


def has_certificate(transport: asyncio.BaseTransport | None) -> bool:
    """Whether the peer has a certificate that our CA signed: TLS asks for one only if a CA is configured."""
    return transport is not None and bool(transport.get_extra_info("peercert"))
