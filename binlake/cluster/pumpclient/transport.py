"""Sends a request to one pump: the interface between the pump client and RPC.

A connection carries many calls at once. It connects before the first call, and again after the connection was lost.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from binlake.cluster.pumpclient.calls import METHOD, Sender, Sent
from binlake.cluster.pumpclient.outcomes import Done, Refusal, read_outcome
from binlake.rpc import Channel, Tls
from binlake.wire.pump_pb2 import WriteBinlogReq

__all__ = ["Connect", "Connection", "Refusal", "RpcConnection", "build_rpc_connect"]

_CONNECT_S = 5.0


class Connection(Protocol):
    """A connection to one pump; thread-safe."""

    def write(self, request: WriteBinlogReq, timeout_s: float) -> Refusal | None:
        """Send and wait for the outcome; None = stored."""

    def send(self, request: WriteBinlogReq, timeout_s: float, done: Done) -> None:
        """Send without waiting; a thread of the connection calls `done` later, which must not block."""

    def close(self) -> None:
        """Close the connection; unanswered calls fail."""


Connect = Callable[[str], Connection]
"""Creates the connection to a target: HOST:PORT, or unix:PATH."""


def build_rpc_connect(tls: Tls | None = None) -> Connect:
    """Connections of `binlake.rpc`, with `tls` if given. Raises ConfigError for files that cannot be used."""
    if tls is not None:
        tls.build_client_context()
    # A Unix socket of this machine has no TLS, even if the pumps of the registry have.
    return lambda target: RpcConnection(target, None if target.startswith("unix:") else tls)


class RpcConnection:
    """A Connection on one channel. Requests sent without waiting go through a thread, which starts with the first one;
    if the pump supports it, requests that wait there together are sent in one call."""

    def __init__(self, target: str, tls: Tls | None = None) -> None:
        self._channel = Channel(target, tls=tls, connect_timeout_s=_CONNECT_S)
        self._queue: queue.SimpleQueue[Sent | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._sender: threading.Thread | None = None
        self._closed = False

    def write(self, request: WriteBinlogReq, timeout_s: float) -> Refusal | None:
        """See Connection."""
        message = request.SerializeToString()
        return read_outcome(lambda: self._channel.call(METHOD, message, timeout_s))

    def send(self, request: WriteBinlogReq, timeout_s: float, done: Done) -> None:
        """See Connection."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.put(Sent(request, timeout_s, done))
                if self._sender is None:
                    self._sender = threading.Thread(target=self._run, name="pumpclient-send", daemon=True)
                    self._sender.start()
        if closed:
            done(Refusal("the connection was closed"))

    def close(self) -> None:
        """See Connection."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._channel.close()
        if self._sender is not None:
            self._sender.join()

    def _run(self) -> None:
        Sender(self._channel, self._queue).run()
