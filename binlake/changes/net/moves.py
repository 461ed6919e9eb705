"""The updates of a window that change a key, and the origins of keys that follow from them.

The value of a column that only the target has moves with its row: from the key that the row had when the segment began.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from binlake.changes.net.events import PLACE, read_key_events, split_rows_by_key_form, take_places
from binlake.changes.net.positions import POSITION
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
