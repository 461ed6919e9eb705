"""The net changes of a window as SQL: rendered by tasks ahead of convert, or derived again where the lake has none.

convert renders them. Where a job is dear (`Engine.fuses`), compact's tasks render what they have just derived, and
convert uses it if it would render in the same way; nothing of it counts before convert commits the files.

A window that one process derives and applies needs neither `change` nor `statement`: the next stage has the rows in
memory, and another process can derive them from `mutation`. So their digests are sealed instead, and rows that are
derived again count only if they have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import structlog

from binlake.common import rowhash
from binlake.common.rowhash import Fold
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import SegmentTable, build_cell, require_definition
from binlake.errors import BinlakeError, ImmutableWindow
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.spark_jobs.engine.engine import HELD_BYTES, Engine, Keeper, LocalEngine
from binlake.spark_jobs.engine.rows import MemoryRows, read_table
from binlake.spark_jobs.job.context import Bounds, StageContext
from binlake.spark_jobs.job.pieces import MergedWindow
from binlake.spark_jobs.shared.baserows import find_base_blocks
from binlake.spark_jobs.shared.netchange import Group, HoldGroup, NetRows, WindowNetChange, WriteGroup, count_groups
from binlake.spark_jobs.shared.render import Renderer, render_blocks
from binlake.spark_jobs.shared.sinks import SinkWindow, WindowChanges, read_window_changes
from binlake.spark_jobs.shared.statements import (
    STATEMENT_ARROW,
    RenderedBatch,
    build_index,
    build_statement_table,
    quote_copy_name,
)
from binlake.statements import BatchLimits, StatementBatch
from binlake.statements.batch import INDEX, compute_digest_of_index
from binlake.target.definitions.forms import Name
from binlake.target.definitions.structure import find_option
from binlake.window.derived import CompactManifest
from binlake.window.manifest import ApplyManifest

log = structlog.get_logger(__name__)

CHANGE_ARROW = pa.schema([(field.name, field.type) for field in CHANGE.build_arrow_schema()])
_INDEX = pa.schema([STATEMENT_ARROW.field(name) for name in INDEX])


@dataclass(frozen=True)
class Rendered:
    """Statements of a window, in files of `statement` that are not committed, or in this process only.

    `index`: their columns INDEX; `change`: the fold of the rows of `change`; `held`: the statements, if this process
    has them in memory.
    """

    parts: tuple[TablePart, ...]
    index: pa.Table
    change: Fold
    held: tuple[RenderedBatch, ...] | None

    @classmethod
    def join(cls, some: Iterable[Rendered]) -> Rendered:
        """All of `some` together."""
        every = list(some)
        held = [one.held for one in every if one.held is not None]
        return cls(
            tuple(part for one in every for part in one.parts),
            pa.concat_tables([_INDEX.empty_table(), *(one.index for one in every)]),
            rowhash.merge_folds(one.change for one in every),
            tuple(batch for some in held for batch in some) if len(held) == len(every) else None,
        )


@dataclass(frozen=True)
class RenderedAhead:
    """What `renderer` made of a window's net changes, before convert has asked for it."""

    renderer: Renderer
    rendered: Rendered


def build_renderer(
    replication: str,
    window: SinkWindow,
    target: TargetSection,
    limits: BatchLimits,
    places: Iterable[SegmentTable],
    *,
    plain: bool,
) -> Renderer:
    """Renders rows of `places`; tables with extra columns at the target also need their origins."""
    tables = {place: require_definition(window.definitions, window.segments, place) for place in places}
    name = window.bounds.window
    return Renderer(
        name,
        tables,
        target.db_type,
        limits,
        plain,
        {place: quote_copy_name(target, replication, name, place) for place in tables},
        find_accepted(target, {place.name for place in tables}),
    )


def find_accepted(target: TargetSection, names: Iterable[Name]) -> frozenset[Name]:
    """Those of `names` for which the configuration accepts a difference from the source's table."""
    options = {name: find_option(target, name) for name in names}
    return frozenset(name for name, option in options.items() if option is not None and option.accept)


def hold_statements(groups: Iterable[Sequence[StatementBatch]], change: Fold) -> Rendered:
    """The batches of `groups`, in this process only."""
    held = tuple(RenderedBatch.of(batch) for batches in groups for batch in batches)
    return Rendered((), build_index([one.batch for one in held]), change, held)


def write_statements(
    window: str,
    groups: Iterable[Sequence[StatementBatch]],
    folder: str,
    keeper: Keeper,
    change: Fold | None = None,
) -> Rendered:
    """Write the batches of `groups` to a file of `statement` in `folder`, without a commit. Raises OSError."""
    held: list[RenderedBatch] = []
    indices = [_INDEX.empty_table()]
    fits = True

    def build_tables() -> Iterator[pa.Table]:
        nonlocal fits
        for batches in filter(None, groups):
            table = build_statement_table(window, batches)
            indices.append(table.select(list(INDEX)))
            fits = keeper.take(table.nbytes) and fits
            held.extend(map(RenderedBatch.of, batches if fits else ()))
            yield table

    parts = write_parts(folder, STATEMENT, build_tables())
    fold = rowhash.merge_folds([]) if change is None else change
    return Rendered(tuple(parts), pa.concat_tables(indices), fold, tuple(held) if fits else None)


@dataclass(frozen=True)
class RenderGroup:
    """Renders the rows of a group of keys, and folds them unless that is done.

    The statements go into a file of `statement` in `folder`; None: they are held in memory instead.
    """

    renderer: Renderer
    folder: str | None
    keeper: Keeper
    is_folded: bool = False

    def __call__(self, group: Group) -> Rendered:
        """Raises SchemaError, Permanent, OSError."""
        number, parts = group
        rows = read_table(parts, CHANGE_ARROW)
        fold = None if self.is_folded else rowhash.fold(rowhash.hash_rows(rows, CHANGE.list_column_names()))
        if self.folder is None:
            return hold_statements(self.renderer(number, rows), rowhash.merge_folds([]) if fold is None else fold)
        return write_statements(self.renderer.window, self.renderer(number, rows), self.folder, self.keeper, fold)


@dataclass(frozen=True)
class WriteAndRender:
    """Writes the net changes of a group of keys, and renders them."""

    write: WriteGroup
    render: RenderGroup

    def __call__(self, group: Group) -> tuple[NetRows, Sequence[Rendered] | None]:
        """No statements if they cannot be rendered: convert will meet the error. Raises SchemaError, OSError."""
        # The rows that were just written are still here, and their fold is known.
        net, kept = self.write.write(group, Keeper(HELD_BYTES))
        try:
            groups = net.groups if kept is None else net.hold(kept).groups
            made = [replace(self.render, is_folded=kept is not None)(one) for one in groups]
            return net, [replace(one, change=net.fold) for one in made]
        except BinlakeError as error:
            log.info("group_not_rendered_ahead", error=type(error).__name__, reason=str(error))
            return net, None


def write_groups(
    engine: Engine, write: WriteGroup, groups: Sequence[Group], renderer: Renderer | None, folder: str
) -> tuple[NetRows, RenderedAhead | None]:
    """Write the net changes of all `groups` (of runs), without a commit, and render them into files in `folder`.

    No statements without a `renderer`, or if a group could not be rendered. Raises SchemaError, OSError.
    """
    if renderer is None:
        return NetRows.join(engine.run(write, groups)), None
    done = engine.run(WriteAndRender(write, RenderGroup(renderer, folder, engine.build_keeper())), groups)
    net, made = NetRows.join(one for one, _ in done), [one for _, one in done]
    if any(one is None for one in made):
        return net, None
    return net, RenderedAhead(renderer, Rendered.join(each for one in made if one is not None for each in one))


def may_leave_out(engine: Engine, bounds: Bounds, changes: WindowChanges, given: MergedWindow | None) -> bool:
    """Whether this process can hold the rows derived of `changes`: it holds these, and its next stage reads them.

    A net change is not larger than the row change that it comes from, and its SQL is smaller.
    """
    if given is None or given.bounds != bounds or changes.earlier:
        return False
    return engine.holds and all(isinstance(rows, MemoryRows) for rows in given.rows)


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
