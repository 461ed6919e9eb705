"""The sending half of an HTTP/2 connection: what a stream queued leaves as its windows and the peer's reading allow.

A stream whose DATA must wait stands in `_blocked`; every widening (WINDOW_UPDATE, SETTINGS, the socket drained)
goes round them in order, a slice each, so none starves.
"""

from __future__ import annotations

from collections import deque

from binlake.rpc import frames
from binlake.rpc.frames import Code, ConnectionFault, Setting, StreamFault

_SLICE_BYTES = 256 << 10  # of one stream, before another one has its turn
_MAX_PEER_FRAME = 1 << 20  # what we put into one DATA frame at most, whatever the peer takes


class Stream:
    """One stream: its windows, what it still has to send, and which halves are closed."""

    __slots__ = ("finish", "id", "local_closed", "offset", "queue", "queued", "recv_window", "remote_closed", "window")

    def __init__(self, stream_id: int, window: int, recv_window: int) -> None:
        self.id = stream_id
        self.window = window
        self.recv_window = recv_window
        self.queue: deque[bytes] | None = None
        self.offset = 0
        self.queued = 0
        self.finish: bytes | None = None
        self.local_closed = False
        self.remote_closed = False

    def sent(self, size: int) -> None:
        """`size` queued bytes left."""


class Sender:
    """See the module; `streams` holds every stream that is not closed on both sides."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.send_window = frames.DEFAULT_WINDOW
        self.peer_window = frames.DEFAULT_WINDOW
        self.peer_frame = frames.DEFAULT_FRAME_BYTES
        self.peer_streams = frames.U31
        self._blocked: dict[int, Stream] = {}

    def _write(self, data: bytes) -> None:
        raise NotImplementedError

    def _room(self) -> int:
        """How many bytes of DATA may be written now."""
        raise NotImplementedError

    def send(self, stream: Stream, data: bytes, finish: bytes | None = None) -> None:
        """Send `data` on `stream` as soon as allowed.

        `finish`: it is the last; b"" closes our half with it, other bytes are the frame that closes it (trailers).
        """
        if data:
            if stream.queue is None:
                stream.queue = deque()
            stream.queue.append(data)
            stream.queued += len(data)
        if finish is not None:
            stream.finish = finish
        if stream.id not in self._blocked:
            self._advance(stream)

    def drop(self, stream: Stream) -> None:
        """Forget `stream` and all it had to send."""
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        stream.queue, stream.queued = None, 0
        stream.local_closed = stream.remote_closed = True

    def resume(self) -> None:
        """Let the blocked streams go on as far as they may."""
        for stream in list(self._blocked.values()):
            if self.send_window <= 0 or self._room() <= 0:
                return
            if stream.window > 0:
                del self._blocked[stream.id]
                self._advance(stream)

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
        if self._blocked.pop(stream_id, None) is not None:
            self._advance(stream)

    def take_settings(self, settings: list[tuple[int, int]]) -> None:
        """What the peer allows, from the moment it says so. Raises ConnectionFault."""
        for name, value in settings:
            if name == Setting.INITIAL_WINDOW_SIZE:
                self._change_window(value)
            elif name == Setting.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                    raise ConnectionFault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
                self.peer_frame = min(value, _MAX_PEER_FRAME)
            elif name == Setting.ENABLE_PUSH and value > 1:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "ENABLE_PUSH out of range")
            elif name == Setting.MAX_CONCURRENT_STREAMS:
                self.peer_streams = value

    def _change_window(self, value: int) -> None:
        if value > frames.U31:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of range")
        # Open streams move by the difference, even below 0 (RFC 9113 6.9.2); grpc's C core does it in mid-connection.
        change, self.peer_window = value - self.peer_window, value
        for stream in self.streams.values():
            stream.window += change
            if stream.window > frames.U31:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a stream's window is too large")
        if change > 0:
            self.resume()

    def _advance(self, stream: Stream) -> None:
        while stream.queued:
            allowed = min(self.send_window, stream.window, self._room(), _SLICE_BYTES)
            if allowed <= 0:
                self._blocked[stream.id] = stream
                return
            self._send_slice(stream, allowed)
        if stream.finish is not None and not stream.local_closed:
            self._write(stream.finish or frames.frame(frames.DATA, frames.END_STREAM, stream.id))
            self._close_local(stream)

    def _send_slice(self, stream: Stream, allowed: int) -> None:
        out: list[bytes] = []
        data = self._take(stream, allowed)
        size = len(data)
        last = not stream.queued and stream.finish == b""
        if size <= self.peer_frame:
            out = [frames.head(size, frames.DATA, frames.END_STREAM if last else 0, stream.id), data]
        else:
            for at in range(0, size, self.peer_frame):
                part = data[at : at + self.peer_frame]
                end = last and at + len(part) == size
                out += (frames.head(len(part), frames.DATA, frames.END_STREAM if end else 0, stream.id), part)
        self.send_window -= size
        stream.window -= size
        self._write(b"".join(out))
        stream.sent(size)
        if last:
            self._close_local(stream)

    @staticmethod
    def _take(stream: Stream, allowed: int) -> bytes:
        queue = stream.queue
        assert queue
        head = queue[0]
        if stream.offset == 0 and len(head) <= allowed:
            queue.popleft()
            data = head
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
            self._blocked.pop(stream.id, None)
