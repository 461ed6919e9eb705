"""Find the key that a row had at the start of a segment, so that values of target-only columns move with their row.

Rule: hazards R-12 (moved keys take their old row's values). Only updates that change the key count. If a key is deleted
and inserted again, it keeps its values: net changes do not distinguish the two rows, and the values are not lost.
"""

from __future__ import annotations

from collections.abc import Iterable


def trace_origins(moves: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """Key -> the different key that its row had before the segment; None: the row is new.

    `moves`: (old key, new key) in commit order. No two keys have the same origin, so unique values stay unique.
    """
    origins: dict[str, str | None] = {}
    for old, new in moves:
        origins[new] = origins.get(old, old)
        origins[old] = None
    return {key: origin for key, origin in origins.items() if origin != key}
