"""Which key a row had at the start of a segment: values that only the target has move along with their row.

Rule: hazards R-12 (moved keys take their old row's values). Only updates that move a key count. A key that is deleted
and inserted again keeps its values: net changes do not distinguish the two rows, and the values are not lost.
"""

from __future__ import annotations

from collections.abc import Iterable


def trace_origins(moves: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """By key, the different key that its row had before the segment; None: the row is new.

    `moves`: (old key, new key) in commit order. No two keys share an origin, so unique values stay unique.
    """
    origins: dict[str, str | None] = {}
    for old, new in moves:
        origins[new] = origins.get(old, old)
        origins[old] = None
    return {key: origin for key, origin in origins.items() if origin != key}
