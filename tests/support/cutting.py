"""A TCP proxy that cuts a connection at a COMMIT, before the server receives it or before the client gets the answer.

It parses the traffic, so the server must not offer TLS.
"""

from __future__ import annotations

import select
import socket
import threading
from typing import Literal

_COMMIT = b"\x03COMMIT"


class CuttingProxy:
    """Forwards `port` to (host, port) and cuts at the `at`-th COMMIT (counted from 1 over all connections).

    `lose` "request": the server never receives the COMMIT; "answer": the server commits, but the client does not learn
    it. `delay_s`: seconds by which each client packet is delayed. `requests` counts the clients' packets.
    """

    def __init__(
        self, host: str, port: int, *, at: int = 0, lose: Literal["request", "answer"] = "request", delay_s: float = 0.0
    ) -> None:
        self._server = (host, port)
        self._at = at
        self._lose = lose
        self._delay = threading.Event(), delay_s
        self._commits = 0
        self.requests = 0
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._threads: list[threading.Thread] = []
        self._ended = False

    def __enter__(self) -> CuttingProxy:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        # Wakes up accept().
        socket.create_connection(("127.0.0.1", self.port)).close()
        for thread in self._threads:
            thread.join(timeout=10)
        self._listener.close()

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            if self._ended:
                client.close()
                return
            self._spawn(self._carry, client)

    def _carry(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            ends = {end.fileno(): end for end in (client, server)}
            # Unlike select, poll accepts descriptors above 1,023, which a process with many tests may have.
            waiting = select.poll()
            for number in ends:
                waiting.register(number, select.POLLIN)
            while not self._ended:
                for number, _ in waiting.poll(200):
                    end = ends[number]
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    if end is server:
                        client.sendall(data)
                    elif not self._forward(data, server):
                        return

    def _forward(self, data: bytes, server: socket.socket) -> bool:
        """Forward one packet; return False after cutting the connection."""
        self.requests += 1
        event, seconds = self._delay
        event.wait(seconds)
        cut = self._is_cut(data)
        if not cut or self._lose == "answer":
            server.sendall(data)
        if cut:
            self.cuts += 1
        if cut and self._lose == "answer":
            # The answer arrived, so the server has committed.
            server.recv(1 << 16)
        return not cut

    def _is_cut(self, data: bytes) -> bool:
        self._commits += data.count(_COMMIT)
        return bool(self._at) and _COMMIT in data and self._commits == self._at
