"""Reserves each timestamp for one binlog: a second, different binlog with the same timestamp is refused.

The index has one slot for a ts: the start_ts of a P, the commit_ts of all others. A second binlog would hide the first
from every pull. The same binlog is accepted again (writers retry), and any binlog may replace a fake, which has no
content. The latest timestamps are held in memory; older ones are looked up in the index.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b

from binlake.errors import LostRange, Permanent, Transient
from binlake.pump_service.pump.heads import Head, parse_head
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.sorter import EntryKind
from binlake.pump_service.pump.vlog import ValueLog

_GENERATION = 1 << 15  # the least number held in memory
_PREWRITE = EntryKind.PREWRITE
_MASK = (1 << 63) - 1
_HASHED_BYTES = 64 << 10
_MOST = 1 << 18  # the greatest number, however far the index is behind


TsClaim = tuple[int, int | None]
"""A claimed ts (0 = none), and the binlog that held it before (None = none)."""

_NOTHING: TsClaim = (0, None)


class TimestampClaims:
    """The timestamps of one pump, each with the identity of its binlog: for a P a hash of its bytes (below 0), for all
    others the start_ts. Used by the thread that writes the log. `indexed`: the position up to which the index has them.
    """

    def __init__(self, index: PumpIndex, log: ValueLog, indexed: Callable[[], Pointer]) -> None:
        self._index = index
        self._log = log
        self._indexed = indexed
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._old_end = self._floor_end = Pointer(0, 0)
        self._floor = log.max_ts  # timestamps at or below it may be in the index only

    def claim(self, head: Head, payload: bytes) -> TsClaim:
        """Claim the ts of a binlog that is about to be stored; pass the claim to `release` if it is not stored.

        Raises Permanent when another binlog has the ts, Transient while that is not known, WireError when the binlog
        that has it is damaged.
        """
        kind, start_ts, commit_ts, _ = head
        if kind is _PREWRITE:
            key, identity = start_ts, _identify(payload)
        else:
            key, identity = commit_ts, start_ts
        if key <= 0:
            return _NOTHING
        holder = self._young.get(key)
        if holder is None:
            holder = self._old.get(key)
            if holder is None and key <= self._floor:
                holder = self._look_up(key)
        if holder is not None and holder not in (identity, key):  # start_ts = commit_ts: a fake
            raise Permanent(
                "another binlog with this timestamp is stored: this one would hide it",
                where={"ts": key, "kind": kind.value, "start_ts": start_ts},
                hint="one PD gives each timestamp once: find the process that writes this one",
            )
        self._young[key] = identity
        return key, holder

    def release(self, claim: TsClaim) -> None:
        """Undo a claim: its binlog was not stored."""
        key, before = claim
        if before is None:
            self._young.pop(key, None)
        else:
            self._young[key] = before

    def note_stored(self, last: Pointer) -> None:
        """The claimed binlogs are stored, up to the record `last`; forget old claims that the index has."""
        if len(self._young) < _GENERATION:
            return
        if self._indexed() >= self._old_end or len(self._young) >= _MOST:
            self._floor = max(self._floor, max(self._old, default=0))
            self._floor_end = max(self._floor_end, self._old_end)
            self._old, self._young, self._old_end = self._young, {}, last

    def _look_up(self, key: int) -> int | None:
        if self._indexed() < self._floor_end:
            raise Transient("the index is behind: whether this timestamp is free is not known", where={"ts": key})
        pointer = self._index.find_pointer(key)
        if pointer is None:
            return None
        try:
            payload = self._log.read(pointer)
        except LostRange:
            return None  # collected
        head = parse_head(payload)
        return _identify(payload) if head.kind is _PREWRITE else head.start_ts


def _identify(payload: bytes) -> int:
    """A negative number, in all probability of this P alone. A view has no hash."""
    if len(payload) <= _HASHED_BYTES:
        return ~(hash(payload) & _MASK)
    return ~(int.from_bytes(blake2b(payload, digest_size=8).digest()) & _MASK)
