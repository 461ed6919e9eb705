"""A TCP proxy whose connections can be cut, and then refused until `restore`.

It is a process of its own: some calls of delta-rs keep Python's lock while they wait for an answer.
"""

from __future__ import annotations

import multiprocessing
import socket
import threading
from contextlib import suppress
from multiprocessing.sharedctypes import Synchronized

_SPAWN = multiprocessing.get_context("spawn")


class FlakyProxy:
    """Forwards connections to `url` to `server_port` on loopback."""

    def __init__(self, server_port: int) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._left: Synchronized[int] = _SPAWN.Value("i", -1)
        self._process = _SPAWN.Process(target=_serve, args=(listener, server_port, self._left), daemon=True)
        self._listener = listener

    def cut_after(self, pieces: int) -> None:
        """Cut all connections, and refuse new ones, once `pieces` more pieces of requests have passed."""
        self._left.value = pieces

    def restore(self) -> None:
        """Accept connections again."""
        self._left.value = -1

    def __enter__(self) -> FlakyProxy:
        self._process.start()
        self._listener.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()


def _serve(listener: socket.socket, server_port: int, left: Synchronized[int]) -> None:
    connections: list[socket.socket] = []
    while True:
        client, _ = listener.accept()
        if left.value == 0:
            client.close()
            continue
        server = socket.create_connection(("127.0.0.1", server_port))
        connections += [client, server]
        threading.Thread(target=_forward, args=(client, server, left, connections), daemon=True).start()
        threading.Thread(target=_forward, args=(server, client, None, connections), daemon=True).start()


def _forward(
    source: socket.socket, to: socket.socket, left: Synchronized[int] | None, connections: list[socket.socket]
) -> None:
    with suppress(OSError):  # one of the two ends is closed
        while data := source.recv(1 << 16):
            if left is not None and not _may_pass(left):
                for one in connections:
                    _shut_down(one)
                return
            to.sendall(data)
    _shut_down(source)
    _shut_down(to)


def _may_pass(left: Synchronized[int]) -> bool:
    with left.get_lock():
        if left.value > 0:
            left.value -= 1
        return left.value != 0


def _shut_down(one: socket.socket) -> None:
    """End the connection; unlike `close`, this wakes a thread that reads from it."""
    with suppress(OSError):  # it has ended already
        one.shutdown(socket.SHUT_RDWR)
