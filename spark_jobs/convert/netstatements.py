"""The net changes of a window as SQL, for all modes except ordered: one task for each group of keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from binlake.base import rowhash
from binlake.base.lakecolumns import Change
from binlake.base.rowhash import Fold
from binlake.config.model import Target
from binlake.lake.parts import Part, write_parts
from binlake.lake.tables import CHANGE, STATEMENT
from binlake.statements.digests import INDEX
from binlake.target import make_too_many_rows_error
from binlake.target.definitions.forms import Name
from binlake.target.definitions.shape import find_option
from binlake.window.definitions import SegmentTable, require_definition
from spark_jobs.convert.keeping import find_origins
from spark_jobs.convert.render import Renderer
from spark_jobs.engine.blocks import Store
from spark_jobs.engine.engine import Engine, Keeper
from spark_jobs.engine.exchange import Split, exchange
from spark_jobs.engine.lakerows import list_window_rows
from spark_jobs.engine.rows import Rows, read_table
from spark_jobs.job.context import StageContext
from spark_jobs.tables.compacted import Compacted
from spark_jobs.tables.held import read_window_changes
from spark_jobs.tables.netchange import count_groups, find_groups
from spark_jobs.tables.netrows import Group, measure_sizes, sum_sizes
from spark_jobs.tables.statements import STATEMENT_ARROW, quote_copy_name

CHANGE_ARROW = pa.schema([(field.name, field.type) for field in CHANGE.build_arrow_schema()])


@dataclass(frozen=True)
class Rendered:
    """Statements of a window, in files of `statement` that are not committed.

    `index`: their columns INDEX; `change`: the fold of the rows of `change`; `rows`: the statements, if this process
    has them in memory.
    """

    parts: tuple[Part, ...]
    index: pa.Table
    change: Fold
    rows: pa.Table | None

    @classmethod
    def join(cls, some: Iterable[Rendered]) -> Rendered:
        """All of `some` together."""
        every = list(some)
        held = [one.rows for one in every if one.rows is not None]
        return cls(
            tuple(part for one in every for part in one.parts),
            pa.concat_tables([_INDEX.empty_table(), *(one.index for one in every)]),
            rowhash.merge_folds(one.change for one in every),
            pa.concat_tables([STATEMENT_ARROW.empty_table(), *held]) if len(held) == len(every) else None,
        )


_INDEX = pa.schema([STATEMENT_ARROW.field(name) for name in INDEX])


def write_statements(tables: Iterable[pa.Table], folder: str, keeper: Keeper, change: Fold | None = None) -> Rendered:
    """Write `tables` of statements to a file of `statement` in `folder`, without a commit. Raises OSError."""
    kept: list[pa.Table] = []
    indices = [_INDEX.empty_table()]

    def note_index() -> Iterator[pa.Table]:
        for table in tables:
            if table.num_rows:
                indices.append(table.select(list(INDEX)))
                yield table

    parts = write_parts(folder, STATEMENT, keeper.keep(note_index(), kept))
    index = pa.concat_tables(indices)
    rows = pa.concat_tables([STATEMENT_ARROW.empty_table(), *kept])
    fold = rowhash.merge_folds([]) if change is None else change
    return Rendered(tuple(parts), index, fold, rows if rows.num_rows == index.num_rows else None)


@dataclass(frozen=True)
class RenderGroup:
    """Renders the rows of a group of keys into a file of `statement` in `folder`."""

    renderer: Renderer
    folder: str
    keeper: Keeper

    def __call__(self, group: Group) -> Rendered:
        """Raises SchemaError, Permanent, OSError."""
        number, parts = group
        rows = read_table(parts, CHANGE_ARROW)
        fold = rowhash.fold(rowhash.hash_rows(rows, CHANGE.list_column_names()))
        return write_statements(self.renderer(number, rows), self.folder, self.keeper, fold)


def render_net_statements(
    ctx: StageContext, engine: Engine, given: Compacted, target: Target, renderer: Renderer
) -> Rendered:
    """The statements of `change`, and the fold of its rows; `renderer` has no tables yet.

    Raises Permanent, SchemaError.
    """
    window, bounds = given.window, given.window.bounds
    with engine.open_store(ctx.paths, "convert") as store:
        groups, sizes = _list_groups(ctx, engine, store, given)
        if target.mode == "atomic":
            _require_segments(sizes, target.max_segment_rows, bounds.window)
        tables = {place: require_definition(window.definitions, window.segments, place) for place in sizes}
        copies = {place: quote_copy_name(target, ctx.replication.name, bounds.window, place) for place in tables}
        accepted = find_accepted(target, {place.name for place in tables})
        renderer = replace(renderer, tables=tables, copies=copies, accepted=accepted)
        if any(table.kept for table in tables.values()):
            changes = read_window_changes(ctx, engine, bounds, given.manifest.merged.rows, given.merged)
            if changes is not None:
                renderer = replace(renderer, origins=find_origins(engine, changes, window, tables))
        folder = ctx.paths.locate_table(STATEMENT.name)
        return Rendered.join(engine.run(RenderGroup(renderer, folder, engine.make_keeper()), groups))


def _list_groups(
    ctx: StageContext, engine: Engine, store: Store, given: Compacted
) -> tuple[Sequence[Group], Mapping[SegmentTable, int]]:
    """(the rows of `change` by group, their number by place): from compact in this process, else from the lake."""
    if given.net is not None:
        return given.net.groups, given.net.sizes
    bounds = given.window.bounds
    groups = count_groups(given.manifest.merged.rows, ctx.measure(bounds))
    parts = list_window_rows(ctx.paths, CHANGE, bounds.window, engine.task_bytes)
    exchanged = exchange(engine, store, _SplitByGroup(groups), parts)
    return list(exchanged.shares.items()), sum_sizes(exchanged.found)


@dataclass(frozen=True)
class _SplitByGroup:
    groups: int

    def __call__(self, rows: Rows) -> Split[dict[SegmentTable, int]]:
        table = read_table([rows], CHANGE_ARROW)
        return Split([(table, find_groups(table[Change.KEY], self.groups))], measure_sizes(table))


def find_accepted(target: Target, names: Iterable[Name]) -> frozenset[Name]:
    """Those of `names` for which the configuration accepts a difference from the source's table."""
    options = {name: find_option(target, name) for name in names}
    return frozenset(name for name, option in options.items() if option is not None and option.accept)


def _require_segments(sizes: Mapping[SegmentTable, int], most: int, window: str) -> None:
    """Check that every segment fits into one transaction. Raises Permanent before anything is sealed (hazards R-30)."""
    rows: Counter[int] = Counter()
    for place, count in sizes.items():
        rows[place.segment] += count
    for segment, count in sorted(rows.items()):
        if count > most:
            raise make_too_many_rows_error(window, segment, count, most)
