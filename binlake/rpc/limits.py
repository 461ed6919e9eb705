"""Limits of what one peer may cost: the bounds of all buffers, of memory, slots and log lines (docs/understand/rpc.md).

Unfinished requests of all connections share one budget of memory, counted as requests grow (`Assembly`). Large messages
cannot block small ones: an eighth is reserved for messages up to 1 MiB. Slow uploads cannot block others either: if
there is no room, a slow one is ended; only if none is slow, the request that needs more memory is refused.

If all slots are in use, the newest of the address with most slots is dropped (`choose_slot_to_free`): an address that
floods the server only blocks itself; a caller that has had its slot for long keeps it. Events that peers can trigger at
will get a few lines per minute in the log (`SparingLog`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import structlog

log = structlog.get_logger()

LARGE = 1 << 20
"""Bytes above which a message counts as large."""

_TRIAL_S = 5.0  # younger requests never count as slow
_SLOW_BYTES_PER_S = 1 << 20
_LOOK_S = 0.1  # pause after a search that found no slow request
Item = TypeVar("Item")
Slot = TypeVar("Slot", bound=Hashable)
_LINES = 10
_PERIOD_S = 60.0


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


class Holder(Protocol):
    """An owner of memory."""

    def release_memory(self) -> None:
        """Release the memory, which others need, and notify the peer."""


class _HolderUse:
    """The bytes that one holder has, and had one and two checks ago."""

    __slots__ = ("after", "before", "size")

    def __init__(self, now: float) -> None:
        self.size = 0
        self.before = self.after = (now, 0)

    def is_slow(self, now: float) -> bool:
        since, size = self.before
        passed = now - since
        slow = passed > _TRIAL_S and self.size - size < _SLOW_BYTES_PER_S * passed
        self.look(now)
        return slow

    def look(self, now: float) -> None:
        if now - self.after[0] > _TRIAL_S:
            self.before, self.after = self.after, (now, self.size)


class Share:
    """At most `limit` bytes in total; one holder may have more while the others have almost nothing. Used on the
    loop."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._held: dict[Holder, _HolderUse] = {}
        self._looked_at = float("-inf")
        self.used = 0

    def grow(self, holder: Holder, size: int) -> bool:
        """Set the bytes of `holder` to `size`; False if there is no room, and then nothing changes."""
        now = self._clock()
        use = self._held.get(holder)
        if use is None:
            use = _HolderUse(now)
        while not self._fits(use.size, size):
            if not self._evict_slowest(holder, now):
                return False
        self.used += size - use.size
        use.look(now)
        use.size = size
        self._held[holder] = use
        return True

    def release(self, holder: Holder) -> None:
        """Release all bytes of `holder`, if any."""
        use = self._held.pop(holder, None)
        if use is not None:
            self.used -= use.size

    def _fits(self, had: int, size: int) -> bool:
        others = self.used - had
        return others <= self._limit >> 3 or others + size <= self._limit

    def _evict_slowest(self, holder: Holder, now: float) -> bool:
        if now - self._looked_at < _LOOK_S:
            return False
        for candidate, use in self._held.items():
            if candidate is not holder and use.is_slow(now):
                candidate.release_memory()
                self.release(candidate)
                return True
        self._looked_at = now
        return False


class Assembly:
    """The two shares of `limit` bytes."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.small = Share(limit >> 3, clock)
        self.large = Share(limit - (limit >> 3), clock)

    @property
    def used(self) -> int:
        """Bytes of all holders."""
        return self.small.used + self.large.used


def choose_slot_to_free(slots: Mapping[Slot, str], newcomer: str) -> Slot | None:
    """The slot to free for `newcomer`, of `slots` (oldest first, with their addresses); None = drop the newcomer."""
    address, most = Counter(slots.values()).most_common(1)[0]
    if address == newcomer or Counter(slots.values())[newcomer] >= most:
        return None
    return next(place for place in reversed(list(slots)) if slots[place] == address)


class FairQueue(Generic[Item]):
    """Waiting items, at most `limit`, in one line for each (address, kind); the lines are served in turn."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lines: dict[tuple[str, str], deque[Item]] = {}

    def put(self, address: str, kind: str, item: Item) -> Item | None:
        """Add an item; returns the item that is dropped for it, which may be the item itself."""
        loser = None
        if sum(map(len, self._lines.values())) >= self._limit:
            line = self._find_longest(address)
            if line == (address, kind) or line is None:
                return item
            loser = self._lines[line].pop()
            self._remove_if_empty(line)
        self._lines.setdefault((address, kind), deque()).append(item)
        return loser

    def take(self) -> Item | None:
        """The next item; None if none is waiting."""
        for line in self._lines:
            waiting = self._lines.pop(line)
            item = waiting.popleft()
            if waiting:
                self._lines[line] = waiting  # after all other lines
            return item
        return None

    def _find_longest(self, newcomer: str) -> tuple[str, str] | None:
        """The longest line of the address with most items; None if that is the newcomer and its lines have one each."""
        counts: Counter[str] = Counter()
        for (address, _), waiting in self._lines.items():
            counts[address] += len(waiting)
        greatest, most = counts.most_common(1)[0]
        if counts[newcomer] >= most:
            greatest = newcomer
        line = max(
            (line_key for line_key in self._lines if line_key[0] == greatest),
            key=lambda line_key: len(self._lines[line_key]),
        )
        return None if greatest == newcomer and len(self._lines[line]) == 1 else line

    def _remove_if_empty(self, line: tuple[str, str]) -> None:
        if not self._lines[line]:
            del self._lines[line]


class SparingLog:
    """Writes at most 10 lines of an event per minute; the first line of the next minute says how many were omitted.

    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, tuple[float, int]] = {}  # start of the minute, requested lines

    def warning(self, event: str, **keys: Any) -> None:
        """A line of level warning."""
        self._write("warning", event, keys)

    def error(self, event: str, **keys: Any) -> None:
        """A line of level error."""
        self._write("error", event, keys)

    def exception(self, event: str, **keys: Any) -> None:
        """A line of level error with the current exception."""
        self._write("exception", event, keys)

    def _write(self, level: str, event: str, keys: dict[str, Any]) -> None:
        left_out = self._count_omitted(event, time.monotonic())
        if left_out is not None:
            getattr(log, level)(event, **keys, **({"left_out": left_out} if left_out else {}))

    def _count_omitted(self, event: str, now: float) -> int | None:
        """How many lines were omitted before this one; None if this one is to be omitted too."""
        with self._lock:
            since, lines = self._events.get(event, (now, 0))
            if now - since > _PERIOD_S:
                self._events[event] = (now, 1)
                return max(0, lines - _LINES)
            self._events[event] = (since, lines + 1)
            return 0 if lines < _LINES else None
