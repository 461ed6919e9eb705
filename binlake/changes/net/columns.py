"""The net change of many rows as operations on Arrow columns; `changes.net.net` has the rules and the proof.

The same functions serve all sizes. The driver calls them for a small window. For a large one, each Spark task reduces
its rows to one run per key, and `binlake.spark_jobs.shared.netchange` reduces the runs of each share of the keys again.
Both ways give the same result, except for the order of its rows.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.changes.net.events import read_key_events, split_rows_by_key_form, take_places
from binlake.changes.net.images import ABSENT, MAP, Bools, Ints, complete_images, restrict_images
from binlake.changes.net.net import CONTRADICTION, CONTRADICTION_HINT
from binlake.changes.net.runs import RunImages, Runs, reduce_runs, start_runs
from binlake.common.lakecolumns import Change
from binlake.common.redaction import redact_key
from binlake.ddl.definitions import Cell, KeyForm
from binlake.errors import Permanent, SchemaError

NET = pa.schema(
    [
        (Change.SEGMENT, pa.int32()),
        (Change.DB, pa.string()),
        (Change.TABLE, pa.string()),
        (Change.KEY, pa.string()),
        (Change.IDENTITY, pa.string()),
        (Change.OP, pa.string()),
        (Change.BEFORE, MAP),
        (Change.AFTER, MAP),
        (Change.COPIES, pa.int64()),
        (Change.FIRST_COMMIT_TS, pa.int64()),
        (Change.LAST_COMMIT_TS, pa.int64()),
        (Change.MUTATIONS, pa.int64()),
    ]
)
"""The net change of one key in one segment: columns of the lake's `change`."""


def compute_net_changes(
    rows: pa.Table, cells: Sequence[Cell], *, routed: bool = False, strict: Container[Cell] = ()
) -> pa.Table:
    """NET of `rows` (of `mutation`; rows outside all cells are left out), by the form of its keys.

    op: `delete` and `replace` for keyed rows, `delete` and `insert` of `copies` rows for rows without a key. Raises
    SchemaError for a key with a NULL; if `routed`, for a key that two source tables write (hazards R-15); in the cells
    of `strict`, for a key whose changes contradict each other (S4-09).
    """
    parts = [
        compute_net_of_runs(
            reduce_runs(start_runs(read_key_events(given), given if routed else None)), cells, strict=strict
        )
        for given in split_rows_by_key_form(combine_into_batch(rows), cells)
    ]
    return pa.concat_tables([NET.empty_table(), *parts])


def compute_net_of_runs(runs: Runs, cells: Sequence[Cell], *, strict: Container[Cell] = ()) -> pa.Table:
    """NET of one run per key, all in cells with keys of one form. Raises SchemaError like `compute_net_changes`."""
    if not len(runs):
        return NET.empty_table()
    form = cells[int(runs.cells[0])].key_form
    if form.identity == "row":
        return _compute_net_rows(runs, cells, form)
    _require_one_writer(runs, cells)
    _require_possible(runs, cells, strict)
    is_there = runs.is_there
    before = complete_images(_show_where(runs.old, ~is_there).take_maps(), form.columns, form.filled)
    after = complete_images(_show_where(runs.new, is_there).take_maps(), form.columns, form.filled)
    return _build_table(
        runs, cells, form, _choose_text(is_there, "replace", "delete"), before, after, np.ones(len(runs), np.int64)
    )


def _compute_net_rows(runs: Runs, cells: Sequence[Cell], form: KeyForm) -> pa.Table:
    """The net change of rows without a key: copies added minus copies removed."""
    left = np.flatnonzero(runs.weight)
    runs = runs.take(left) if len(left) < len(runs) else runs
    came = runs.weight > 0
    before = restrict_images(_show_where(runs.old, ~came).take_maps(), form.columns, form.filled)
    after = restrict_images(_show_where(runs.new, came).take_maps(), form.columns, form.filled)
    return _build_table(runs, cells, form, _choose_text(came, "insert", "delete"), before, after, np.abs(runs.weight))


def _show_where(shown: RunImages, mask: Bools) -> RunImages:
    return RunImages(shown.images, np.where(mask, shown.rows, ABSENT))


def _choose_text(mask: Bools, text: str, other: str) -> pa.Array:
    return pc.if_else(pa.array(mask), pa.scalar(text), pa.scalar(other))


def _build_table(
    runs: Runs, cells: Sequence[Cell], form: KeyForm, op: pa.Array, before: pa.Array, after: pa.Array, copies: Ints
) -> pa.Table:
    identity = pa.repeat(form.identity, len(runs))
    times = [pa.array(one) for one in (copies, runs.first.commit_ts, runs.last.commit_ts, runs.mutations)]
    return pa.Table.from_arrays(
        [*take_places(cells, runs.cells), runs.keys, identity, op, before, after, *times], schema=NET
    )


def _require_one_writer(runs: Runs, cells: Sequence[Cell]) -> None:
    """Raise SchemaError if two tables write one key, because one would undo the other. A renamed table counts once."""
    writers = runs.writers
    if writers is None:
        return
    bad = np.flatnonzero((writers.least != writers.most) & (writers.least_id != writers.most_id))
    if bad.size:
        n = int(bad[0])
        sources = ",".join(writers.names[int(codes[n])].as_py() for codes in (writers.least, writers.most))
        raise SchemaError(
            "two tables of the source write one key of their common target",
            where={**_describe_key(runs, cells, n), "sources": sources, "commit_ts": int(runs.last.commit_ts[n])},
            hint="make the keys disjoint, or distinguish the tables by extract-table or extract-source in `routes`",
        )


def _require_possible(runs: Runs, cells: Sequence[Cell], strict: Container[Cell]) -> None:
    """In cells of `strict`: raise SchemaError if a key's changes do not agree with its first and its last change."""
    impossible = runs.weight != runs.is_there.astype(np.int64) - runs.was_there
    if not impossible.any():
        return
    bad = np.flatnonzero(impossible & np.array([cell in strict for cell in cells])[runs.cells])
    if bad.size:
        n = int(bad[0])
        where = _describe_key(runs, cells, n)
        where |= {"first_commit_ts": runs.first.commit_ts[n], "last_commit_ts": runs.last.commit_ts[n]}
        raise SchemaError(CONTRADICTION, where=where, hint=CONTRADICTION_HINT)


def _describe_key(runs: Runs, cells: Sequence[Cell], number: int) -> dict[str, object]:
    """Where the key of a run is."""
    cell = cells[int(runs.cells[number])]
    return {"table": f"{cell.db}.{cell.table}", "key": redact_key(runs.keys[number].as_py())}


def combine_into_batch(rows: pa.Table) -> pa.RecordBatch:
    """`rows` as one batch. Raises Permanent if a column does not fit into one batch (2 GiB of text)."""
    try:
        batches = rows.combine_chunks().to_batches()
    except pa.ArrowInvalid as error:
        raise _build_too_large_error(rows) from error
    if len(batches) > 1:
        raise _build_too_large_error(rows)
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=rows.schema)


def _build_too_large_error(rows: pa.Table) -> Permanent:
    return Permanent(
        "the row changes of a window are too large for one process",
        where={"rows": rows.num_rows, "bytes": rows.nbytes},
        hint="lower `window.driver-bytes`, name a Spark (`--remote` or `--master`), and run the stage again: Spark's"
        " workers then process the window",
    )
