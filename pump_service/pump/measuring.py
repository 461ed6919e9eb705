"""How many bytes of binlogs a range of commit_ts has, and where to divide it, read from the index alone.

Rule: the log is nearly in the order of commit_ts, so the distance in the log between two entries of the index is about
the bytes between them. The answer decides only who reads the range and in how many parts, never what is read.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import NamedTuple

from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.vlog import ValueLog

MOST_CUTS = 255
"""Most cuts of a range; the parts of a longer one grow."""


class MeasuredRange(NamedTuple):
    """About how many bytes a range has, and the commit_ts, ascending, at which its parts end, but for the last one."""

    bytes: int
    cuts: tuple[int, ...]


def measure_range(index: PumpIndex, log: ValueLog, after_ts: int, upto_ts: int, part_bytes: int) -> MeasuredRange:
    """Measure (after_ts, upto_ts]; `part_bytes` of 0: no cuts. Raises Permanent for a damaged index."""
    last = index.find_last(after_ts, upto_ts)
    if last is None:
        return MeasuredRange(0, ())
    places = _Places(index, log, upto_ts, last)
    begin, end = places.find_after(after_ts), places.locate(last)
    size = max(0, end - begin)
    if not part_bytes or size <= part_bytes:
        return MeasuredRange(size, ())
    count = min(MOST_CUTS, -(-size // part_bytes) - 1)
    targets = [begin + size * number // (count + 1) for number in range(1, count + 1)]
    return MeasuredRange(size, tuple(sorted({places.find_ts(target, after_ts) for target in targets} - {after_ts})))


class _Places:
    """Distances in the log, from the begin of its oldest file."""

    def __init__(self, index: PumpIndex, log: ValueLog, upto_ts: int, last: Pointer) -> None:
        self._index = index
        self._upto_ts = upto_ts
        self._last = last
        sizes = log.list_sizes()
        self._begins = dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False))

    def locate(self, pointer: Pointer) -> int:
        """Where `pointer` is; an entry of a collected file lies before all others."""
        begin = self._begins.get(pointer.fid)
        return 0 if begin is None else begin + pointer.offset

    def find_after(self, ts: int) -> int:
        """Where the first entry above `ts` is."""
        entries = self._index.read_batch(ts, self._upto_ts, 1)
        return self.locate(Pointer.from_bytes(entries[0][1]) if entries else self._last)

    def find_ts(self, place: int, after_ts: int) -> int:
        """The last ts whose successor is not beyond `place`."""
        span = range(after_ts, self._upto_ts)
        return span[bisect_left(span, place, key=self.find_after, hi=len(span) - 1)]
