"""What landed windows remember about a pump, so that none can vanish unnoticed (DESIGN 3.3, hazards R-05, R-06)."""

from __future__ import annotations

from dataclasses import dataclass

FORGOTTEN = "forgotten"
"""State of a pump that an operator gave up: windows continue without it until it serves again."""


@dataclass(frozen=True)
class RememberedMember:
    """A pump as the last landed window knew it: `store_uuid` (empty for an original pump), `state`, `landed_ts`."""

    node_id: str
    store_uuid: str
    state: str
    watermark: int
    landed_ts: int
