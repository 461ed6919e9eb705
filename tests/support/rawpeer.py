"""A peer that sends raw HTTP/2 frames, valid or not."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from binlake.rpc import frames, headers


def request_block(path: str = "/t.T/Echo", *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    return headers.encode([*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more])


class RawPeer:
    """A client that sends arbitrary frames. `frames()` reads on."""

    def __init__(self, address: str, *, settings: bytes = b"", source: str = "") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 60, source_address=(source, 0) if source else None)
        self._data = b""
        self.send(frames.PREFACE + (settings or frames.encode_settings([])))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def attack(self, data: bytes) -> None:
        """Send data although the other side may close the connection meanwhile."""
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            pass  # The server closed the connection while we were sending; what it sent before can still be read.

    def call(self, stream_id: int, message: bytes, path: str = "/t.T/Echo") -> None:
        """Send a whole unary request."""
        body = len(message).to_bytes(5, "big") + message
        self.send(
            frames.encode_headers(stream_id, request_block(path), end_stream=False)
            + frames.encode_frame(frames.DATA, frames.END_STREAM, stream_id, body)
        )

    def begin(self, stream_id: int, declared: int, path: str = "/t.T/Echo") -> None:
        """Start a request: announce the message's length, and send one byte of it."""
        body = declared.to_bytes(5, "big") + b"x"
        head = frames.encode_headers(stream_id, request_block(path), end_stream=False)
        self.send(head + frames.encode_frame(frames.DATA, 0, stream_id, body))

    def next(self) -> tuple[int, int, int, bytes] | None:
        """(kind, flags, stream id, payload) of the next frame; None at the end of the connection."""
        while True:
            if len(self._data) >= 9:
                high, low, kind, flags, stream_id = frames.HEADER.unpack_from(self._data)
                end = 9 + (high << 16 | low)
                if len(self._data) >= end:
                    payload, self._data = self._data[9:end], self._data[end:]
                    return kind, flags, stream_id, payload
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._data += data

    def until(self, kind: int, stream_id: int | None = None) -> tuple[int, int, int, bytes]:
        """The next frame of that kind on that stream."""
        while (found := self.next()) is not None:
            if found[0] == kind and stream_id in (None, found[2]):
                return found
        raise AssertionError(f"the connection ended before a frame of kind {kind}")

    def goaway_code(self) -> int:
        """The error code of the GOAWAY that ends the connection."""
        payload = self.until(frames.GOAWAY)[3]
        assert self.next() is None, "the connection continues after GOAWAY"
        return int.from_bytes(payload[4:8], "big")

    def reset_code(self, stream_id: int) -> int:
        """The error code of the RST_STREAM of that stream."""
        return int.from_bytes(self.until(frames.RST_STREAM, stream_id)[3], "big")

    def ping(self) -> bool:
        """Whether the connection still answers a PING."""
        self.send(frames.encode_frame(frames.PING, 0, 0, b"12345678"))
        while (found := self.next()) is not None:
            if found[0] == frames.PING and found[1] & frames.ACK:
                return True
        return False

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def raw(address: str, *, settings: bytes = b"", source: str = "") -> Iterator[RawPeer]:
    """A raw peer that is closed at the end. `source`: the local address to connect from."""
    peer = RawPeer(address, settings=settings, source=source)
    try:
        yield peer
    finally:
        peer.close()
