"""The connected clients, and the choice of those to close if there is no slot for a new one.

The address with the most connections loses some: first those whose protocol is still unknown, then idle ones, then
those that have been silent for the longest time. So connections that are only held open cannot block others.
"""

from __future__ import annotations

import heapq
from collections import Counter
from typing import Protocol, cast

from binlake.rpc.host import Peer

_AT_ONCE = 100  # a hundredth of all is closed at once, since the search goes through all


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
