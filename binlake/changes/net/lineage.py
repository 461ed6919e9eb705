"""Whose row a key's row was at the start of a segment: what the target alone keeps of a row goes where the row goes.

Rule: hazards R-12 (moved keys take their old row's values). Only updates that move a key count. A key that is deleted
and inserted again keeps what it had: net changes do not distinguish the two rows, and the values are not lost.
"""

from __future__ import annotations

from collections.abc import Iterable


def trace_origins(moves: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """By key, the key that its row had before the segment, for all keys of which it is another one; None: no row's.

    `moves`: (old key, new key) in commit order. No two keys have one origin, so values that are unique stay so.
    """
    held: dict[str, str | None] = {}
    for old, new in moves:
        held[new] = held.get(old, old)
        held[old] = None
    return {key: origin for key, origin in held.items() if origin != key}
