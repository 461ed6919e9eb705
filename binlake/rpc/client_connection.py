"""The client side of one HTTP/2 connection: turns calls into requests, and answers into messages and a status."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

from binlake.common.spool import MessagePiece
from binlake.rpc import frames, headers, messages
from binlake.rpc.connection import Connection
from binlake.rpc.flow import Stream
from binlake.rpc.frames import Code, ConnectionFault, Setting
from binlake.rpc.headers import Field
from binlake.rpc.limits import Limits
from binlake.rpc.messages import RpcError, Splitter, Status

_BY_RESET = {
    Code.REFUSED_STREAM: Status.UNAVAILABLE,
    Code.CANCEL: Status.CANCELLED,
    Code.ENHANCE_YOUR_CALM: Status.UNAVAILABLE,
    Code.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}
_BY_HTTP = {
    b"400": Status.INTERNAL,
    b"401": Status.UNAUTHENTICATED,
    b"403": Status.PERMISSION_DENIED,
    b"404": Status.UNIMPLEMENTED,
    b"429": Status.UNAVAILABLE,
    b"502": Status.UNAVAILABLE,
    b"503": Status.UNAVAILABLE,
    b"504": Status.UNAVAILABLE,
}


class Exchange(Stream):
    """One pending call.

    `done`: `error` (None = OK) and `parts` are final. `untouched`: the server has certainly not started it, so it may
    be sent again. `waiter`: set by the reading thread when the call may be ready.
    """

    __slots__ = ("done", "error", "holding", "opened", "parts", "splitter", "untouched", "waiter")

    def __init__(self, connection: ClientConnection, stream_id: int, *, holding: bool) -> None:
        super().__init__(stream_id, connection.peer_window, connection.limits.stream_window)
        self.parts: list[bytes] = []
        self.splitter = Splitter(connection.limits.message_bytes)
        self.holding = holding  # a stream: the server may send more only after the messages were taken
        self.opened = False
        self.done = False
        self.untouched = False
        self.error: RpcError | None = None
        self.waiter: threading.Event | None = None

    @property
    def ready(self) -> bool:
        """Whether its caller can continue."""
        return self.done or (self.holding and bool(self.parts))

    def settle(self, error: RpcError | None) -> None:
        """End the call."""
        if not self.done:
            self.done, self.error = True, error
            self.wake_waiter()

    def wake_waiter(self) -> None:
        """Signal that something has arrived."""
        if self.waiter is not None:
            self.waiter.set()


class ClientConnection(Connection):
    """Not thread-safe: the channel serialises calls. `out` collects the bytes to write."""

    def __init__(self, limits: Limits, address: str) -> None:
        super().__init__(limits)
        self.address = address
        self.out: list[bytes] = [frames.PREFACE]
        self.gone = False  # no new calls: the server said so, or the connection is lost
        self._next_id = 1
        self.open([(Setting.ENABLE_PUSH, 0)])

    def begin(
        self,
        head: bytes,
        body: MessagePiece,
        timeout_s: float | None,
        *,
        holding: bool,
        rest: Sequence[MessagePiece] = (),
    ) -> Exchange:
        """Send a request: header block without the timeout, and framed message, which continues with `rest`.

        Raises RpcError if there is no room.
        """
        if len(self.streams) >= self.peer_streams:
            raise RpcError(
                Status.UNAVAILABLE, "the server accepts no more concurrent calls", where={"addr": self.address}
            )
        exchange = Exchange(self, self._next_id, holding=holding)
        self._next_id += 2
        if self._next_id > frames.U31 - 2:
            self.gone = True
        if timeout_s is not None:
            head += headers.encode([(b"grpc-timeout", messages.format_timeout(timeout_s))])
        self.streams[exchange.id] = exchange
        self._write(frames.encode_headers(exchange.id, head, end_stream=False))
        *earlier, last = (body, *rest)
        for piece in earlier:
            self.send(exchange, piece)
        self.send(exchange, last, b"")
        return exchange

    def cancel(self, exchange: Exchange, error: RpcError) -> None:
        """Cancel a call."""
        if exchange.id in self.streams:
            self.reset(exchange.id, Code.CANCEL)
        exchange.settle(error)

    def grant_more(self, exchange: Exchange) -> None:
        """Let the server continue, since the messages of `exchange` have been read."""
        if exchange.id in self.streams and not exchange.remote_closed:
            self.grant(exchange)

    def fail_all(self, error: RpcError) -> None:
        """Fail all calls, since the connection has ended."""
        self.closed = self.gone = True
        for stream in list(self.streams.values()):
            self.drop(stream)
            cast(Exchange, stream).settle(error)

    def _write(self, data: bytes) -> None:
        self.out.append(data)

    def _measure_room(self) -> int:
        return frames.U31

    def _handle_headers(self, stream_id: int, block: bytes, end: bool) -> None:
        fields = self.parse_cached(block, lambda decoded: decoded or [])
        stream = self.streams.get(stream_id)
        if stream is None:
            if self._is_idle(stream_id):
                raise ConnectionFault(Code.PROTOCOL_ERROR, "HEADERS on an idle stream")
            return
        exchange = cast(Exchange, stream)
        if not end and fields and fields[0][0] == b":status" and fields[0][1][:1] == b"1":
            return
        if not exchange.opened:
            self._begin_answer(exchange, dict(fields), end)
        elif end:
            self._end_exchange(exchange, _parse_status(dict(fields), self.address))
        else:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "HEADERS in the middle of an answer")

    def _begin_answer(self, exchange: Exchange, fields: dict[bytes, bytes], end: bool) -> None:
        exchange.opened = True
        http_status = fields.get(b":status", b"")
        if end and b"grpc-status" in fields:
            self._end_exchange(exchange, _parse_status(fields, self.address))
        elif http_status != b"200" or not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            status = _BY_HTTP.get(http_status, Status.UNKNOWN)
            text = f"not a gRPC server: HTTP status {http_status.decode('latin-1') or 'missing'}"
            self.cancel(exchange, RpcError(status, text, where={"addr": self.address}))
        elif end:
            self._end_exchange(exchange, _parse_status(fields, self.address))
        else:
            exchange.splitter.gzip = fields.get(b"grpc-encoding") == b"gzip"

    def _end_exchange(self, exchange: Exchange, error: RpcError | None) -> None:
        exchange.remote_closed = True
        self.drop(exchange)
        exchange.settle(error)

    def _handle_data(self, stream: Stream, payload: bytes, end: bool) -> None:
        exchange = cast(Exchange, stream)
        if payload:
            exchange.parts.append(payload)
            if exchange.holding:
                exchange.wake_waiter()
            elif not end:
                self.grant(exchange)
        if end:
            error = RpcError(Status.INTERNAL, "the answer ended without a status", where={"addr": self.address})
            self._end_exchange(exchange, error)

    def _on_stream_ended(self, stream: Stream, code: int, *, by_peer: bool) -> None:
        exchange = cast(Exchange, stream)
        if not by_peer:
            return
        exchange.untouched = code == Code.REFUSED_STREAM
        status = _BY_RESET.get(cast(Code, code), Status.INTERNAL)
        exchange.settle(
            RpcError(status, f"the server reset the call ({_describe_code(code)})", where={"addr": self.address})
        )

    def _on_peer_leaves(self, last_id: int, code: int, text: str) -> None:
        self.gone = True
        for stream in [stream for stream in self.streams.values() if stream.id > last_id]:
            exchange = cast(Exchange, stream)
            self.drop(stream)
            exchange.untouched = True
            reason = f"the server is going away ({_describe_code(code)}) {text}".rstrip()
            exchange.settle(RpcError(Status.UNAVAILABLE, reason, where={"addr": self.address}))

    def _get_last_peer_id(self) -> int:
        return 0

    def _is_idle(self, stream_id: int) -> bool:
        return stream_id >= self._next_id or not stream_id & 1


def encode_request_head(path: str, authority: str, scheme: str, *, gzip: bool) -> bytes:
    """The header block for all calls of a method, without the fields that differ between calls."""
    fields: list[Field] = [
        (b":path", path.encode()),
        (b":authority", authority.encode()),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        (b"user-agent", b"binlake"),
        (b"grpc-accept-encoding", b"identity,gzip"),
    ]
    if gzip:
        fields.append((b"grpc-encoding", b"gzip"))
    return (b"\x83\x87" if scheme == "https" else b"\x83\x86") + headers.encode(fields)


def read_unary_message(exchange: Exchange) -> bytes:
    """The single message of a successful unary answer. Raises RpcError."""
    received = exchange.splitter.feed(exchange.parts)
    if len(received) != 1 or not exchange.splitter.clean:
        raise RpcError(Status.INTERNAL, f"a unary answer with {len(received)} messages")
    return received[0]


def _parse_status(fields: dict[bytes, bytes], address: str) -> RpcError | None:
    value = fields.get(b"grpc-status", b"")
    if value == b"0":
        return None
    known = value.isdigit() and len(value) <= 2 and int(value) in Status.__members__.values()
    status = Status(int(value)) if known else Status.UNKNOWN
    text = messages.unquote_text(fields.get(b"grpc-message", b"")) if value else "the answer has no grpc-status"
    return RpcError(status, text, where={"addr": address})


def _describe_code(code: int) -> str:
    return Code(code).name if code in Code.__members__.values() else str(code)
