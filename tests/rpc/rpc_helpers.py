"""Helpers of the RPC tests: a server with simple methods; support.rawpeer is a peer that sends raw frames."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from support.rawpeer import RawPeer, raw, request_block

from binlake.rpc import Call, HttpRequest, HttpResponse, Limits, RpcError, RpcServer, Status, StreamSink

__all__ = ["RawPeer", "raw", "request_block"]

ECHO, EMPTY, LATE, STREAM = "/t.T/Echo", "/t.T/Empty", "/t.T/Late", "/t.T/Stream"


class TestServer(RpcServer):
    """Echo, Empty (on the loop), Late (answered by `answer_late`), Upper and Refuse (in threads), Stream, HTTP."""

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
            self.run_on_loop(lambda call=call: call.reply(b"late"))

    def _stream(self, message: bytes, sink: StreamSink) -> None:
        """Answer the request `COUNT SIZE` with COUNT messages of SIZE bytes."""
        count, size = map(int, message.split())
        sink.on_gone = self._count
        one = sink.call.encode_message(b"s" * size)
        at_once = max(1, (64 << 10) // len(one))
        while count > 0:
            now = min(count, at_once)
            if not sink.send_framed(one * now):
                return
            count -= now


def _refuse(message: bytes) -> bytes:
    raise RpcError(Status(int(message)), "because: 100% ünwell")


def _stream_refuse(message: bytes, sink: StreamSink) -> None:
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
    """Wait for `condition`; fails with `what` after a timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.005)
