"""A port that speaks TLS in front of a server that does not, as a proxy of a deployment does."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Sequence

from binlake.rpc import Tls
from deploy.local.ports import HOST

_CHUNK = 1 << 16


class TlsRelay:
    """Listens on `port` of this machine with the certificate of `tls`; passes all bytes to `server_port` and back."""

    def __init__(self, server_port: int, tls: Tls, protocols: Sequence[str] = ("http/1.1",)) -> None:
        self._server_port = server_port
        self._context = tls.build_server_context(protocols)
        # Callers need not show a certificate.
        self._context.verify_mode = ssl.CERT_NONE
        self._socket = socket.create_server((HOST, 0))
        self.port = int(self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> TlsRelay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._socket.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._relay, args=(caller,), daemon=True).start()

    def _relay(self, caller: socket.socket) -> None:
        # A caller that refuses the certificate is not an error here.
        with (
            contextlib.suppress(OSError),
            self._context.wrap_socket(caller, server_side=True) as encrypted,
            socket.create_connection((HOST, self._server_port)) as server,
        ):
            _pass_bytes(encrypted, server)


def _pass_bytes(encrypted: ssl.SSLSocket, server: socket.socket) -> None:
    """Until one side ends; in one thread, as two may not use one connection of TLS."""
    while True:
        ready = [encrypted] if encrypted.pending() else select.select([encrypted, server], [], [])[0]
        for source in ready:
            data = source.recv(_CHUNK)
            if not data:
                return
            (server if source is encrypted else encrypted).sendall(data)
