"""What compact and convert derive of the SQL sink's window, for the stage after them.

Rule: a stage of the same process is given it; any other one reads it from the lake, where the manifest of compact is
verified: if it is not exactly what compact sealed for this window, the stage stops.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from binlake.errors import CheckpointConflict, DamagedManifest
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.passed import MergedWindow
from binlake.spark_jobs.tables.netrows import NetRows
from binlake.spark_jobs.tables.pinned import open_manifest
from binlake.spark_jobs.tables.rendered import RenderedAhead
from binlake.spark_jobs.tables.sinks import SinkWindow, read_sql_window, require_merged
from binlake.spark_jobs.tables.statements import LakeStatements
from binlake.spark_jobs.tables.unsealed import COMPACT_AGAIN, build_compact_manifest
from binlake.target import TargetPosition
from binlake.window.derived import CompactManifest, read_manifest_of
from binlake.window.events import EventRow
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Compacted:
    """A window for which compact sealed `manifest`, with the target at `position`.

    `pinned`: the window's apply manifest if the target holds it open; `net`, `merged`: the rows of `change` and of
    `mutation`, if this process has derived them; `ahead`: the statements, if the tasks of `net` rendered them as well.
    """

    window: SinkWindow
    manifest: CompactManifest
    position: TargetPosition
    pinned: ApplyManifest | None
    net: NetRows | None = None
    merged: MergedWindow | None = None
    ahead: RenderedAhead | None = None


@dataclass(frozen=True)
class Converted:
    """The `statements` of a window, in the form `forms`; `change`: the digest of its rows (empty: as pinned).

    `ddls`, `skipped`: how many DDL statements there are, and how many were left out. `versions`, `seconds_ahead`,
    `cpu_ahead_s`: set if it was derived ahead. `manifest`: pins the statements; None before they are sealed. `limits`:
    as in the manifest.
    """

    compacted: Compacted
    change: str
    statements: LakeStatements
    forms: str
    ddls: int
    skipped: int
    versions: tuple[int, ...] = ()
    seconds_ahead: float = 0.0
    cpu_ahead_s: float = 0.0
    manifest: ApplyManifest | None = None
    limits: tuple[int, ...] = ()

    @property
    def position(self) -> TargetPosition:
        """Where the target was, or will be."""
        return self.compacted.position


def read_compacted(ctx: StageContext, bounds: Bounds, position: TargetPosition) -> Compacted:
    """The window `bounds` as compact left it in the lake. Raises as `read_newest` and `open_manifest`."""
    pinned = open_manifest(ctx, bounds, position)
    manifest = read_current(ctx, bounds) if pinned is None else read_pinned(ctx, pinned)
    window = read_sql_window(ctx, bounds, manifest.merged).with_shapes(manifest.shapes)
    return Compacted(window, manifest, position, pinned)


def read_current(ctx: StageContext, bounds: Bounds) -> CompactManifest:
    """As `read_newest`. Also raises CheckpointConflict if merge has produced another result since."""
    manifest = read_newest(ctx, bounds)
    if require_merged(ctx, bounds.lo, bounds.hi) != manifest.merged:
        raise CheckpointConflict(
            "merge has derived this window again with another result since compact ran",
            where={"window": bounds.window},
            hint="run compact again, then convert",
        )
    return manifest


def read_newest(ctx: StageContext, bounds: Bounds) -> CompactManifest:
    """The manifest that compact last sealed for exactly this window.

    Raises CheckpointConflict if compact never ran for it, DamagedManifest.
    """
    events = _read_events(ctx, bounds)
    if not events:
        raise CheckpointConflict(
            "compact has not derived this window", where={"window": bounds.window}, hint="run compact, then convert"
        )
    return _read(ctx, bounds, events[-1])


def read_pinned(ctx: StageContext, apply: ApplyManifest) -> CompactManifest:
    """The compact manifest from which the statements of `apply` were derived. Raises as `read_newest`."""
    bounds = Bounds(apply.lo, apply.hi)
    if not apply.compact:
        # Sealed by an older version, whose compact sealed no manifest.
        return read_newest(ctx, bounds)
    # A rerun of compact may have sealed another one since; the pinned one counts.
    manifest = _with_digest(ctx, bounds, apply.compact)
    if manifest is None:
        raise DamagedManifest(
            "the compact manifest that the apply manifest refers to is missing or damaged",
            where={"window": bounds.window, "digest": apply.compact},
            hint=COMPACT_AGAIN,
        )
    return manifest


def read_sealed_before(ctx: StageContext, bounds: Bounds, pinned: ApplyManifest | None) -> CompactManifest | None:
    """The manifest that compact sealed earlier for an open (`pinned`) or passed window; None if it cannot be read."""
    if pinned is not None and pinned.compact:
        return _with_digest(ctx, bounds, pinned.compact)
    events = _read_events(ctx, bounds)
    return _read_if_intact(ctx, bounds, events[-1]) if events else None


def was_derived(ctx: StageContext, bounds: Bounds) -> bool:
    """True when compact has ever finished exactly this window."""
    return bool(_read_events(ctx, bounds))


def _read_events(ctx: StageContext, bounds: Bounds) -> list[EventRow]:
    events = ctx.windows.read_events(stage="compact", state="done", within=(bounds.lo, bounds.hi), sealed=True)
    return [event for event in events if (event["lo"], event["hi"]) == (bounds.lo, bounds.hi)]


def _with_digest(ctx: StageContext, bounds: Bounds, digest: str) -> CompactManifest | None:
    manifests = (_read_if_intact(ctx, bounds, event) for event in reversed(_read_events(ctx, bounds)))
    return next(
        (manifest for manifest in manifests if manifest is not None and manifest.compute_digest() == digest), None
    )


def _read_if_intact(ctx: StageContext, bounds: Bounds, event: EventRow) -> CompactManifest | None:
    try:
        return _read(ctx, bounds, event)
    except DamagedManifest as error:
        log.warning("compact_manifest_passed_over", window=bounds.window, error=str(error))
        return None


def _read(ctx: StageContext, bounds: Bounds, event: EventRow) -> CompactManifest:
    if not event["manifest"]:
        return build_compact_manifest(ctx, event, require_merged(ctx, bounds.lo, bounds.hi))
    name, text = ctx.replication.name, event["manifest"]
    return read_manifest_of(CompactManifest, text, name, bounds.lo, bounds.hi, hint=COMPACT_AGAIN)
