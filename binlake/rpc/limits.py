"""Limits of the cost of one peer: the bounds of all buffers in this layer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of a server or a channel; sizes in bytes.

    message_bytes: one message in either direction (binlogs of hundreds of MiB occur; protobuf's limit is 2 GiB).
    header_bytes: a decoded header list. streams: unanswered calls of one connection.
    stream_window, connection_window: what the peer may send before it is consumed. frame_bytes: one received frame.
    queue_bytes: output of one connection that waits for the peer; above it, nothing more is read from the peer.
    assembly_bytes: received bytes of unfinished requests, of all connections together; an eighth is for those up to 1
    MiB (a single one may be larger). upload_s: how long a request may stay without a new byte. http_body_bytes: the
    body of a plain HTTP request. connections: open at once, if the process may have as many files. waiting_calls: of
    all connections, calls that wait for their peer to send the rest or to accept the answer. streaming_calls: running
    at once, each with a thread.
    control_frames_per_s: PING, SETTINGS, PRIORITY, empty DATA, WINDOW_UPDATE; resets_per_s: calls that the peer
    cancelled within 0.25 s after their start. header_wait_s: from the connection to its first request. stall_s: how
    long output of a connection or a stream may wait while the peer accepts none of it.
    """

    message_bytes: int = (1 << 31) - 1
    header_bytes: int = 16 << 10
    streams: int = 10_000
    stream_window: int = 1 << 20
    connection_window: int = 16 << 20
    frame_bytes: int = 16 << 10
    queue_bytes: int = 1 << 20
    assembly_bytes: int = 1 << 30
    http_body_bytes: int = 1 << 20
    connections: int = 10_000
    waiting_calls: int = 20_000
    streaming_calls: int = 256
    control_frames_per_s: int = 20_000
    resets_per_s: int = 1_000
    header_wait_s: float = 30.0
    upload_s: float = 60.0
    stall_s: float = 600.0


class EventPace:
    """Counts events, and reports more than `per_second`; reads the clock once in `per_second`/10 events."""

    def __init__(self, per_second: int) -> None:
        self._batch = max(1, per_second // 10)
        self._left = self._batch
        self._since = float("-inf")

    def is_exceeded(self, clock: float) -> bool:
        """Whether the last batch of events took less than its 100 ms; called when a batch is used up."""
        hurried = clock - self._since < 0.1
        self._since, self._left = clock, self._batch
        return hurried

    def count_event(self, weight: int = 1) -> bool:
        """Count an event with this weight; True if is_exceeded() must be called now."""
        self._left -= weight
        return self._left <= 0
