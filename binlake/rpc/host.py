"""A server's connections, whatever protocol they speak, and which of them it closes if there is no slot for a new one.

The address with the most connections loses some: first those whose protocol is still unknown, then idle ones, then
those that have been silent for the longest time. So connections that are only held open cannot block others.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable
from typing import Protocol, cast

from binlake.rpc.call import Handler
from binlake.rpc.limits import Assembly, Limits
from binlake.rpc.request import HttpRequest, HttpResponse

_AT_ONCE = 100  # a hundredth of all is closed at once, since the search goes through all


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


class SilentPeer(Protocol):
    """A connection whose protocol is not known yet."""

    address: str
    heard_at: float

    def evict(self) -> None:
        """Close the connection."""


class Peers:
    """At most `limit` connections, with at most `waiting_calls` calls that wait for peers. Used on the loop."""

    def __init__(self, limit: int, waiting_calls: int) -> None:
        self._limit = limit
        self._waiting_calls = waiting_calls
        self.peers: set[Peer] = set()
        self.silent: set[SilentPeer] = set()

    def free_slots(self) -> None:
        """Free some slots if all are in use; called before a connection is added."""
        if len(self.peers) + len(self.silent) < self._limit:
            return
        everyone: list[Peer | SilentPeer] = [*self.silent, *self.peers]
        address = Counter(peer.address for peer in everyone).most_common(1)[0][0]
        count = 1 + self._limit // _AT_ONCE
        leaving = heapq.nsmallest(
            count, (one for one in everyone if one.address == address), key=_compute_eviction_order
        )
        for peer in leaving:
            self.silent.discard(peer)
            self.peers.discard(cast(Peer, peer))
            peer.evict()

    def tick(self, now: float) -> None:
        """Let each connection check for timeouts; end those with too many waiting calls."""
        for peer in list(self.peers):
            peer.tick(now)
        waiting = sum(peer.waiting_calls for peer in self.peers)
        while waiting > self._waiting_calls:
            greatest = max(self.peers, key=lambda peer: peer.waiting_calls)
            waiting -= greatest.waiting_calls
            self.peers.discard(greatest)
            greatest.evict()


def _compute_eviction_order(peer: Peer | SilentPeer) -> tuple[bool, bool, float]:
    idle = getattr(peer, "idle", None)
    return idle is not None, idle is False, peer.heard_at
