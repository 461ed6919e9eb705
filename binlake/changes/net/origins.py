"""Where the keys of a window come from: keys that an update moved, and keys of a target that source tables share.

The value of a column that only the target has moves with its row: from the key that the row had when the segment began.

For a shared target (S4-03): which source table had a key before each change, and which keys are new. The changes of
each key are examined in order, over all segments in which the table has the same identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from binlake.changes.net.events import PLACE, read_key_events, split_rows_by_key_form, take_places
from binlake.changes.net.images import POSITION, Ints
from binlake.changes.net.runs import start_runs
from binlake.common.arrowcolumns import encode_dictionary
from binlake.ddl.definitions import Cell


def trace_origins(moves: Iterable[tuple[str, str]]) -> dict[str, str | None]:
    """Key -> the different key that its row had before the segment; None: the row is new.

    `moves`: (old key, new key) in commit order. No two keys have the same origin, so unique values stay unique.
    """
    origins: dict[str, str | None] = {}
    for old, new in moves:
        origins[new] = origins.get(old, old)
        origins[old] = None
    return {key: origin for key, origin in origins.items() if origin != key}


MOVES = pa.schema(
    [*PLACE, *((name, pa.int64()) for name in POSITION), ("old_key", pa.string()), ("new_key", pa.string())]
)
ORIGINS = pa.schema([*PLACE, ("key", pa.string()), ("origin", pa.string())])
"""A key whose row had another key before the segment, or (NULL) whose row is new."""


def find_moves(batch: pa.RecordBatch, cells: Sequence[Cell]) -> pa.Table:
    """MOVES of the rows of `batch` (of `mutation`) in `cells`. Raises SchemaError for a NULL in a key."""
    keyed = [cell for cell in cells if cell.identity != "row"]
    parts = [MOVES.empty_table()]
    for given in split_rows_by_key_form(batch, keyed):
        events = read_key_events(given)
        ended, came = (np.flatnonzero(mask) for mask in (events.ends, events.comes))
        # A row has one event, or two if it changes its key.
        _, old, new = np.intersect1d(events.rows[ended], events.rows[came], assume_unique=True, return_indices=True)
        at = events.positions.take(ended[old])
        keys = [events.keys.take(pa.array(numbers)) for numbers in (ended[old], came[new])]
        columns = [pa.array(column, pa.int64()) for column in at.columns]
        places = take_places(keyed, events.cells[ended[old]])
        parts.append(pa.Table.from_arrays([*places, *columns, *keys], schema=MOVES))
    return pa.concat_tables(parts)


def find_origins(moved: pa.Table) -> pa.Table:
    """ORIGINS of the tables and segments whose moves are all in `moved`."""
    parts = [ORIGINS.empty_table()]
    for (segment, db, table), rows in _split_by_cell(moved):
        origins = trace_origins(zip(rows["old_key"].to_pylist(), rows["new_key"].to_pylist(), strict=True))
        cell_name = (pa.scalar(segment, pa.int32()), db, table)
        cell_columns = [pa.repeat(value, len(origins)) for value in cell_name]
        keys = [pa.array(texts, pa.string()) for texts in (list(origins), list(origins.values()))]
        parts.append(pa.Table.from_arrays([*cell_columns, *keys], schema=ORIGINS))
    return pa.concat_tables(parts)


def _split_by_cell(moved: pa.Table) -> Iterator[tuple[tuple[int, str, str], pa.Table]]:
    """The moves of each cell, in order."""
    names = [name for name, _ in PLACE]
    ordered = moved.sort_by([(name, "ascending") for name in (*names, *POSITION)])
    first = 0
    # group_by returns groups in any order, even if the rows are sorted.
    counts = ordered.group_by(names, use_threads=False).aggregate([([], "count_all")])
    for one in counts.sort_by([(name, "ascending") for name in names]).to_pylist():
        yield tuple(one[name] for name in names), ordered.slice(first, one["count_all"])
        first += one["count_all"]


History = tuple[str, str, tuple[str, ...]]
"""Database, table, columns of the identity. Changes with the same history share their keys."""

STEPS = pa.schema(
    [
        ("history", pa.int32()),
        ("key", pa.string()),
        ("commit_ts", pa.int64()),
        ("start_ts", pa.int64()),
        ("seq", pa.int64()),
        ("is_there", pa.bool_()),
        ("comes", pa.bool_()),
        ("source", pa.string()),
        ("table_id", pa.int64()),
    ]
)
"""One change of a key: whether the row exists after it, whether the row is new, and which source table made it."""
ARRIVALS = pa.schema(
    [
        ("history", pa.int32()),
        ("key", pa.string()),
        ("source", pa.string()),
        ("table_id", pa.int64()),
        ("commit_ts", pa.int64()),
        ("other_source", pa.string()),
        ("other_commit_ts", pa.int64()),
    ]
)
"""A key whose first change adds its row. With `other_source`: a key that `source` writes while `other_source` has
it."""


def number_histories(cells: Sequence[Cell]) -> dict[History, int]:
    """The number of each history of keyed `cells`."""
    numbered = dict.fromkeys((cell.db, cell.table, cell.columns) for cell in cells if cell.identity != "row")
    return {history: number for number, history in enumerate(numbered)}


def derive_key_steps(batch: pa.RecordBatch, cells: Sequence[Cell], numbers: Mapping[History, int]) -> pa.Table:
    """STEPS of the rows of `batch` (of `mutation`, with SOURCE) in keyed `cells`. Raises SchemaError."""
    keyed = [cell for cell in cells if cell.identity != "row"]
    by_cell = np.array([numbers[cell.db, cell.table, cell.columns] for cell in keyed])
    parts = []
    for given in split_rows_by_key_form(batch, keyed):
        runs = start_runs(events := read_key_events(given), given)
        if runs.writers is None:
            continue
        history = pa.array(by_cell[runs.cells], pa.int32())
        positions = [pa.array(column, pa.int64()) for column in runs.first.columns]
        flags = [pa.array(runs.is_there), pa.array(events.comes), runs.writers.names.take(pa.array(runs.writers.least))]
        columns = [history, runs.keys, *positions, *flags, pa.array(runs.writers.least_id)]
        parts.append(pa.Table.from_arrays(columns, schema=STEPS))
    return pa.concat_tables([STEPS.empty_table(), *parts])


def find_arrivals(steps: pa.Table) -> pa.Table:
    """ARRIVALS among all STEPS of some keys, by history and key."""
    steps = steps.combine_chunks()
    sources = encode_dictionary(steps["source"])
    keys, source = _encode_keys(steps["key"]), np.asarray(sources.indices)
    columns = [np.asarray(steps[name]) for name in ("seq", "start_ts", "commit_ts")]
    history, table_id = np.asarray(steps["history"]), np.asarray(steps["table_id"])
    order = np.lexsort((*columns, keys, history))
    later, earlier = order[1:], order[:-1]
    same = (history[later] == history[earlier]) & (keys[later] == keys[earlier])
    occupied = same & np.asarray(steps["is_there"])[earlier]
    clash = occupied & (source[later] != source[earlier]) & (table_id[later] != table_id[earlier])
    first = np.append(True, ~same)[: len(order)] & np.asarray(steps["comes"])[order]
    clashing = np.append(-1, np.where(clash, earlier, -1))[: len(order)]
    at = np.flatnonzero(first | (clashing >= 0))
    return _select_arrivals(steps, order[at], clashing[at])


def _encode_keys(keys: pa.ChunkedArray) -> Ints:
    return np.asarray(encode_dictionary(keys).indices)


def _select_arrivals(steps: pa.Table, rows: Ints, clashing: Ints) -> pa.Table:
    columns = steps.select(["history", "key", "source", "table_id", "commit_ts"]).take(pa.array(rows))
    others = steps.select(["source", "commit_ts"]).take(pa.array(clashing, mask=clashing < 0))
    return pa.Table.from_arrays([*columns.columns, *others.columns], schema=ARRIVALS)
