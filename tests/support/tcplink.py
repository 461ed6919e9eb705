"""A network path to a server that a test can cut, freeze, and repair."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
from typing import Self


class TcpLink:
    """Forwards `port` to (host, port) of a server.

    `cut`: open connections end, and new ones end at once. `freeze`: open connections stay open, but carry nothing in
    either direction. `meter`: all connections together carry only so much of the server's answers. `mend`: new
    connections work.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self._lock = threading.Lock()
        self._open: dict[threading.Event, threading.Event] = {}
        """By the event that asks a connection to end, the event that says it has ended."""
        self._frozen = threading.Event()
        self._is_cut = False
        self._allowance = math.inf
        """Bytes that the server may still send."""
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=10)

    def cut(self) -> None:
        """End every connection; after the return, nothing is forwarded any more."""
        with self._lock:
            self._is_cut = True
            ended = list(self._open.values())
            for end in self._open:
                end.set()
        for one in ended:
            assert one.wait(timeout=10)

    def freeze(self) -> None:
        """Forward nothing any more, but leave the connections open."""
        self._frozen.set()

    def meter(self, allowance: int) -> None:
        """Forward about `allowance` more bytes from the server, then nothing until the next call or `mend`."""
        with self._lock:
            self._allowance = allowance

    def mend(self) -> None:
        """Forward new connections again."""
        with self._lock:
            self._is_cut, self._allowance = False, math.inf
            self._frozen = threading.Event()

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                end, ended, frozen, is_cut = threading.Event(), threading.Event(), self._frozen, self._is_cut
                if not is_cut:
                    self._open[end] = ended
            if is_cut:
                client.close()
            else:
                self._spawn(self._carry_until, client, end, frozen, ended)

    def _spend(self, size: int) -> None:
        with self._lock:
            self._allowance -= size

    def _carry_until(
        self, client: socket.socket, end: threading.Event, frozen: threading.Event, ended: threading.Event
    ) -> None:
        try:
            self._carry(client, end, frozen)
        finally:
            ended.set()

    def _carry(self, client: socket.socket, end: threading.Event, frozen: threading.Event) -> None:
        with client, contextlib.suppress(ConnectionRefusedError), socket.create_connection(self._server) as server:
            waiting = select.poll()
            for one in (client, server):
                waiting.register(one, select.POLLIN)
            while not end.is_set():
                if frozen.is_set() or self._allowance <= 0:
                    end.wait(0.05)
                    continue
                for number, _ in waiting.poll(50):
                    source, target = (client, server) if number == client.fileno() else (server, client)
                    with contextlib.suppress(OSError):
                        data = source.recv(1 << 16)
                        if source is server:
                            self._spend(len(data))
                        if data and not frozen.is_set():
                            target.sendall(data)
                        if data:
                            continue
                    end.set()
