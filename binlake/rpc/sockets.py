"""The client side of a socket, TCP, TLS or Unix, and the TLS of both sides as in `[security]` of tidb-binlog 2.12.

A `Wire` blocks only in its waits, so one thread can read while others write. `Tls` has files, client certificates and
their common names; ALPN on both sides.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from binlake.common.secrets import load_tls_files
from binlake.errors import ConfigError
from binlake.rpc.messages import RpcError, Status

_READ_BYTES = 1 << 20


class Wire:
    """A connection to `address`, HOST:PORT or unix:PATH. Raises RpcError (UNAVAILABLE). Its owner serialises calls."""

    def __init__(self, address: str, tls: Tls | None, timeout_s: float) -> None:
        self._address = address
        self._unsent = bytearray()
        self._closed = False
        self._polls = 0
        self._guard = threading.Lock()
        self._ssl: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        try:
            self._socket = _connect(address, timeout_s)
        except (OSError, ValueError) as error:
            raise self._build_connection_lost_error(f"cannot connect: {error}") from None
        try:
            if tls is not None:
                self._perform_handshake(tls)
            self._socket.setblocking(False)
        except (OSError, ssl.SSLError) as error:
            self._socket.close()
            raise self._build_connection_lost_error(f"TLS failed: {error}") from None
        except BaseException:
            self._socket.close()
            raise

    @property
    def unsent(self) -> bool:
        """Whether unsent bytes wait for the peer to read."""
        return bool(self._unsent)

    def write(self, data: bytes) -> None:
        """Send `data`; bytes that the socket does not accept now are buffered."""
        if self._ssl is not None:
            self._ssl.write(data)
            data = self._outgoing.read()
        if self._unsent:
            self._unsent += data
            self.flush()
            return
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise self._build_connection_lost_error(f"connection broke: {error}") from None
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]

    def flush(self) -> None:
        """Send buffered bytes, as many as the socket accepts."""
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent)
            except BlockingIOError:
                return
            except OSError as error:
                raise self._build_connection_lost_error(f"connection broke: {error}") from None
            del self._unsent[:sent]

    def wait(self, timeout_s: float | None) -> None:
        """Wait until there is something to read, or buffered bytes can be sent. May run while `write` runs."""
        self._poll(select.POLLIN | (select.POLLOUT if self._unsent else 0), timeout_s)

    def wait_writable(self, timeout_s: float) -> None:
        """Wait until the socket accepts more bytes. May run while `wait` runs."""
        self._poll(select.POLLOUT, timeout_s)

    def _poll(self, events: int, timeout_s: float | None) -> None:
        with self._guard:
            if self._closed:
                return  # closed by another thread, which has ended the calls of the waiting threads
            self._polls += 1
        try:
            poll = select.poll()
            poll.register(self._socket, events)
            poll.poll(None if timeout_s is None else max(0, int(timeout_s * 1000 + 0.999)))
        finally:
            with self._guard:
                self._polls -= 1
                self._close_unwatched()

    def read(self) -> bytes | None:
        """The received bytes; None if there are none. Raises RpcError at the end of the connection."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._build_connection_lost_error(f"connection broke: {error}") from None
        if not data:
            raise self._build_connection_lost_error("the server closed the connection")
        if self._ssl is None:
            return data
        self._incoming.write(data)
        return self._read_decrypted()

    def close(self) -> None:
        """Close the socket, drop unsent bytes, and wake the threads that wait on it; idempotent."""
        with self._guard:
            self._closed = True
            self._unsent = bytearray()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._close_unwatched()

    def _close_unwatched(self) -> None:
        # Not closed while a thread polls it: the file number could be reused, and the thread would poll another peer.
        if self._closed and not self._polls:
            self._socket.close()

    def _read_decrypted(self) -> bytes:
        assert self._ssl is not None
        parts: list[bytes] = []
        try:
            while part := self._ssl.read(_READ_BYTES):
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise self._build_connection_lost_error(f"TLS failed: {error}") from None
        if answer := self._outgoing.read():
            self._unsent += answer
            self.flush()
        return b"".join(parts)

    def _perform_handshake(self, tls: Tls) -> None:
        host = self._address.rpartition(":")[0].strip("[]")
        self._ssl = tls.build_client_context().wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        while True:
            try:
                self._ssl.do_handshake()
                return
            except ssl.SSLWantReadError:
                pass
            finally:
                with contextlib.suppress(BrokenPipeError):
                    self._socket.sendall(self._outgoing.read())
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise OSError("the server closed the connection")
            self._incoming.write(data)

    def _build_connection_lost_error(self, text: str) -> RpcError:
        return RpcError(Status.UNAVAILABLE, text, where={"addr": self._address})


def _connect(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("unix:"):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(timeout_s)
        try:
            made.connect(address.removeprefix("unix:"))
        except BaseException:
            made.close()
            raise
        return made
    host, _, port = address.rpartition(":")
    made = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 60_000)
    return made


@dataclass(frozen=True)
class Tls:
    """The PEM files of one `[security]` block, the same on both sides.

    With `ca`, a server requires a client certificate, and a client verifies the server by it (else by the system's).
    `allowed_cn`: the common names that a client certificate may have; empty = any.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    allowed_cn: tuple[str, ...] = ()

    @classmethod
    def of(cls, ca: str, cert: str, key: str, allowed_cn: tuple[str, ...] = ()) -> Tls | None:
        """From file names, empty = none; None if all three are empty."""
        if not (ca or cert or key):
            return None
        files = {"ca": ca, "cert": cert, "key": key}
        return cls(**{name: Path(file) for name, file in files.items() if file}, allowed_cn=allowed_cn)

    def build_server_context(self, protocols: Sequence[str] = ("h2", "http/1.1")) -> ssl.SSLContext:
        """The context of a server that speaks `protocols`. Raises ConfigError."""
        if self.cert is None or self.key is None:
            raise ConfigError("a TLS server needs ssl-cert and ssl-key")
        if self.allowed_cn and self.ca is None:
            raise ConfigError("cert-allowed-cn needs ssl-ca: without it no client certificate is checked")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(list(protocols))
        load_tls_files(context, self.ca, self.cert, self.key)
        if self.ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def build_client_context(self) -> ssl.SSLContext:
        """The context of a client for HTTP/2. Raises ConfigError."""
        return self._build_client_context("h2")

    def build_http_context(self) -> ssl.SSLContext:
        """The context of a client for HTTP/1.1. Raises ConfigError."""
        return self._build_client_context("http/1.1")

    def _build_client_context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.set_alpn_protocols([protocol])
        if self.ca is None:
            context.load_default_certs()
        load_tls_files(context, self.ca, self.cert, self.key)
        return context

    def allows(self, certificate: Mapping[str, object] | None) -> bool:
        """Whether a peer with this certificate (from `getpeercert`) may call."""
        return not self.allowed_cn or any(name in self.allowed_cn for name in _list_common_names(certificate or {}))


def _list_common_names(certificate: Mapping[str, object]) -> list[str]:
    subject = certificate.get("subject", ())
    assert isinstance(subject, tuple)
    return [value for part in subject for name, value in part if name == "commonName"]
