"""`spark_jobs.render` for rows that are in the driver's memory: the same phases, buckets, sizes and digests.

A window that was cut here may be cut by Spark's workers later (another `window.driver-bytes`): the batches are pinned,
so every figure that decides where a batch ends is the same there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from binlake.lake import sparkhash
from binlake.lake.dataset import dataset
from binlake.lake.paths import LakePaths
from binlake.lake.tables import CHANGE
from binlake.statement import Phase
from spark_jobs.render import BUCKETS, ENTRY_BYTES, PLACE, TEXT_FACTOR, Renderer
from spark_jobs.statements import statement_table


def placed(paths: LakePaths, window: str) -> pa.Table:
    """The rows of `change` of `window` with their phase and bucket."""
    own = ds.field("window") == window
    rows = dataset(DeltaTable(paths.table(CHANGE.name))).to_table(columns=CHANGE.column_names(), filter=own)
    deleted = pc.equal(rows["op"], "delete")
    phase = pc.if_else(deleted, pa.scalar(int(Phase.DELETE), pa.int32()), pa.scalar(int(Phase.WRITE), pa.int32()))
    buckets = [mixed % BUCKETS for mixed in sparkhash.row_hashes(rows, ["key"])]
    return rows.append_column("phase", phase).append_column("bucket", pa.array(buckets, pa.int32()))


def sizes(rows: pa.Table, columns: Sequence[str]) -> list[dict[str, Any]]:
    """As `render.sizes`: per place and bucket, in their order."""
    images = pc.coalesce(rows["after"], rows["before"]).combine_chunks()
    copies = rows["copies"].to_pylist()
    hashes = sparkhash.signed(sparkhash.row_hashes(rows, columns))
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    keys = zip(*(rows[name].to_pylist() for name in (*PLACE, "bucket")), strict=True)
    for key, text, times, mixed in zip(keys, _texts(images), copies, hashes, strict=True):
        own = found.setdefault(key, {"copies": 0, "bytes": 0, "fold0": 0, "fold1": 0, "fold2": 0})
        own["copies"] += times
        own["bytes"] += text * times
        own["fold0"] += 1
        own["fold1"] += mixed
        own["fold2"] ^= mixed
    names = (*PLACE, "bucket")
    return [
        {**dict(zip(names, key, strict=True)), "rows": max(own["fold0"], own["copies"]), **own}
        for key, own in sorted(found.items())
    ]


def rendered(renderer: Renderer, rows: pa.Table) -> pa.Table:
    """The rows of `statement` of all chunks."""
    rows = rows.append_column("anew", pa.array([False] * rows.num_rows)).append_column(
        "origin", pa.nulls(rows.num_rows, pa.string())
    )
    places = {(chunk.place, bucket): chunk for chunk in renderer.chunks.values() for bucket in chunk.buckets}
    keys = zip(*(rows[name].to_pylist() for name in PLACE), strict=True)
    numbers = [places[key, bucket].number for key, bucket in zip(keys, rows["bucket"].to_pylist(), strict=True)]
    numbered = rows.append_column("chunk", pa.array(numbers, pa.int32()))
    parts = [renderer(numbered.filter(_in(numbered, place, number))) for place, number in renderer.chunks]
    return pa.concat_tables([statement_table([]), *parts])


def _in(rows: pa.Table, place: tuple[int, int, str, str], number: int) -> pa.ChunkedArray:
    mask = pc.equal(rows["chunk"], number)
    for name, value in zip(PLACE, place, strict=True):
        mask = pc.and_(mask, pc.equal(rows[name], value))
    return mask


def _texts(images: pa.MapArray) -> list[int]:
    """Bytes of SQL that each image takes at most, as `render.sizes` counts them."""
    widths = pc.fill_null(pc.binary_length(images.items), 0).to_pylist()
    ends, total = [0], 0
    for width in widths:
        total += width
        ends.append(total)
    offsets = images.offsets.to_pylist()
    return [
        (ends[last] - ends[first]) * TEXT_FACTOR + (last - first) * ENTRY_BYTES for first, last in pairwise(offsets)
    ]
