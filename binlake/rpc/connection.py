"""One HTTP/2 connection (RFC 9113) without a socket: bytes in by `feed`, out by `_write`; server and client share it.

It handles frame order, SETTINGS, PING, the dictionary of streams and the receiving half of flow control. The sending
half is in flow.py; subclasses handle requests and answers. Not thread-safe: its owner serialises the calls.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from binlake.rpc import frames
from binlake.rpc.flow import Stream, StreamSender
from binlake.rpc.frames import Code, ConnectionFault, Setting, StreamFault
from binlake.rpc.headers import Field, HeaderDecoder
from binlake.rpc.limits import EventPace, Limits

_MAX_ENDED_STREAMS = 1000  # number of streams ended by us on which late frames are allowed
_CACHED_BYTES = 64 << 10  # cached header blocks and parsed forms; a block above a sixteenth is not cached
_CACHED_OVERHEAD = 1 << 10  # bytes of the Python objects
_OWN_DEPENDENCY = "a stream cannot depend on itself"
T = TypeVar("T")


class Connection(StreamSender):
    """See the module.

    Subclasses implement `_handle_headers`, `_handle_data`, `_on_stream_ended`, `_on_peer_leaves`, and Sender's `_write`
    and `_measure_room`.
    """

    def __init__(self, limits: Limits) -> None:
        super().__init__()
        self.limits = limits
        self.closed = False
        self._rest = b""
        self._recv_window = frames.DEFAULT_WINDOW
        self._decoder = HeaderDecoder(limits.header_bytes)
        self._cache: dict[bytes, object] = {}
        self._cache_changes = self._cache_bytes = 0
        self._block: list[bytes] | None = None
        self._block_head = (0, 0, False)
        self._block_bytes = 0
        self._ended_streams: OrderedDict[int, None] = OrderedDict()
        self._control = EventPace(limits.control_frames_per_s)
        self._heard_settings = False
        self._handlers: tuple[Callable[[int, int, bytes], None], ...] = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    def open(self, settings: list[tuple[Setting, int]]) -> None:
        """Write our SETTINGS and widen the connection's window."""
        limits = self.limits
        values = [
            *settings,
            (Setting.INITIAL_WINDOW_SIZE, limits.stream_window),
            (Setting.MAX_FRAME_SIZE, max(limits.frame_bytes, frames.DEFAULT_FRAME_BYTES)),
            (Setting.MAX_HEADER_LIST_SIZE, limits.header_bytes),
        ]
        self._write(frames.encode_settings(values))
        self._refill()

    def feed(self, data: bytes) -> None:
        """Process bytes of the peer. Raises ConnectionFault, after which the caller must call `fault` and close."""
        if self._rest:
            data = self._rest + data
        at, size = 0, len(data)
        unpack_from, handlers, limit = frames.HEADER.unpack_from, self._handlers, self.limits.frame_bytes
        while size - at >= 9 and not self.closed:
            high, low, kind, flags, stream_id = unpack_from(data, at)
            length = high << 16 | low
            if length > limit:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"frame of {length} bytes, at most {limit} are accepted")
            start, end = at + 9, at + 9 + length
            if end > size:
                break
            at = end
            if kind > 9 or (self._block is not None and kind != 9) or not self._heard_settings:
                self._check_order(kind)
                if kind > 9:
                    continue
            try:
                handlers[kind](flags, stream_id & frames.U31, data[start:end])
            except StreamFault as fault:
                self.reset(fault.stream_id, fault.code)
        self._rest = data[at:]

    def report_fault(self, fault: ConnectionFault) -> None:
        """Tell the peer why the connection ends."""
        self.closed = True
        self._write(frames.encode_goaway(self._get_last_peer_id(), fault.code, str(fault)))

    def reset(self, stream_id: int, code: Code) -> None:
        """Reset a stream from our side."""
        self._write(frames.encode_rst_stream(stream_id, code))
        self._ended_streams[stream_id] = None
        if len(self._ended_streams) > _MAX_ENDED_STREAMS:
            self._ended_streams.popitem(last=False)
        stream = self.streams.get(stream_id)
        if stream is not None:
            self.drop(stream)
            self._on_stream_ended(stream, code, by_peer=False)

    def parse_cached(self, block: bytes, build: Callable[[list[Field] | None], T]) -> T:
        """`build(fields of block)`; an equal block gives the same object while the table is unchanged."""
        cache, decoder = self._cache, self._decoder
        if self._cache_changes != decoder.changes:
            self._forget_blocks()
        parsed = cache.get(block)
        if parsed is None:
            parsed = build(decoder.decode(block))
            size = len(block) + 2 * decoder.list_bytes
            if self._cache_changes == decoder.changes and size <= _CACHED_BYTES >> 4:
                self._cache_bytes += size + _CACHED_OVERHEAD
                if self._cache_bytes > _CACHED_BYTES:
                    self._forget_blocks()
                cache[block] = parsed
        return parsed  # type: ignore[return-value]  # what `build` made of this very block

    def _forget_blocks(self) -> None:
        self._cache.clear()
        self._cache_changes, self._cache_bytes = self._decoder.changes, 0

    # implemented by subclasses

    def _handle_headers(self, stream_id: int, block: bytes, end: bool) -> None:
        raise NotImplementedError

    def _handle_data(self, stream: Stream, payload: bytes, end: bool) -> None:
        raise NotImplementedError

    def _on_stream_ended(self, stream: Stream, code: int, *, by_peer: bool) -> None:
        """Called when a reset has ended `stream`; it is no longer in the dictionary."""
        raise NotImplementedError

    def _on_peer_leaves(self, last_id: int, code: int, text: str) -> None:
        raise NotImplementedError

    def _get_last_peer_id(self) -> int:
        """The highest stream id that the peer has opened."""
        raise NotImplementedError

    def _is_idle(self, stream_id: int) -> bool:
        """Whether this stream was never opened."""
        raise NotImplementedError

    def _on_ping_answered(self, payload: bytes) -> None:
        """Called when our PING was answered."""

    # frames

    def _check_order(self, kind: int) -> None:
        if not self._heard_settings and kind != frames.SETTINGS:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame must be SETTINGS")
        if self._block is not None and kind != frames.CONTINUATION:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a header block must not be interrupted")
        if kind > frames.CONTINUATION:
            self._count_control()

    def _count_control(self, weight: int = 1) -> None:
        if self._control.count_event(weight) and self._control.is_exceeded(time.monotonic()):
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too many control frames")

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        length = len(payload)
        self._recv_window -= length
        if self._recv_window < self.limits.connection_window >> 1:
            if self._recv_window < 0:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more DATA than the connection's window")
            self._refill()
        if flags & frames.PADDED:
            payload = frames.unpad(payload)
        stream = self.streams.get(stream_id)
        if stream is None or stream.remote_closed:
            self._handle_data_without_stream(stream_id)
            return
        stream.recv_window -= length
        if stream.recv_window < 0:
            raise StreamFault(stream_id, Code.FLOW_CONTROL_ERROR, "more DATA than the stream's window")
        if not payload and not flags & frames.END_STREAM:
            self._count_control()
        self._handle_data(stream, payload, bool(flags & frames.END_STREAM))

    def _handle_data_without_stream(self, stream_id: int) -> None:
        if self._is_idle(stream_id):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "DATA on an idle stream")
        self._count_control()
        if stream_id not in self._ended_streams:
            raise StreamFault(stream_id, Code.STREAM_CLOSED, "DATA on a closed stream")

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "HEADERS on stream 0")
        if flags & frames.PADDED:
            payload = frames.unpad(payload)
        depends_on_itself = False
        if flags & frames.WITH_PRIORITY:
            if len(payload) < 5:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
            depends_on_itself = _depends_on(payload) == stream_id
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._on_complete_block(stream_id, flags, payload, depends_on_itself)
        else:
            self._block, self._block_head, self._block_bytes = (
                [payload],
                (stream_id, flags, depends_on_itself),
                len(payload),
            )

    def _on_complete_block(self, stream_id: int, flags: int, block: bytes, depends_on_itself: bool) -> None:
        if depends_on_itself:
            self._decoder.decode(block)  # decode in any case, so that the header table stays in step
            raise StreamFault(stream_id, Code.PROTOCOL_ERROR, _OWN_DEPENDENCY)
        self._handle_headers(stream_id, block, bool(flags & frames.END_STREAM))

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is None or stream_id != self._block_head[0]:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        self._count_control()
        self._block.append(payload)
        self._block_bytes += len(payload)
        # A compressed block is smaller than its content, so a longer one cannot be within the limit. The second check
        # stops thousands of empty frames (CONTINUATION flood).
        if self._block_bytes > self.limits.header_bytes + frames.DEFAULT_FRAME_BYTES or len(self._block) > 64:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "header block is too large")
        if flags & frames.END_HEADERS:
            block, self._block = b"".join(self._block), None
            self._on_complete_block(stream_id, self._block_head[1], block, self._block_head[2])

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        self._count_control()
        if not stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamFault(stream_id, Code.FRAME_SIZE_ERROR, "PRIORITY of a wrong size")
        if _depends_on(payload) == stream_id:
            raise StreamFault(stream_id, Code.PROTOCOL_ERROR, _OWN_DEPENDENCY)

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        if not stream_id or self._is_idle(stream_id):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "RST_STREAM on an idle stream")
        stream = self.streams.get(stream_id)
        if stream is None:
            self._count_control()
        else:
            self.drop(stream)
            self._on_stream_ended(stream, int.from_bytes(payload, "big"), by_peer=True)

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        if flags & frames.ACK:
            return
        if self._heard_settings:
            # A new window applies to all streams, and streams that waited for it may send again.
            self._count_control(1 + (len(self.streams) >> 3) + len(self._shut))
        self._heard_settings = True
        # Send the ACK first: grpc's C core checks everything before it against the old values.
        self._write(frames.encode_frame(frames.SETTINGS, frames.ACK, 0))
        self.take_settings(frames.read_settings(payload))

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags, stream_id, payload
        raise ConnectionFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE is not allowed")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "PING of a wrong size")
        if flags & frames.ACK:
            self._on_ping_answered(payload)
        else:
            self._count_control()
            self._write(frames.encode_frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        if stream_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        text = payload[8:1008].decode(errors="replace")
        self._on_peer_leaves(frames.decode_number(payload[:4]), int.from_bytes(payload[4:8], "big"), text)

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        del flags
        if len(payload) != 4:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        if stream_id and self._is_idle(stream_id):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE on an idle stream")
        self._count_control()
        self.widen(stream_id, frames.decode_number(payload))

    def _refill(self) -> None:
        missing = self.limits.connection_window - self._recv_window
        if missing > 0:
            self._recv_window += missing
            self._write(frames.encode_window_update(0, missing))

    def grant(self, stream: Stream) -> None:
        """Let the peer send as much on `stream` as its full window, once half of it is used."""
        missing = self.limits.stream_window - stream.recv_window
        if missing >= self.limits.stream_window >> 1:
            stream.recv_window += missing
            self._write(frames.encode_window_update(stream.id, missing))


def _depends_on(payload: bytes) -> int:
    return int.from_bytes(payload[:4], "big") & frames.U31
