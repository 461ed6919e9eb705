"""The window of the SQL sink: what the target holds open, and what compact and convert derived of it for others.

Only the window that the target holds open is pinned: its bounds, its manifest, its rows (hazards R-16, R-62). One that
was sealed but never opened pins nothing: another target or configuration may cut it differently.

A stage of the same process is given what was derived; any other one reads it from the lake, where the manifest of
compact is verified: if it is not exactly what compact sealed for this window, the stage stops. The shapes of the
target's tables are read once, when compact derives the window with the target at lo: in the middle of a window its DDL
has run only on a part of the target.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

import structlog

from binlake.common import rowhash
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import Shapes, TableShape
from binlake.errors import CheckpointConflict, DamagedManifest, ImmutableWindow
from binlake.rows.schema import TableDef
from binlake.spark_jobs.engine.engine import Engine
from binlake.spark_jobs.engine.rows import Rows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.lake import fold_rows
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.shared.netchange import NetRows
from binlake.spark_jobs.shared.rendered import RenderedAhead
from binlake.spark_jobs.shared.sinks import (
    COMPACT_AGAIN,
    SinkWindow,
    build_compact_manifest,
    read_sql_window,
    require_merged,
)
from binlake.spark_jobs.shared.statements import LakeStatements
from binlake.target import TargetPosition, TargetSession
from binlake.target.definitions.definitions import expect_tables, read_definitions
from binlake.target.definitions.forms import Name
from binlake.target.definitions.structure import derive_shape, find_option
from binlake.window.derived import CompactManifest, read_manifest_of
from binlake.window.events import EventRow
from binlake.window.manifest import ApplyManifest

NO_ROWS = rowhash.compute_digest(rowhash.merge_folds([]))
"""The digest of zero rows."""
log = structlog.get_logger(__name__)


def open_manifest(ctx: StageContext, bounds: Bounds, position: TargetPosition) -> ApplyManifest | None:
    """The manifest of `bounds` if the target holds exactly this window open, else None.

    Raises CheckpointConflict; ImmutableWindow if its digests are of an older kind.
    """
    if position.opened is None or position.window != (bounds.lo, bounds.hi):
        return None
    written = ctx.windows.read_apply_manifests(bounds.lo, bounds.hi)
    sealed = next((manifest for manifest in written if manifest.compute_digest() == position.opened.manifest), None)
    if sealed is None:
        raise CheckpointConflict(
            "this window is open at the target with a manifest that the lake does not have",
            where={"window": bounds.window, "manifest": position.opened.manifest},
            hint="restore the state of the lake that opened it (Delta time travel of `window`)",
        )
    if not sealed.change.startswith(rowhash.VERSION):
        raise ImmutableWindow(
            "this window is open at the target, and an older version of Binlake sealed it: its digest of `change`"
            " cannot be compared with rows derived now",
            where={"window": bounds.window},
            hint="run `finalize` of this window alone, which applies it as it was sealed; or finish it with the version"
            " of Binlake that sealed it",
        )
    return sealed


def require_pinned(table: str, bounds: Bounds, pinned: str, derived: str) -> None:
    """Before a rewrite, check that the rows derived again are the pinned ones. Raises ImmutableWindow."""
    if pinned != derived:
        raise ImmutableWindow(
            f"this window is open at the target, and `{table}` would differ from what was sealed",
            where={"window": bounds.window},
            hint=f"restore `{table}` by Delta time travel, or run the version of Binlake that sealed it",
        )


def compute_rows_digest(engine: Engine, parts: Sequence[Rows], columns: list[str]) -> tuple[str, int]:
    """(digest, count) of all rows, in any order."""
    fold = fold_rows(engine, parts, columns)
    return rowhash.compute_digest(fold), fold.count


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


def read_shapes(target: TargetSection, window: SinkWindow, touched: Iterable[Name]) -> Shapes:
    """The present shapes at the target (which is at the window's lo) of tables that the window's rows or DDL touch."""
    if not may_differ(target):
        return Shapes()
    ddls = {(table.db, table.name) for ddl in window.cuts for table in ddl.before.tables}
    at_lo = (window.definitions.find_at(*name, window.bounds.lo) for name in sorted({*touched, *ddls}))
    wanted = [t for t in at_lo if t is not None and (target.sync_mode == 2 or _is_preserved(target, t))]
    return Shapes(_read_shapes(target, wanted))


def read_sealed_shapes(
    ctx: StageContext, bounds: Bounds, target: TargetSection, earlier: CompactManifest | None
) -> Shapes:
    """The shapes with which an open or passed window was sealed. Raises DamagedManifest."""
    if earlier is not None:
        return earlier.shapes
    if may_differ(target) and was_derived(ctx, bounds):
        raise DamagedManifest(
            "the record of how the target's tables differed when this window was derived is no longer readable",
            where={"window": bounds.window},
            hint="restore the lake's table `window` by Delta time travel",
        )
    return Shapes()


def may_differ(target: TargetSection) -> bool:
    """True when the configuration allows a table of the target to have another shape."""
    return target.sync_mode == 2 or any(option.preserve for option in target.tables)


def _is_preserved(target: TargetSection, table: TableDef) -> bool:
    option = find_option(target, (table.db, table.name))
    return option is not None and option.preserve


def _read_shapes(target: TargetSection, tables: list[TableDef]) -> dict[Name, TableShape]:
    expected = expect_tables(tables, target.db_type)
    with closing(TargetSession(target)) as session:
        actual = read_definitions(session, expected.names, target.db_type)
    shapes = {}
    for name, form in expected.tables.items():
        there = actual.tables.get(name)
        if form is not None and there is not None:
            shapes[name] = derive_shape(form, there, find_option(target, name), target.sync_mode)
    return {name: shape for name, shape in shapes.items() if shape}
