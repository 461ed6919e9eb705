"""What landed windows remember about a pump, so that no pump vanishes unnoticed (DESIGN 3.3, hazards R-05, R-06)."""

from __future__ import annotations

from dataclasses import dataclass

FORGOTTEN = "forgotten"
"""The state of a pump that an operator gave up on: windows continue without it until it serves again."""


@dataclass(frozen=True)
class RememberedMember:
    """A pump as the last landed window recorded it. `store_uuid` is empty for an original pump."""

    node_id: str
    store_uuid: str
    state: str
    watermark: int
    landed_ts: int
