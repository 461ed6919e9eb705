"""The sorter: turns binlogs in value-log order into a watermark that is complete (invariant 2, tidb-binlog 2.5).

The rule: a P blocks everything after it in the log until its C or R (same start_ts) has been seen anywhere later; the
watermark is the greatest commit_ts before the first blocking P. The sorter holds only blocking P, each with the
greatest commit_ts between it and the next one, so its memory depends on the number of open transactions, not on how
long one blocks. Pure: no clock, no I/O, not thread-safe.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from binlake.pump_service.pump.record import Pointer

_START = Pointer(0, 0)
_ROOT = struct.Struct("<qqIqII")
_KEPT = struct.Struct("<Iq")
_BLOCKING = struct.Struct("<qqIqqIq?I")


class EntryKind(Enum):
    """The kind of a value-log entry, for the sorter. PROVEN_ROLLBACK: an R that the resolver wrote with proof."""

    PREWRITE = "prewrite"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    PROVEN_ROLLBACK = "proven rollback"
    FAKE = "fake"
    OTHER = "other"


# Used for each binlog, and naming a member of an Enum costs a call of Python code.
_PREWRITE, _COMMIT, _ROLLBACK, _PROVEN_ROLLBACK = (
    EntryKind.PREWRITE,
    EntryKind.COMMIT,
    EntryKind.ROLLBACK,
    EntryKind.PROVEN_ROLLBACK,
)


class SorterEntry(NamedTuple):
    """One binlog of the value log, without its payload; `key` is the prewrite key of a P."""

    kind: EntryKind
    start_ts: int
    commit_ts: int
    pointer: Pointer
    key: bytes = b""


class PushOutcome(Enum):
    """The result of pushing an entry. UNMATCHED: a C or R whose P does not wait here (a duplicate, or a late one).

    DOUBTED: an R that proves nothing by itself (hazards R-07); its prewrite waits on, for the proof.
    """

    TAKEN = "taken"
    UNMATCHED = "unmatched"
    TOO_EARLY = "too early"
    DOUBTED = "doubted"


_TAKEN, _UNMATCHED, _TOO_EARLY = PushOutcome.TAKEN, PushOutcome.UNMATCHED, PushOutcome.TOO_EARLY


@dataclass(slots=True, eq=False)
class _Segment:
    """A blocking P. `floor`: the greatest commit_ts logged before it; its own must be above. `high`, at `high_at`: the
    greatest commit_ts between it and the next blocking P. `doubted`: a writer reported its rollback."""

    prewrite: SorterEntry
    floor: int
    high: int
    high_at: Pointer
    older: _Segment = field(repr=False)
    newer: _Segment = field(repr=False)
    doubted: bool = False


class Sorter:
    """The watermark over entries pushed in value-log order; `max_ts` and `handle` come from the last run.

    `trust_rollbacks`: a writer's R ends its P. Otherwise only a C or a PROVEN_ROLLBACK does.
    """

    def __init__(self, max_ts: int = 0, handle: Pointer = _START, *, trust_rollbacks: bool = True) -> None:
        root = _Segment.__new__(_Segment)
        root.prewrite, root.floor, root.doubted = SorterEntry(EntryKind.OTHER, 0, 0, handle), 0, False
        root.high, root.high_at, root.older, root.newer = max_ts, handle, root, root
        self._root = root
        self._waiting: dict[int, list[_Segment]] = {}
        self._doubted: dict[int, None] = {}
        self._count = 0
        self._seen = 0
        self._needed: dict[int, int] = {}
        self._trust_rollbacks = trust_rollbacks

    @property
    def max_ts(self) -> int:
        """The watermark: no transaction at or below it can still appear."""
        return self._root.high

    @property
    def handle(self) -> Pointer:
        """The record that last raised the watermark; a restart feeds the sorter from there."""
        return self._root.high_at

    def push(self, entry: SorterEntry) -> PushOutcome:
        """Process the next entry of the log.

        TOO_EARLY = hazards R-09: a commit_ts at or above this one was logged before its P, so this one was fetched
        before the ack of P and the watermark may have passed it.
        """
        kind, start_ts, commit_ts, pointer, _ = entry
        if kind is _PREWRITE:
            self._open(entry)
            return _TAKEN
        outcome = _TAKEN
        if kind is _COMMIT or kind is _PROVEN_ROLLBACK or (kind is _ROLLBACK and self._trust_rollbacks):
            outcome = self._match(entry)
        elif kind is _ROLLBACK:
            outcome = self._doubt(start_ts)
        if commit_ts > self._seen:
            self._seen = commit_ts
        last = self._root.older
        if commit_ts > last.high:
            last.high, last.high_at = commit_ts, pointer
        return outcome

    def need(self, fid: int, commit_ts: int) -> None:
        """Remember that the C at `commit_ts` has its P in value-log file `fid`."""
        if commit_ts > self._needed.get(fid, 0):
            self._needed[fid] = commit_ts

    def look_up_needed_ts(self, fid: int) -> int:
        """The greatest commit_ts whose P is in file `fid`; 0 = none known."""
        return self._needed.get(fid, 0)

    def list_blocking_files(self) -> set[int]:
        """The files with a P that still waits."""
        return {segment.prewrite.pointer.fid for segments in self._waiting.values() for segment in segments}

    def forget(self, fid: int) -> None:
        """Forget file `fid`, which was removed."""
        self._needed.pop(fid, None)

    def list_waiting_prewrites(self, limit: int = 0) -> list[SorterEntry]:
        """The blocking P in log order, the head first; at most `limit` of them when it is not 0."""
        prewrites: list[SorterEntry] = []
        segment = self._root.newer
        while segment is not self._root and (not limit or len(prewrites) < limit):
            prewrites.append(segment.prewrite)
            segment = segment.newer
        return prewrites

    def list_doubted_prewrites(self, limit: int = 0) -> list[SorterEntry]:
        """The P whose rollback a writer reported but which is not proved so far; the oldest report first."""
        starts = list(self._doubted)
        return [self._waiting[start_ts][0].prewrite for start_ts in (starts[:limit] if limit else starts)]

    def find_oldest_waiting(self) -> int:
        """The least start_ts of the waiting P; 0 = none waits."""
        return min(self._waiting, default=0)

    def __len__(self) -> int:
        """How many P wait."""
        return self._count

    def dump(self) -> bytes:
        """The state, for `load`; its size grows with the number of open transactions."""
        root = self._root
        parts = [_ROOT.pack(self._seen, root.high, *root.high_at, len(self._needed), self._count)]
        parts += [_KEPT.pack(*item) for item in self._needed.items()]
        segment = root.newer
        while segment is not root:
            prewrite = segment.prewrite
            parts.append(
                _BLOCKING.pack(
                    prewrite.start_ts, segment.floor, *prewrite.pointer, segment.high, *segment.high_at,
                    segment.doubted, len(prewrite.key),
                )
            )  # fmt: skip
            parts.append(prewrite.key)
            segment = segment.newer
        return b"".join(parts)

    @classmethod
    def load(cls, data: bytes, *, trust_rollbacks: bool = True) -> Sorter:
        """Restore the sorter from what `dump` returned. If rollbacks are trusted now, doubted P are released."""
        seen, high, fid, offset, needed, count = _ROOT.unpack_from(data)
        sorter = cls(high, Pointer(fid, offset), trust_rollbacks=trust_rollbacks)
        sorter._seen, at = seen, _ROOT.size
        for _ in range(needed):
            sorter.need(*_KEPT.unpack_from(data, at))
            at += _KEPT.size
        doubted: list[int] = []
        for _ in range(count):
            start, floor, fid, offset, high, high_fid, high_offset, doubt, length = _BLOCKING.unpack_from(data, at)
            at += _BLOCKING.size
            key = data[at : at + length]
            at += length
            segment = sorter._open(SorterEntry(EntryKind.PREWRITE, start, 0, Pointer(fid, offset), key))
            segment.floor, segment.high, segment.high_at = floor, high, Pointer(high_fid, high_offset)
            doubted += [start] if doubt else []
        for start in doubted:
            sorter._doubt(start)
            if trust_rollbacks:
                sorter._match(SorterEntry(EntryKind.ROLLBACK, start, 0, _START))
        return sorter

    def _open(self, entry: SorterEntry) -> _Segment:
        last = self._root.older
        segment = _Segment(entry, self._seen, 0, entry.pointer, last, self._root)
        last.newer = self._root.older = segment
        segments = self._waiting.get(entry.start_ts)
        if segments is None:
            self._waiting[entry.start_ts] = [segment]
        else:
            segment.doubted = segments[0].doubted  # the same P again
            segments.append(segment)
        self._count += 1
        return segment

    def _doubt(self, start_ts: int) -> PushOutcome:
        segments = self._waiting.get(start_ts)
        if segments is None:
            return PushOutcome.UNMATCHED
        self._doubted[start_ts] = None
        for segment in segments:
            segment.doubted = True
        return PushOutcome.DOUBTED

    def _match(self, entry: SorterEntry) -> PushOutcome:
        segments = self._waiting.pop(entry.start_ts, None)
        if segments is None:
            return _UNMATCHED
        if self._doubted:
            self._doubted.pop(entry.start_ts, None)
        self._count -= len(segments)
        commit_ts = entry.commit_ts if entry.kind is _COMMIT else 0
        early = False
        for segment in segments:
            older, newer = segment.older, segment.newer
            older.newer, newer.older = newer, older
            if segment.high > older.high:
                older.high, older.high_at = segment.high, segment.high_at
            if commit_ts:
                self.need(segment.prewrite.pointer.fid, commit_ts)
                early = early or commit_ts <= segment.floor
        return _TOO_EARLY if early else _TAKEN
