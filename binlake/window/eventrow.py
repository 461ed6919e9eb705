"""A row of the lake's table `window` as it is read: one event, as a stage or a command recorded it."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class EventRow(TypedDict):
    """`stage` of the window (lo, hi] came to `state`; `detail` is JSON, `at_ms` Unix ms; `manifest` where asked for."""

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
