"""Reads manifests of merge and compact from the events of an older version, which stored their values in `detail`.

A lake keeps such events as long as its history, and a window may be in progress while Binlake is upgraded. Events of
this version have a manifest, and compact's detail has none of the keys that are read here.
"""

from __future__ import annotations

import json

from binlake.ddl.definitions import Shapes
from binlake.errors import DamagedManifest
from binlake.lake.ddls import read_landed_ddls
from binlake.spark_jobs.job.context import StageContext
from binlake.window.derived import CompactManifest, Merged
from binlake.window.events import EventRow
from binlake.window.manifest import format_window_name

COMPACT_AGAIN = "run compact again for this window, then convert"


def parse_merged(event: EventRow) -> Merged:
    """What merge recorded of a window in `event`."""
    detail = json.loads(event["detail"] or "{}")
    left_out = detail.get("filtered") or detail.get("skipped_commit_ts")
    ddls = int(detail.get("ddl", 0)) + int(detail.get("ddl_skipped", 0))
    return Merged(event["rows"], ddls, not left_out, (format_window_name(event["lo"], event["hi"]),))


def build_compact_manifest(ctx: StageContext, event: EventRow, merged: Merged) -> CompactManifest:
    """The compact manifest of a window, from compact's `event` and from `merged`. Raises DamagedManifest."""
    detail = json.loads(event["detail"] or "{}")
    lo, hi = event["lo"], event["hi"]
    if "ordered" not in detail:
        where = {"window": format_window_name(lo, hi)}
        raise DamagedManifest("the event of compact has no manifest", where=where, hint=COMPACT_AGAIN)
    ddls = read_landed_ddls(ctx.paths, lo, hi) if merged.ddls else []
    return CompactManifest(
        replication=ctx.replication.name,
        sink="sql",
        lo=lo,
        hi=hi,
        ordered=bool(detail["ordered"]),
        rows=event["rows"],
        merged=merged,
        cuts=tuple(ddl.since for ddl in ddls if ddl.opens_segment),
        shapes=Shapes.from_list(detail.get("shapes", ())),
    )
