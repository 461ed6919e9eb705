"""The net changes of a window as SQL: how its groups of keys are rendered, and the statements that tasks wrote.

convert renders them. Where a job is dear (`Engine.fuses`), compact's tasks render what they have just derived, and
convert uses it if it would render in the same way; nothing of it counts before convert commits the files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import structlog

from binlake.base import rowhash
from binlake.base.rowhash import Fold
from binlake.config.servers import TargetSection
from binlake.ddl.definitions import SegmentTable, require_definition
from binlake.errors import BinlakeError
from binlake.lake.parts import TablePart, write_parts
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.spark_jobs.engine.engine import HELD_BYTES, Engine, Keeper
from binlake.spark_jobs.engine.rows import read_table
from binlake.spark_jobs.tables.netchange import Group
from binlake.spark_jobs.tables.netrows import NetRows, WriteGroup
from binlake.spark_jobs.tables.render import Renderer
from binlake.spark_jobs.tables.sinks import SinkWindow
from binlake.spark_jobs.tables.statements import (
    STATEMENT_ARROW,
    HeldBatch,
    build_index,
    build_statement_table,
    quote_copy_name,
)
from binlake.statements import BatchLimits, StatementBatch
from binlake.statements.batch import INDEX
from binlake.target.definitions.forms import Name
from binlake.target.definitions.structure import find_option

log = structlog.get_logger(__name__)

CHANGE_ARROW = pa.schema([(field.name, field.type) for field in CHANGE.build_arrow_schema()])


@dataclass(frozen=True)
class Rendered:
    """Statements of a window, in files of `statement` that are not committed, or in this process only.

    `index`: their columns INDEX; `change`: the fold of the rows of `change`; `held`: the statements, if this process
    has them in memory.
    """

    parts: tuple[TablePart, ...]
    index: pa.Table
    change: Fold
    held: tuple[HeldBatch, ...] | None

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


_INDEX = pa.schema([STATEMENT_ARROW.field(name) for name in INDEX])


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
    held = tuple(HeldBatch.of(batch) for batches in groups for batch in batches)
    return Rendered((), build_index([one.batch for one in held]), change, held)


def write_statements(
    window: str,
    groups: Iterable[Sequence[StatementBatch]],
    folder: str,
    keeper: Keeper,
    change: Fold | None = None,
) -> Rendered:
    """Write the batches of `groups` to a file of `statement` in `folder`, without a commit. Raises OSError."""
    held: list[HeldBatch] = []
    indices = [_INDEX.empty_table()]
    fits = True

    def build_tables() -> Iterator[pa.Table]:
        nonlocal fits
        for batches in filter(None, groups):
            table = build_statement_table(window, batches)
            indices.append(table.select(list(INDEX)))
            fits = keeper.take(table.nbytes) and fits
            held.extend(map(HeldBatch.of, batches if fits else ()))
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
