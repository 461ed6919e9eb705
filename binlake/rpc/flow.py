"""The sending half of an HTTP/2 connection: queued data is sent as the windows and the peer's reading allow.

A stream whose DATA waits for the connection (its window or the socket) is in `_blocked`. When the connection has room,
these streams are served in order, a slice each, so that none starves. A stream that waits for its own window is in
`_shut`, and only that window matters: a WINDOW_UPDATE of the connection need not check these streams.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from binlake.common.spool import MessagePiece
from binlake.rpc import frames
from binlake.rpc.frames import Code, ConnectionFault, Setting, StreamFault

_SLICE_BYTES = 256 << 10  # of one stream, before the next stream has its turn
_MAX_PEER_FRAME = 1 << 20  # most bytes of one DATA frame, even if the peer accepts more


class Stream:
    """One stream: its windows, what it still has to send, and which halves are closed."""

    __slots__ = ("finish", "id", "local_closed", "offset", "queue", "queued", "recv_window", "remote_closed", "window")

    def __init__(self, stream_id: int, window: int, recv_window: int) -> None:
        self.id = stream_id
        self.window = window
        self.recv_window = recv_window
        self.queue: deque[MessagePiece] | None = None
        self.offset = 0
        self.queued = 0
        self.finish: bytes | None = None
        self.local_closed = False
        self.remote_closed = False

    def note_sent(self, size: int) -> None:
        """Called when `size` queued bytes were sent."""


class StreamSender:
    """See the module's docstring; `streams`: every stream that is not closed on both sides."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.send_window = frames.DEFAULT_WINDOW
        self.peer_window = frames.DEFAULT_WINDOW
        self.peer_frame = frames.DEFAULT_FRAME_BYTES
        self.peer_streams = frames.U31
        self._blocked: OrderedDict[int, Stream] = OrderedDict()
        self._shut: dict[int, Stream] = {}

    def _write(self, data: bytes) -> None:
        raise NotImplementedError

    def _measure_room(self) -> int:
        """How many bytes of DATA may be written now."""
        raise NotImplementedError

    def send(self, stream: Stream, data: MessagePiece, finish: bytes | None = None) -> None:
        """Send `data` on `stream` as soon as the windows allow it.

        `finish`: this is the last data; b"" closes our half with it, other bytes are the closing frame (trailers).
        """
        if data:
            if stream.queue is None:
                stream.queue = deque()
            stream.queue.append(data)
            stream.queued += len(data)
        if finish is not None:
            stream.finish = finish
        if not self.waits(stream):
            self._advance(stream)

    def waits(self, stream: Stream) -> bool:
        """Whether data to send waits for the peer."""
        return stream.id in self._blocked or stream.id in self._shut

    def drop(self, stream: Stream) -> None:
        """Forget `stream` and its queued data."""
        self.streams.pop(stream.id, None)
        self._release(stream.id)
        stream.queue, stream.queued = None, 0
        stream.local_closed = stream.remote_closed = True

    def resume(self) -> None:
        """Send from the blocked streams as far as allowed."""
        # Each iteration sends something, or removes a stream from the dictionary.
        while self._blocked and self.send_window > 0 and self._measure_room() > 0:
            self._advance(self._blocked.popitem(last=False)[1])

    def _release(self, stream_id: int) -> None:
        self._blocked.pop(stream_id, None)
        self._shut.pop(stream_id, None)

    def widen(self, stream_id: int, increment: int) -> None:
        """WINDOW_UPDATE. Raises ConnectionFault, StreamFault."""
        if not stream_id:
            if not increment:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
            self.send_window += increment
            if self.send_window > frames.U31:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "the connection's window is too large")
            self.resume()
            return
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        if not increment:
            raise StreamFault(stream_id, Code.PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        stream.window += increment
        if stream.window > frames.U31:
            raise StreamFault(stream_id, Code.FLOW_CONTROL_ERROR, "the stream's window is too large")
        if self._shut.pop(stream_id, None) is not None:
            self._advance(stream)

    def take_settings(self, settings: list[tuple[int, int]]) -> None:
        """Apply the peer's settings at once. Raises ConnectionFault."""
        window = self.peer_window
        for name, value in settings:
            if name == Setting.INITIAL_WINDOW_SIZE:
                if value > frames.U31:
                    raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of range")
                window = value
            elif name == Setting.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
                self.peer_frame = min(value, _MAX_PEER_FRAME)
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "ENABLE_PUSH out of range")
            elif name == Setting.MAX_CONCURRENT_STREAMS:
                self.peer_streams = value
        if window != self.peer_window:
            # Only the last value in a frame counts: a change goes through all streams, and a frame may hold thousands.
            self._change_window(window)

    def _change_window(self, value: int) -> None:
        # Windows of open streams change by the difference, even below 0 (RFC 9113 6.9.2); grpc's C core does that.
        change, self.peer_window = value - self.peer_window, value
        for stream in self.streams.values():
            stream.window += change
            if stream.window > frames.U31:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a stream's window is too large")
        if change > 0:
            open_again = [stream for stream in self._shut.values() if stream.window > 0]
            for stream in open_again:
                del self._shut[stream.id]
                self._advance(stream)

    def _advance(self, stream: Stream) -> None:
        while stream.queued:
            allowed = min(self.send_window, stream.window, self._measure_room(), _SLICE_BYTES)
            if allowed <= 0:
                waiting = self._shut if stream.window <= 0 else self._blocked
                waiting[stream.id] = stream
                return
            self._send_slice(stream, allowed)
        if stream.finish is not None and not stream.local_closed:
            self._write(stream.finish or frames.encode_frame(frames.DATA, frames.END_STREAM, stream.id))
            self._close_local(stream)

    def _send_slice(self, stream: Stream, allowed: int) -> None:
        out: list[bytes] = []
        data = self._take(stream, allowed)
        size = len(data)
        last = not stream.queued and stream.finish == b""
        if size <= self.peer_frame:
            out = [frames.encode_head(size, frames.DATA, frames.END_STREAM if last else 0, stream.id), data]
        else:
            for at in range(0, size, self.peer_frame):
                part = data[at : at + self.peer_frame]
                end = last and at + len(part) == size
                out += (frames.encode_head(len(part), frames.DATA, frames.END_STREAM if end else 0, stream.id), part)
        self.send_window -= size
        stream.window -= size
        self._write(b"".join(out))
        stream.note_sent(size)
        if last:
            self._close_local(stream)

    @staticmethod
    def _take(stream: Stream, allowed: int) -> bytes:
        queue = stream.queue
        assert queue
        head = queue[0]
        if stream.offset == 0 and len(head) <= allowed:
            queue.popleft()
            data = head if isinstance(head, bytes) else head[:]
        else:
            data = head[stream.offset : stream.offset + allowed]
            stream.offset += len(data)
            if stream.offset == len(head):
                queue.popleft()
                stream.offset = 0
        stream.queued -= len(data)
        return data

    def _close_local(self, stream: Stream) -> None:
        stream.local_closed = True
        if stream.remote_closed:
            self.streams.pop(stream.id, None)
            self._release(stream.id)
