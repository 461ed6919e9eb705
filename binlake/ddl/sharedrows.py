"""Rows of `mutation` of tables that share a target: the columns that routes add to them, and which wait for a DDL.

Added are extract columns, and columns of other tables with the same target, in one pass over Arrow batches, in the
driver and in tasks. Rows of other tables do not change.

Held rows, whose table waits for the DDL of another one, are left out of their window. A released row gets the commit_ts
of the DDL that released it, and its original commit_ts replaces its start_ts, so that the rows of a table keep their
order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.common.lakecolumns import Mutation
from binlake.ddl.shardlocks import Hold, Locks, Name, as_table
from binlake.ddl.targets import Naming, TargetTables
from binlake.rows.codec.encode import derive_filled_text
from binlake.rows.schema import SchemaState, TableDef, WindowSchemas
from binlake.rows.schema.forms import fold_pair

_Values = dict[str, str]
Ints = NDArray[np.int64]
_IMAGES = (Mutation.BEFORE, Mutation.AFTER)
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Extra:
    """Columns for rows of the source's `db`.`table` with since <= commit_ts < until."""

    db: str
    table: str
    since: int
    until: int
    values: _Values


def list_extras(schemas: WindowSchemas, naming: Naming, locks: Locks | None = None, lo: int = 0) -> list[Extra]:
    """All extras of the rows of a window above `lo`; empty without routes. Raises ConfigError.

    `locks`: the window's holds. A held row gets the columns that it lacks of the definition with which it is released.
    """
    extras: list[Extra] = []
    if not naming.rules.routes:
        return extras
    open_at: dict[tuple[str, str], Extra] = {}
    for since, until, state in schemas.iterate_spans():
        # The first span begins at the window's start; an operator's command at lo takes effect from the first row on.
        start, locked = max(since, lo + 1), locks or Locks()
        wanted = {
            (table.db, table.name): values
            for table, values in _find_extras_of_state(
                state, naming, locked.list_definitions_at(start), locked.list_held_tables(start)
            )
        }
        for name, extra in list(open_at.items()):
            if wanted.get(name) != extra.values:
                extras.append(open_at.pop(name))
        for name, values in wanted.items():
            began = open_at[name].since if name in open_at else since
            open_at[name] = Extra(*name, began, until, values)
    return [*extras, *open_at.values()]


def _find_extras_of_state(
    state: SchemaState, naming: Naming, shown: Mapping[Name, TableDef], held: Collection[Name]
) -> Iterator[tuple[TableDef, _Values]]:
    tables = TargetTables(state, naming, shown)
    shared = {source.id: group for group in tables.list_shared() for source in group}
    for table in _list_candidates(state, naming, shared):
        extracted = naming.rules.routes.extract_columns(table.db, table.name, table.source)
        values = {e.column: e.value for e in extracted}
        if table.id in shared and (table.db, table.name) not in held:
            known = shown.get(fold_pair((table.db, table.name)))
            target = naming.merge(shared[table.id]) if known is None else naming.map_definition(as_table(known, table))
            values |= _find_missing_values(table, target)
        if values:
            yield table, values


def _list_candidates(state: SchemaState, naming: Naming, shared: Collection[int]) -> list[TableDef]:
    """The replicated tables whose rows may get columns; only if rows tell where they come from, this can be any."""
    if naming.rules.routes.extracts:
        return naming.select_replicated(state.list_tables())
    return naming.select_replicated(table for key in sorted(shared) if (table := state.get_table(key)) is not None)


def _find_missing_values(table: TableDef, target: TableDef) -> _Values:
    """The columns that `table` lacks at its target, with their origin defaults from the table that has them."""
    lacking = [column for column in target.row_columns if table.find_column(column.name) is None]
    texts = {column.name: derive_filled_text(column) for column in lacking}
    return {name: text for name, text in texts.items() if text is not None}


def add_columns(batch: pa.RecordBatch, added: Sequence[Extra]) -> pa.RecordBatch:
    """`batch` with the columns `added` appended to both images."""
    of = np.full(batch.num_rows, -1)
    for number, extra in enumerate(added):
        of[_find_rows(batch, extra)] = number
    if (of < 0).all():
        return batch
    for name in _IMAGES:
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), _append_values(batch[name], of, added))
    return batch


def _find_rows(batch: pa.RecordBatch, extra: Extra) -> Ints:
    here = [
        pc.equal(batch[Mutation.SOURCE_DB], extra.db),
        pc.equal(batch[Mutation.SOURCE_TABLE], extra.table),
        pc.greater_equal(batch[Mutation.COMMIT_TS], extra.since),
        pc.less(batch[Mutation.COMMIT_TS], extra.until),
    ]
    return np.flatnonzero(np.logical_and.reduce([mask.to_numpy(zero_copy_only=False) for mask in here]))


def _append_values(maps: Any, extra_of: Ints, added: Sequence[Extra]) -> Any:
    """Append to each map n the values of extra `extra_of[n]`. Maps with -1 and NULL maps do not change."""
    bounds, null = np.asarray(maps.offsets).astype(np.int64), np.asarray(maps.is_null())
    counts = np.asarray([*(len(extra.values) for extra in added), 0])
    sizes, more = np.where(null, 0, np.diff(bounds)), np.where(null, 0, counts[extra_of])
    ends = (sizes + more).cumsum()
    starts, firsts = ends - sizes - more, (counts.cumsum() - counts)[extra_of] + len(maps.keys)
    index = np.empty(int(ends[-1]), np.int64)
    index[_expand_ranges(starts, sizes)] = _expand_ranges(bounds[:-1], sizes)
    index[_expand_ranges(starts + sizes, more)] = _expand_ranges(firsts, more)
    names = [name for extra in added for name in extra.values]
    values = [value for extra in added for value in extra.values.values()]
    keys = pa.concat_arrays([maps.keys, pa.array(names, pa.string())]).take(pa.array(index))
    items = pa.concat_arrays([maps.items, pa.array(values, pa.string())]).take(pa.array(index))
    offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32), pa.int32(), mask=np.append(null, False))
    return pa.MapArray.from_arrays(offsets, keys, items)


def _expand_ranges(starts: Ints, sizes: Ints) -> Ints:
    """All numbers of the ranges with these `starts` and `sizes`."""
    moved: Ints = np.repeat(starts - (sizes.cumsum() - sizes), sizes)
    return moved + np.arange(len(moved))


class ReleasedRange(NamedTuple):
    """Rows of the source table `source` with lo < commit_ts <= hi, which a later window releases."""

    source: Name
    lo: int
    hi: int


def find_released_ranges(holds: Iterable[Hold], lo: int, hi: int) -> list[ReleasedRange]:
    """The ranges of earlier rows that the window (lo, hi] releases and must read."""
    return [
        ReleasedRange(hold.source, hold.since - 1, min(hold.compute_end(lo) - 1, lo))
        for hold in holds
        if lo < hold.released <= hi and hold.since <= lo
    ]


def apply_holds(rows: pa.Table, holds: Sequence[Hold], hi: int) -> pa.Table:
    """`rows` for a window that ends at `hi`: without held rows, with released rows at their DDL."""
    return pa.Table.from_batches(
        [part for batch in rows.to_batches() for part in _apply_holds_to(batch, holds, hi)], rows.schema
    )


def _apply_holds_to(batch: pa.RecordBatch, holds: Sequence[Hold], hi: int) -> Iterator[pa.RecordBatch]:
    commits, starts = (np.array(batch.column(name)) for name in (Mutation.COMMIT_TS, Mutation.START_TS))
    rows_of_holds = [(hold, _find_held_rows(batch, commits, hold, hi)) for hold in holds]
    rows_of_holds = [(hold, rows) for hold, rows in rows_of_holds if rows.any()]
    if not rows_of_holds:
        yield batch
        return
    extras = [
        Extra(*hold.source, hold.since, hold.compute_end(hi), dict(hold.filled))
        for hold, _ in rows_of_holds
        if hold.filled
    ]
    batch = add_columns(batch, extras) if extras else batch
    free = np.ones(batch.num_rows, np.bool_)
    for hold, rows in rows_of_holds:
        if hold.waits or hold.released > hi:
            free &= ~rows
            continue
        starts[rows] = commits[rows]
        commits[rows] = hold.released
    for name, values in ((Mutation.COMMIT_TS, commits), (Mutation.START_TS, starts)):
        place = batch.schema.get_field_index(name)
        batch = batch.set_column(place, batch.schema.field(place), pa.array(values, pa.int64()))
    yield batch if free.all() else batch.filter(pa.array(free))


def _find_held_rows(batch: pa.RecordBatch, commits: NDArray[np.int64], hold: Hold, hi: int) -> Bools:
    names = zip((Mutation.SOURCE_DB, Mutation.SOURCE_TABLE), hold.source, strict=True)
    rows: Bools = (commits >= hold.since) & (commits < hold.compute_end(hi))
    if not rows.any():
        return rows
    for name, value in names:
        rows &= np.asarray(pc.equal(batch.column(name), value).to_numpy(zero_copy_only=False))
    return rows
