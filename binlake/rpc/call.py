"""One call on the server: its request, and the methods that answer it. All methods run on the server's loop.

A request is refused as soon as it is known to be too large, and copied as seldom as possible.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from binlake.rpc import frames, headers, messages
from binlake.rpc.flow import Stream
from binlake.rpc.frames import Code, StreamFault
from binlake.rpc.limits import LARGE, Assembly, Limits, Share
from binlake.rpc.messages import RpcError, Status
from binlake.rpc.request import Request

Handler = Callable[["Call", bytes], None]
"""Gets a call and its single request message on the loop; must not block, and answers now or later.

It must answer each call exactly once, even if the caller has left, so that the server knows when it needs no more
resources."""

_OPENING = b"\x88" + headers.encode([(b"content-type", b"application/grpc")])
_OPENING_GZIP = _OPENING + headers.encode([(b"grpc-encoding", b"gzip")])
_GOOD_END = headers.encode([(b"grpc-status", b"0")])
_EMPTY_MESSAGE = messages.encode_message(b"")
_OPENING_HEAD = frames.encode_head(len(_OPENING), frames.HEADERS, frames.END_HEADERS, 0)[:5]
_END_HEAD = frames.encode_head(len(_GOOD_END), frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, 0)[:5]
_EMPTY_HEAD = frames.encode_head(len(_EMPTY_MESSAGE), frames.DATA, 0, 0)[:5]
# Local names, since each call needs them.
_PREFIX_BYTES, _unpack_prefix = messages.PREFIX_BYTES, messages.PREFIX.unpack_from
_MANY_PARTS = 512
_SMALL_PART = 4096  # bytes: smaller parts are joined, as their objects exceed their content


class Carrier(Protocol):
    """The interface of a connection for its calls (see ServerConnection). `address`: the client's host."""

    address: str
    limits: Limits
    peer_window: int

    def claim_window(self, call: Call, size: int) -> bool:
        """Whether a whole answer with `size` bytes of DATA may be sent at once; if so, the stream is closed."""

    def write(self, data: bytes) -> None:
        """Queue bytes for the next write."""

    def send(self, stream: Stream, data: bytes, end: bytes = b"") -> None:
        """Send `data` as the windows allow, then the frame `end`."""

    def reset(self, stream_id: int, code: Code) -> None:
        """Reset the stream."""

    def drop_unfinished(self, call: Call) -> None:
        """End an unfinished request, whose memory others need."""

    def note_call_finished(self, call: Call) -> None:
        """Note that no work for this call is running any more."""


class Call(Stream):
    """`begun`, `deadline`: on the loop's clock; `deadline` is inf if there is none. `heard_at`: when the last bytes of
    an unfinished request came; `share`: where its bytes are counted. `on_end`: called once when the call has ended, for
    any reason. `on_sent`: called with the number of sent bytes, for senders that pace themselves."""

    __slots__ = (
        "_left_bytes",
        "_stuck",
        "answered",
        "begun",
        "connection",
        "deadline",
        "declared",
        "dispatched",
        "heard_at",
        "large",
        "on_end",
        "on_sent",
        "parts",
        "received",
        "request",
        "settled",
        "share",
        "started",
    )

    def __init__(self, connection: Carrier, stream_id: int, request: Request, begun: float, deadline: float) -> None:
        super().__init__(stream_id, connection.peer_window, connection.limits.stream_window)
        self.connection = connection
        self.request = request
        self.begun = self.heard_at = begun
        self.deadline = deadline
        self.share: Share | None = None
        self._left_bytes = 0
        self._stuck = (-1, begun)
        self.parts: list[bytes] | None = None
        self.large: bytearray | None = None
        self.received = 0
        self.declared = 0
        self.dispatched = False
        self.settled = False
        self.started = False
        self.answered = False
        self.on_end: Callable[[], None] | None = None
        self.on_sent: Callable[[int], None] | None = None

    @property
    def ended(self) -> bool:
        """Whether no answer is possible any more: answered, cancelled by the caller, or too late."""
        return self.answered

    def reply(self, message: bytes) -> None:
        """Answer a unary call."""
        if self.answered:
            self._settle()
            return
        if not message and self.connection.claim_window(self, len(_EMPTY_MESSAGE)):
            stream_id = self.id.to_bytes(4, "big")
            self.connection.write(
                b"".join(
                    (
                        _OPENING_HEAD,
                        stream_id,
                        _OPENING,
                        _EMPTY_HEAD,
                        stream_id,
                        _EMPTY_MESSAGE,
                        _END_HEAD,
                        stream_id,
                        _GOOD_END,
                    )
                )
            )
            self._finish()
            return
        self.send(self.encode_message(message))
        self.finish_ok()

    def encode_message(self, message: bytes) -> bytes:
        """`message` in the form for send(), compressed if the caller compresses; from any thread."""
        return messages.encode_message(message, gzip=self.request.gzip)

    def send(self, data: bytes) -> None:
        """Send any number of complete framed messages."""
        if self.answered:
            return
        if not self.started:
            self.started = True
            opening = _OPENING_GZIP if self.request.gzip else _OPENING
            self.connection.write(frames.encode_headers(self.id, opening, end_stream=False))
        self.connection.send(self, data)

    def finish_ok(self) -> None:
        """End with status OK."""
        if self.answered:
            self._settle()
            return
        if not self.started:
            self.send(b"")
        self.connection.send(self, b"", _END_HEAD + self.id.to_bytes(4, "big") + _GOOD_END)
        self._finish()

    def fail(self, status: Status, text: str) -> None:
        """End with `status`; messages sent before are still delivered."""
        if self.answered:
            self._settle()
            return
        self._fail(status, text)
        self._settle()

    def expire(self) -> None:
        """Notify the caller that the deadline has passed; work that was started still runs."""
        if self.queued:
            # Otherwise output that waits for the caller's window would be held as long as the connection exists.
            self.connection.reset(self.id, Code.CANCEL)
        elif not self.answered:
            self._fail(Status.DEADLINE_EXCEEDED, "context deadline exceeded")
            if not self.dispatched:
                self._settle()

    def _fail(self, status: Status, text: str) -> None:
        block = headers.encode([(b"grpc-status", b"%d" % status), (b"grpc-message", messages.quote_text(text))])
        if not self.started:
            self.started, block = True, _OPENING + block
        self.connection.send(self, b"", frames.encode_headers(self.id, block, end_stream=True))
        self._notify()

    def note_sent(self, size: int) -> None:
        """Notify a sender that paces itself of sent bytes."""
        self._left_bytes += size
        if self.on_sent is not None:
            self.on_sent(size)

    def stuck_s(self, now: float) -> float:
        """Seconds for which nothing of a waiting stream has been sent, as seen by calls of this method."""
        if self._stuck[0] != self._left_bytes:
            self._stuck = (self._left_bytes, now)
        return now - self._stuck[1]

    def abandon(self) -> None:
        """Note that the caller has left: no answer is sent."""
        if not self.answered:
            self._notify()
            if not self.dispatched:
                self._settle()

    def release_memory(self) -> None:
        """Free the memory of the unfinished request, for which others wait."""
        self.connection.drop_unfinished(self)

    def _finish(self) -> None:
        self._notify()
        self._settle()

    def _notify(self) -> None:
        self.answered = True
        notify, self.on_end = self.on_end, None
        if notify is not None:
            notify()

    def _settle(self) -> None:
        if not self.settled:
            self.settled = True
            self.connection.note_call_finished(self)


def add_piece(call: Call, payload: bytes) -> None:
    """Append a piece, which `call.received` already includes."""
    if call.large is not None:
        call.large += payload
    elif call.parts is None:
        call.parts = [payload]
    else:
        call.parts.append(payload)


def check_incomplete(call: Call, limits: Limits, assembly: Assembly) -> None:
    """Check an incomplete request. Raises RpcError for the answer, StreamFault for plain HTTP."""
    parts = call.parts or []
    if len(parts) >= _MANY_PARTS and call.received < len(parts) * _SMALL_PART:
        parts[:] = [b"".join(parts)]
    if not call.request.grpc:
        if call.received > limits.http_body_bytes:
            raise StreamFault(call.id, Code.ENHANCE_YOUR_CALM, "the body is too large")
        call.share = assembly.small
        if not call.share.grow(call, call.received):
            raise StreamFault(call.id, Code.REFUSED_STREAM, "too many unfinished requests")
        return
    if not call.declared:
        if call.received < messages.PREFIX_BYTES:
            return
        parts[:] = [b"".join(parts)]
        _declare(call, parts, limits, assembly)
    if call.received > call.declared:
        raise RpcError(Status.INTERNAL, "more than one message in a unary request")
    assert call.share is not None
    if not call.share.grow(call, call.received):
        kind = "large messages" if call.share is assembly.large else "unfinished requests"
        raise RpcError(Status.UNAVAILABLE, f"the server receives too many {kind}")


def _declare(call: Call, parts: list[bytes], limits: Limits, assembly: Assembly) -> None:
    length = messages.PREFIX.unpack_from(parts[0])[1]
    if length > limits.message_bytes:
        raise messages.build_too_large_error(length, limits.message_bytes)
    call.declared = length + messages.PREFIX_BYTES
    call.share = assembly.large if length > LARGE else assembly.small
    if length > LARGE:
        # Grows in place: many small pieces would fragment the heap.
        call.large, call.parts = bytearray(parts[0]), None


def take_body(call: Call) -> list[bytes]:
    """Remove the pieces of a complete request from the call; a large message is a view of where it was received."""
    parts, call.parts = call.parts or [], None
    if call.large is None:
        return parts
    large, call.large = call.large, None
    view = memoryview(large).toreadonly()
    # Only handlers that take views are given it; for all others it becomes bytes.
    return [bytes(view[: messages.PREFIX_BYTES]), cast("bytes", view[messages.PREFIX_BYTES :])]


def read_message(call: Call, parts: list[bytes], max_bytes: int) -> tuple[int, bytes]:
    """The single message in the pieces of a gRPC request, after its flag; a large one as a view. Raises RpcError."""
    received = call.received
    if received < _PREFIX_BYTES:
        raise RpcError(Status.INTERNAL, "a unary request needs one message")
    if len(parts[0]) < _PREFIX_BYTES:
        parts = [b"".join(parts)]
    flag, length = _unpack_prefix(parts[0])
    if length > max_bytes:
        raise messages.build_too_large_error(length, max_bytes)
    if length + _PREFIX_BYTES != received:
        raise RpcError(Status.INTERNAL, "a unary request needs one whole message")
    if len(parts) == 1:
        return flag, parts[0][_PREFIX_BYTES:]
    parts[0] = parts[0][_PREFIX_BYTES:]
    parts = [part for part in parts if part]
    return flag, parts[0] if len(parts) == 1 else b"".join(parts)


def reserve_unpacked(call: Call, packed: bytes, max_bytes: int, assembly: Assembly) -> int:
    """Reserve the memory of a compressed message before it is unpacked; returns the bytes. Raises RpcError."""
    size = messages.read_unpacked_size(packed, max_bytes)
    call.share = assembly.large if size > LARGE else assembly.small
    if not call.share.grow(call, size):
        raise RpcError(Status.UNAVAILABLE, "the server unpacks too many messages")
    return size
