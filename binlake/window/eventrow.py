"""A row of the lake's table `window`: one event, recorded by a stage or a command."""

from __future__ import annotations

from typing import NotRequired, TypedDict

CPU_SECONDS = "cpu_seconds"
"""In the detail of a stage's event: the CPU that it took."""
DISK = "disk"
"""The stage of events that tell how full disks are."""


class EventRow(TypedDict):
    """`stage` of the window (lo, hi] reached `state`. `detail` is JSON, `at_ms` Unix ms; `manifest` only on request."""

    lo: int
    hi: int
    stage: str
    sink: str
    state: str
    rows: int
    seconds: float
    run_id: str
    at_ms: int
    blocked_by: str
    detail: str
    manifest: NotRequired[str]
