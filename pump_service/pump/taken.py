"""Which timestamps are taken: a second, different binlog at one of them is refused before it is stored.

The index has one place for a ts: the start_ts of a P, the commit_ts of all others. A later one would hide the one
before from every pull. The same binlog again is taken again (writers ask twice), and a fake, which holds nothing, gives
way to anything. The latest timestamps are known by heart; older ones are looked up in the index.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from binlake.errors import LostRange, Permanent, Transient
from pump_service.pump.heads import Head, head_of
from pump_service.pump.index import Index
from pump_service.pump.record import Pointer
from pump_service.pump.sorter import Kind
from pump_service.pump.vlog import ValueLog

_GENERATION = 1 << 15  # how many are known by heart at least, once so many were stored
_MOST = 1 << 18  # and at most, however far the index is behind


def key_of(head: Head) -> int:
    """The ts under which the index keeps a binlog; 0 = it need not be found."""
    return head.start_ts if head.kind is Kind.PREWRITE else head.commit_ts


def _identity(head: Head, payload: bytes) -> int:
    """What makes it the same binlog: of a P its bytes (below 0), of all others the start_ts."""
    return ~(hash(payload) & ((1 << 63) - 1)) if head.kind is Kind.PREWRITE else head.start_ts


class Claim(NamedTuple):
    """A ts that was taken, and who had it before; `key` 0 = none was."""

    key: int
    before: int | None


class Taken:
    """The timestamps of one pump; used by the thread that writes the log. `indexed`: up to where the index has them."""

    def __init__(self, index: Index, log: ValueLog, indexed: Callable[[], Pointer]) -> None:
        self._index = index
        self._log = log
        self._indexed = indexed
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._old_end = self._floor_end = Pointer(0, 0)
        self._floor = log.max_ts  # what is at or below it may be in the index only

    def claim(self, head: Head, payload: bytes) -> Claim:
        """Take the ts of a binlog that is about to be stored; what to `free` when it is not.

        Raises Permanent where another one has it, Transient while that cannot be told, WireError where what has it is
        damaged.
        """
        key = key_of(head)
        if key <= 0:
            return Claim(0, None)
        identity = _identity(head, payload)
        holder = self._holder(key)
        if holder is not None and holder not in (identity, key):  # start_ts = commit_ts: a fake
            raise Permanent(
                "another binlog with this timestamp is stored: this one would hide it",
                where={"ts": key, "kind": head.kind.value, "start_ts": head.start_ts},
                hint="timestamps come from one PD and are given once: find out who writes",
            )
        self._young[key] = identity
        return Claim(key, holder)

    def free(self, claim: Claim) -> None:
        """What made this claim was not stored."""
        if claim.before is None:
            self._young.pop(claim.key, None)
        else:
            self._young[claim.key] = claim.before

    def stored(self, last: Pointer) -> None:
        """What was claimed is stored, `last` its last record: forget old ones that the index has."""
        if len(self._young) < _GENERATION:
            return
        if self._indexed() >= self._old_end or len(self._young) >= _MOST:
            self._floor = max(self._floor, max(self._old, default=0))
            self._floor_end = max(self._floor_end, self._old_end)
            self._old, self._young, self._old_end = self._young, {}, last

    def _holder(self, key: int) -> int | None:
        holder = self._young.get(key)
        if holder is None:
            holder = self._old.get(key)
        if holder is None and key <= self._floor:
            holder = self._look_up(key)
        return holder

    def _look_up(self, key: int) -> int | None:
        if self._indexed() < self._floor_end:
            raise Transient("the index is behind: it cannot be told whether this timestamp is free", where={"ts": key})
        pointer = self._index.pointer(key)
        if pointer is None:
            return None
        try:
            payload = self._log.read(pointer)
        except LostRange:
            return None  # collected
        return _identity(head_of(payload), payload)
