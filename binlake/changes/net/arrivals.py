"""Keys of a shared target in a window: which source table had them before each change, and which are new (S4-03).

The changes of each key are examined in order, over all segments in which the table has the same identity.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from binlake.base.arrowcolumns import encode_dictionary
from binlake.changes.net.events import read_key_events, split_rows_by_key_form
from binlake.changes.net.images import Ints
from binlake.changes.net.runs import start_runs
from binlake.ddl.definitions import Cell

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
