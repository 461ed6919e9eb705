"""What a window will have before it is pulled: about how many bytes, and where tasks divide it.

Rule: it decides only who pulls the window and in how many ranges; what is pulled is proved in any case. Pumps tell it
from their indexes. Of pumps that cannot, the last window's density says how many bytes come in so much time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from binlake.spark_jobs.job.results import Bounds
from binlake.spark_jobs.land.pump_source import PumpPull
from binlake.window.manifest import WindowManifest

LEAST_RANGES = 2
"""Ranges of a window that Spark pulls: at least two cores work."""
GUESSED_RANGES = 8
"""Most ranges of equal time; one that turns out to be empty costs 20 ms of CPU."""
MOST_RANGES = 64
"""Most ranges of equal bytes; the ranges of a larger window grow."""


@dataclass(frozen=True)
class ExpectedBytes:
    """About how many `bytes` the pumps have of a window, None if unknown, and the ranges for tasks, without gaps."""

    bytes: int | None
    ranges: tuple[Bounds, ...]


def expect(pull: PumpPull, last: WindowManifest | None, task_bytes: int) -> ExpectedBytes:
    """Ask the pumps of `pull`; `last`: the last window. Raises SourceUnavailable."""
    window = Bounds(pull.lo, pull.hi)
    part_bytes = max(1, task_bytes // max(1, len(pull.pumps)))
    sizes = [pull.measure_pump(place, part_bytes) for place in range(len(pull.pumps))]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes) or not known:
        return _guess(window, last, task_bytes)
    cuts = max((size.cuts for size in known), key=len)
    ranges = _divide_at(window, cuts) if len(cuts) >= LEAST_RANGES - 1 else divide(window, LEAST_RANGES)
    return ExpectedBytes(sum(size.bytes for size in known), tuple(ranges))


def _guess(window: Bounds, last: WindowManifest | None, task_bytes: int) -> ExpectedBytes:
    """As if rows came as densely as in `last`."""
    if last is None:
        return ExpectedBytes(None, tuple(divide(window, GUESSED_RANGES)))
    expected = last.bytes * (window.hi - window.lo) // max(1, last.hi - last.lo)
    count = min(GUESSED_RANGES, max(LEAST_RANGES, -(-expected // task_bytes)))
    return ExpectedBytes(expected, tuple(divide(window, count)))


def divide(bounds: Bounds, most: int) -> list[Bounds]:
    """`bounds` as `most` ranges of equal time, fewer if it has fewer commit_ts."""
    count = min(most, bounds.hi - bounds.lo)
    return _join([bounds.lo + (bounds.hi - bounds.lo) * number // count for number in range(count + 1)])


def _divide_at(bounds: Bounds, cuts: Sequence[int]) -> list[Bounds]:
    """`bounds` divided at `cuts`, or at some of them if they are too many."""
    inside = sorted({cut for cut in cuts if bounds.lo < cut < bounds.hi})
    count = min(MOST_RANGES - 1, len(inside))
    return _join([bounds.lo, *(inside[len(inside) * number // count] for number in range(count)), bounds.hi])


def _join(edges: Sequence[int]) -> list[Bounds]:
    return [Bounds(*edge) for edge in pairwise(edges)]
