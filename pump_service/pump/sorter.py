"""The sorter: turns binlogs in value-log order into a watermark that is complete (invariant 2, tidb-binlog 2.5).

The rule: a P blocks everything behind it in the log until its C or R (same start_ts) has been seen anywhere later; the
watermark is the greatest commit_ts before the first blocking P. Only blocking P are kept, each with the
greatest commit_ts that stands between it and the next one, so memory is that of the open transactions, however
long one blocks. Pure: no clock, no I/O, not thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pump_service.pump.record import Pointer

_START = Pointer(0, 0)


class Kind(Enum):
    """What an entry of the value log is to the sorter."""

    PREWRITE = "prewrite"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    FAKE = "fake"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Entry:
    """One binlog of the value log, without its payload; `key` is the prewrite key of a P."""

    kind: Kind
    start_ts: int
    commit_ts: int
    pointer: Pointer
    key: bytes = b""


class Outcome(Enum):
    """What became of an entry: UNMATCHED is a C or R whose P does not wait here (a double, or a late one)."""

    TAKEN = "taken"
    UNMATCHED = "unmatched"
    TOO_EARLY = "too early"


@dataclass(slots=True)
class _Segment:
    """A blocking P, the greatest commit_ts logged before it (`floor`: its own must be above), and the greatest
    (`high`, at `high_at`) between it and the next blocking P."""

    prewrite: Entry
    floor: int
    high: int
    high_at: Pointer
    older: _Segment = field(repr=False)
    newer: _Segment = field(repr=False)


class Sorter:
    """Watermark over entries pushed in value-log order; `max_ts` and `handle` come from the last run."""

    def __init__(self, max_ts: int = 0, handle: Pointer = _START) -> None:
        root = _Segment.__new__(_Segment)
        root.prewrite, root.floor = Entry(Kind.OTHER, 0, 0, handle), 0
        root.high, root.high_at, root.older, root.newer = max_ts, handle, root, root
        self._root = root
        self._waiting: dict[int, list[_Segment]] = {}
        self._seen = 0

    @property
    def max_ts(self) -> int:
        """The watermark: no transaction at or below it can still appear."""
        return self._root.high

    @property
    def handle(self) -> Pointer:
        """The record that last raised the watermark: where a restart feeds the sorter from."""
        return self._root.high_at

    def push(self, entry: Entry) -> Outcome:
        """Take the next entry of the log.

        TOO_EARLY = hazards R-09: a commit_ts at or above this one was logged before its P, so this one was not
        fetched after the ack of P and the watermark may have passed it.
        """
        if entry.kind is Kind.PREWRITE:
            self._open(entry)
            return Outcome.TAKEN
        outcome = self._match(entry) if entry.kind in (Kind.COMMIT, Kind.ROLLBACK) else Outcome.TAKEN
        self._seen = max(self._seen, entry.commit_ts)
        self._raise(self._root.older, entry.commit_ts, entry.pointer)
        return outcome

    def waiting(self, limit: int = 0) -> list[Entry]:
        """The blocking P in log order, the head first; at most `limit` of them when it is not 0."""
        found: list[Entry] = []
        segment = self._root.newer
        while segment is not self._root and (not limit or len(found) < limit):
            found.append(segment.prewrite)
            segment = segment.newer
        return found

    def oldest_waiting(self) -> int:
        """The least start_ts that is not matched; 0 = none."""
        return min(self._waiting, default=0)

    def __len__(self) -> int:
        """How many P wait."""
        return sum(map(len, self._waiting.values()))

    def _open(self, entry: Entry) -> None:
        last = self._root.older
        segment = _Segment(entry, self._seen, 0, entry.pointer, last, self._root)
        last.newer = self._root.older = segment
        self._waiting.setdefault(entry.start_ts, []).append(segment)

    def _match(self, entry: Entry) -> Outcome:
        segments = self._waiting.pop(entry.start_ts, None)
        if segments is None:
            return Outcome.UNMATCHED
        for segment in segments:
            segment.older.newer, segment.newer.older = segment.newer, segment.older
            self._raise(segment.older, segment.high, segment.high_at)
        early = entry.kind is Kind.COMMIT and any(entry.commit_ts <= segment.floor for segment in segments)
        return Outcome.TOO_EARLY if early else Outcome.TAKEN

    @staticmethod
    def _raise(segment: _Segment, commit_ts: int, at: Pointer) -> None:
        if commit_ts > segment.high:
            segment.high, segment.high_at = commit_ts, at
