"""Records with a landed window how full the disks of the pumps and of the lake are: the pages draw it over time.

To measure the lake means to walk through its folder, so it is done in a lake's first window, and then once in EVERY_MS
of commit_ts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import structlog

from binlake import tso
from binlake.base.localfiles import DiskUse, measure_disk
from binlake.lake.paths import LakePaths
from binlake.lake.windowlog import WindowEvent
from binlake.spark_jobs.job.context import StageContext
from binlake.window.events import DISK
from binlake.window.manifest import OfWindow
from binlake.window.plan import Member

log = structlog.get_logger(__name__)

EVERY_MS = 300_000
"""A lake of 100,000 files takes about a second to measure."""


def build_disk_events(ctx: StageContext, window: OfWindow, members: Sequence[Member]) -> list[WindowEvent]:
    """The event to record with the seal of `window`; none if it is not due or nothing is known."""
    if not is_due(window.lo, window.hi) and ctx.windows.find_landed_ts() is not None:
        return []
    disks = {**_measure_lake(ctx.paths)} | {member.node_id: member.disk for member in members if member.disk.size}
    detail = {"disks": [{"place": place, **asdict(disk)} for place, disk in disks.items()]}
    return [WindowEvent(DISK, window.lo, window.hi, "done", run_id=ctx.run_id, detail=detail)] if disks else []


def is_due(lo: int, hi: int) -> bool:
    """Whether the window (lo, hi] passes a multiple of EVERY_MS."""
    return tso.extract_physical(lo) // EVERY_MS != tso.extract_physical(hi) // EVERY_MS


def _measure_lake(paths: LakePaths) -> Mapping[str, DiskUse]:
    """Nothing for a lake in a store, which has no disk that could become full."""
    if paths.local is None:
        return {}
    try:
        return {"lake": measure_disk(paths.local)}
    except OSError as error:
        # A window must not fail because of a chart.
        log.warning("lake_not_measured", error=str(error))
        return {}
