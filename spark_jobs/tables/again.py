"""Rows of `change` and `statement` that are not in the lake: when they are left out, and how they are derived again.

A window that one process derives and applies needs neither table: the next stage has the rows in memory, and another
process can derive them from `mutation`. So their digests are sealed instead, and rows that are derived again count only
if they have them.
"""

from __future__ import annotations

from dataclasses import replace

from binlake.base import rowhash
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import build_cell
from binlake.errors import ImmutableWindow
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.spark_jobs.engine.engine import Engine, Keeper, LocalEngine
from binlake.spark_jobs.engine.rows import HeldRows
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.passed import MergedWindow
from binlake.spark_jobs.tables.baserows import find_base_blocks
from binlake.spark_jobs.tables.held import WindowChanges, read_window_changes
from binlake.spark_jobs.tables.netchange import WindowNetChange, count_groups
from binlake.spark_jobs.tables.netrows import HoldGroup, NetRows
from binlake.spark_jobs.tables.render import render_blocks
from binlake.spark_jobs.tables.rendered import Rendered, RenderGroup, build_renderer, hold_statements
from binlake.spark_jobs.tables.sinks import SinkWindow
from binlake.statements import BatchLimits
from binlake.statements.batch import compute_digest_of_index
from binlake.window.derived import CompactManifest
from binlake.window.manifest import ApplyManifest


def may_leave_out(engine: Engine, bounds: Bounds, changes: WindowChanges, given: MergedWindow | None) -> bool:
    """Whether this process can hold the rows derived of `changes`: it holds these, and its next stage reads them.

    A net change is not larger than the row change that it comes from, and its SQL is smaller.
    """
    if given is None or given.bounds != bounds or changes.earlier:
        return False
    return engine.holds and all(isinstance(rows, HeldRows) for rows in given.rows)


def derive_net_again(
    ctx: StageContext, window: SinkWindow, sealed: CompactManifest, digest: str, given: MergedWindow | None = None
) -> NetRows:
    """The rows of `change` of which only the `digest` was sealed, in memory. Raises ImmutableWindow if they differ."""
    engine, bounds = LocalEngine(), window.bounds
    changes = read_window_changes(ctx, engine, bounds, sealed.merged.rows, given)
    places = changes.find_touched(window.segments.starts) if changes else []
    cells = [build_cell(window.definitions, window.segments, place) for place in places]
    if sealed.base:
        blocks = find_base_blocks(changes.rows if changes else [], cells)
        whole = NetRows.of_blocks(blocks or (), cells)
        _require(CHANGE.name, bounds, digest, rowhash.compute_digest(whole.fold))
        return whole
    groups = count_groups(sealed.merged.rows, ctx.measure(bounds))
    net = WindowNetChange(changes.rows if changes else [], cells, groups, bool(ctx.rules.routes), frozenset())
    with engine.open_store(ctx.paths, "again") as store:
        reduce, inputs = net.prepare(engine, store)
        made = NetRows.join(engine.run(HoldGroup(reduce, bounds.window), inputs))
    _require(CHANGE.name, bounds, digest, rowhash.compute_digest(made.fold))
    return made


def render_again(
    ctx: StageContext, window: SinkWindow, target: TargetSection, manifest: ApplyManifest, net: NetRows
) -> Rendered:
    """The statements of `net` of which `manifest` seals only the digest, in memory. Raises ImmutableWindow."""
    limits, plain = BatchLimits(*manifest.limits), manifest.safe_mode == "plain"
    renderer = build_renderer(ctx.replication.name, window, target, limits, net.sizes, plain=plain)
    # What is accepted now need not have been then: a window with such tables is not left out.
    renderer = replace(renderer, accepted=frozenset())
    if net.blocks:
        made = hold_statements(render_blocks(renderer, net.blocks), net.fold)
    else:
        task = RenderGroup(renderer, None, Keeper(0), is_folded=True)
        made = Rendered.join(LocalEngine().run(task, net.groups))
    _require(STATEMENT.name, window.bounds, manifest.statement, compute_digest_of_index(made.index.to_pylist()))
    return made


def _require(table: str, bounds: Bounds, sealed: str, derived: str) -> None:
    if sealed != derived:
        raise ImmutableWindow(
            f"the rows of `{table}` were not written, and those derived again differ from what was sealed",
            where={"window": bounds.window, "sealed": sealed, "derived": derived},
            hint="if the target holds the window open: run the version of Binlake that sealed it, with the file of the"
            " replication as it was then; or restore `mutation` by Delta time travel; else run compact and convert"
            " again",
        )
