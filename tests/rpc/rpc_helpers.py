"""What the tests of the RPC layer share: a server with simple methods, and a peer that speaks raw frames."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator

from binlake.rpc import Call, HttpRequest, HttpResponse, Limits, RpcError, RpcServer, Sink, Status, frames, headers

ECHO, EMPTY, LATE, STREAM = "/t.T/Echo", "/t.T/Empty", "/t.T/Late", "/t.T/Stream"


class TestServer(RpcServer):
    """Echo, Empty (quick ways), Late (answered by `answer_late`), Upper and Refuse (in threads), Stream, plain HTTP."""

    __test__ = False

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(http=_page, limits=limits or Limits())
        self.waiting: list[Call] = []
        self.gone = 0
        self.add(ECHO, lambda call, message: call.reply(message))
        self.add(EMPTY, lambda call, _: call.reply(b""))
        self.add(LATE, self._late)
        self.add_blocking("/t.T/Upper", bytes.upper)
        self.add_blocking("/t.T/Refuse", _refuse)
        self.add("/t.T/BreakLoop", lambda call, message: call.reply(message[5:][0:0] + bytes([message[99]])))
        self.add_blocking("/t.T/Break", lambda message: message[5:][0:0] + bytes([message[99]]))
        self.add_streaming(STREAM, self._stream)
        self.add_streaming("/t.T/StreamRefuse", _stream_refuse)

    def _late(self, call: Call, message: bytes) -> None:
        del message
        call.on_end = self._count
        self.waiting.append(call)

    def _count(self) -> None:
        self.gone += 1

    def answer_late(self) -> None:
        """Answer every waiting call."""
        calls, self.waiting = self.waiting, []
        for call in calls:
            self.later(lambda call=call: call.reply(b"late"))

    def _stream(self, message: bytes, sink: Sink) -> None:
        """`COUNT SIZE`: so many messages of that size."""
        count, size = map(int, message.split())
        sink.on_gone = self._count
        one = sink.call.framed(b"s" * size)
        at_once = max(1, (64 << 10) // len(one))
        while count > 0:
            now = min(count, at_once)
            if not sink.send_framed(one * now):
                return
            count -= now


def _refuse(message: bytes) -> bytes:
    raise RpcError(Status(int(message)), "because: 100% ünwell")


def _stream_refuse(message: bytes, sink: Sink) -> None:
    sink.send(message)
    raise RpcError(Status.OUT_OF_RANGE, "no more")


def _page(asked: HttpRequest) -> HttpResponse:
    if asked.path == "/broken":
        raise ValueError("a page that breaks")
    text = f"{asked.method} {asked.path} {dict(asked.query)} {len(asked.body)}\n"
    return HttpResponse(200 if asked.path != "/missing" else 404, "text/plain", text.encode())


@contextlib.contextmanager
def serving(limits: Limits | None = None, *, address: str = "127.0.0.1:0") -> Iterator[tuple[TestServer, str]]:
    """A running server and its address."""
    server = TestServer(limits)
    address = server.listen(address)
    server.start()
    try:
        yield server, address
    finally:
        server.stop(0.2)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait for `condition`; fails with `what` when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)


def request_block(path: str = ECHO, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path.encode())]
    return headers.encode([*fields, (b"content-type", b"application/grpc"), (b"te", b"trailers"), *more])


class RawPeer:
    """A client that sends what it likes. `frames()` reads on."""

    def __init__(self, address: str, *, settings: bytes = b"") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), 60)
        self._data = b""
        self.send(frames.PREFACE + (settings or frames.settings([])))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def attack(self, data: bytes) -> None:
        """Send what the other side may cut off on the way."""
        try:
            self.socket.sendall(data)
        except TimeoutError:
            raise
        except OSError:
            pass  # it closed while we sent: what it said before is still there to be read

    def call(self, stream_id: int, message: bytes, path: str = ECHO) -> None:
        """A whole unary request."""
        body = len(message).to_bytes(5, "big") + message
        self.send(
            frames.headers(stream_id, request_block(path), end_stream=False)
            + frames.frame(frames.DATA, frames.END_STREAM, stream_id, body)
        )

    def begin(self, stream_id: int, declared: int, path: str = ECHO) -> None:
        """A request that says how long its message is and sends a byte of it."""
        body = declared.to_bytes(5, "big") + b"x"
        head = frames.headers(stream_id, request_block(path), end_stream=False)
        self.send(head + frames.frame(frames.DATA, 0, stream_id, body))

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
        """The next frame of that kind, on that stream."""
        while (found := self.next()) is not None:
            if found[0] == kind and stream_id in (None, found[2]):
                return found
        raise AssertionError(f"the connection ended before a frame of kind {kind}")

    def goaway_code(self) -> int:
        """The code of the GOAWAY that ends the connection."""
        payload = self.until(frames.GOAWAY)[3]
        assert self.next() is None, "it goes on after GOAWAY"
        return int.from_bytes(payload[4:8], "big")

    def reset_code(self, stream_id: int) -> int:
        """The code of the RST_STREAM of that stream."""
        return int.from_bytes(self.until(frames.RST_STREAM, stream_id)[3], "big")

    def ping(self) -> bool:
        """Whether the connection still lives."""
        self.send(frames.frame(frames.PING, 0, 0, b"12345678"))
        while (found := self.next()) is not None:
            if found[0] == frames.PING and found[1] & frames.ACK:
                return True
        return False

    def close(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def raw(address: str, *, settings: bytes = b"") -> Iterator[RawPeer]:
    """A raw peer that is closed."""
    peer = RawPeer(address, settings=settings)
    try:
        yield peer
    finally:
        peer.close()
