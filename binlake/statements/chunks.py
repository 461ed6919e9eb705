"""Cut the net changes of a window into chunks of rows that one call renders; all callers get the same chunks.

The driver calls these functions with a whole small window, Spark's workers with the batches of a large one. The content
of a chunk depends only on the rows: hash buckets of the key's beginning, in order, up to a number of rows and bytes.
Batches are pinned, so the chunks must not depend on the process that has the rows, or on the order of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from binlake.base.dictionaries import encode_dictionary
from binlake.base.lakecolumns import Change
from binlake.base.rowhash import hash_rows
from binlake.statements.batch import Phase
from binlake.statements.limits import BatchLimits

BUCKETS = 64
CHUNK_ROWS = 50_000
CHUNK_BYTES = 64 << 20

TEXT_FACTOR = 4
"""Most bytes of SQL per byte of text: escapes double it, hex and float conditions take more."""
ENTRY_BYTES = 300
"""Most bytes of SQL per column besides its text, for names and punctuation."""

CHUNK_KEY = (Change.SEGMENT, "phase", Change.DB, Change.TABLE)
SIZES = pa.schema(
    [
        (Change.SEGMENT, pa.int32()),
        ("phase", pa.int32()),
        (Change.DB, pa.string()),
        (Change.TABLE, pa.string()),
        ("bucket", pa.int32()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)
"""For a chunk key and bucket: the number of rows, and the most bytes that their SQL can have."""

Ints = NDArray[np.int64]

_IGNORED_KEY_BYTES = len('00"]')
"""Number of final bytes of a key that its bucket ignores; if it were more, one bucket would get too many large rows."""
_RENUMBER_ABOVE = 1 << 31
"""Codes are renumbered above this number of combinations, far below the numbers whose product would overflow."""


class ChunkKey(NamedTuple):
    """Rows of one table in one phase of a segment (CHUNK_KEY)."""

    segment: int
    phase: int
    db: str
    table: str


@dataclass(frozen=True)
class Chunk:
    """Rows of one `key` that one call renders: their hash `buckets`, and their first and last batch number."""

    key: ChunkKey
    buckets: tuple[int, ...]
    first_batch: int
    last_batch: int


def add_chunk_keys(changes: pa.Table) -> pa.Table:
    """Add the phase and bucket to rows of `change`."""
    deleted = pc.equal(changes[Change.OP], "delete")
    phase = pc.if_else(deleted, pa.scalar(int(Phase.DELETE), pa.int32()), pa.scalar(int(Phase.WRITE), pa.int32()))
    return changes.append_column("phase", phase).append_column("bucket", pa.array(_hash_buckets(changes[Change.KEY])))


def _hash_buckets(keys: Any) -> NDArray[np.int32]:
    """The bucket of each key (JSON); keys that differ only in their last two bytes have the same bucket.

    So a batch gets neighbouring keys, which a server writes to few pages and counts in few ranges.
    """
    beginnings = pc.binary_slice(keys.cast(pa.binary()), 0, -_IGNORED_KEY_BYTES)
    hashes = hash_rows(pa.table({Change.KEY: beginnings}), [Change.KEY])
    return (hashes % np.uint64(BUCKETS)).astype(np.int32)


def measure_sizes(rows: pa.Table) -> pa.Table:
    """SIZES of rows with chunk keys."""
    codes, keys = number_values(rows, CHUNK_KEY)
    groups = codes * BUCKETS + np.asarray(rows["bucket"])
    copies, text = np.asarray(rows[Change.COPIES]), _measure_text_bytes(rows)
    present = np.flatnonzero(np.bincount(groups, minlength=1))
    counted = [np.bincount(groups, weights, 1)[present].astype(np.int64) for weights in (copies, text * copies)]
    sizes = keys.take(pa.array(present // BUCKETS))
    columns = [*sizes.columns, *map(pa.array, ((present % BUCKETS).astype(np.int32), *counted))]
    return pa.Table.from_arrays(columns, schema=SIZES)


def sum_sizes(parts: pa.Table) -> list[dict[str, Any]]:
    """SIZES of all rows from those of their parts, in order of key and bucket."""
    names = (*CHUNK_KEY, "bucket")
    summed = parts.group_by(list(names)).aggregate([("rows", "sum"), ("bytes", "sum")])
    sizes = summed.rename_columns({"rows_sum": "rows", "bytes_sum": "bytes"}).to_pylist()
    return sorted(sizes, key=lambda row: tuple(row[name] for name in names))


def cut_chunks(counted: Sequence[Mapping[str, Any]], limits: BatchLimits) -> list[Chunk]:
    """Chunks in order of their keys; batch numbers in a (segment, phase) do not overlap. `counted`: from
    `sum_sizes`."""
    chunks: list[Chunk] = []
    for _, phase in groupby(counted, key=lambda row: (row[Change.SEGMENT], row["phase"])):
        first = 0
        for key, rows in groupby(phase, key=lambda row: ChunkKey(*(row[name] for name in CHUNK_KEY))):
            for part in _split_rows(list(rows)):
                size, text = sum(row["rows"] for row in part), sum(row["bytes"] for row in part)
                # Two neighbouring batches that were cut by bytes have together more bytes than one limit.
                last = first + size // limits.rows + 1 + 2 * (text // limits.bytes + 1)
                chunks.append(Chunk(key, tuple(row["bucket"] for row in part), first, last))
                first = last + 1
    return chunks


def number_chunks(rows: pa.Table, chunks: Sequence[Chunk]) -> Ints:
    """The number of each row's chunk in `chunks`; `rows` have chunk keys."""
    codes, keys = number_values(rows, CHUNK_KEY)
    numbers = np.full((keys.num_rows, BUCKETS), -1)
    codes_of_keys = {tuple(key.values()): code for code, key in enumerate(keys.to_pylist())}
    for number, chunk in enumerate(chunks):
        if chunk.key in codes_of_keys:
            numbers[codes_of_keys[chunk.key], list(chunk.buckets)] = number
    result: Ints = numbers[codes, np.asarray(rows["bucket"])]
    return result


def split_by_chunk(rows: pa.Table, numbers: Ints, count: int) -> list[pa.Table]:
    """The rows of each of `count` chunks, by their `numbers`, in any order."""
    if (np.diff(numbers) < 0).any():
        order = np.argsort(numbers, kind="stable")
        rows, numbers = rows.take(pa.array(order)), numbers[order]
    ends = np.searchsorted(numbers, np.arange(count + 1))
    return [rows.slice(int(start), int(stop - start)) for start, stop in pairwise(ends)]


def _split_rows(rows: list[Mapping[str, Any]]) -> Iterable[list[Mapping[str, Any]]]:
    part: list[Mapping[str, Any]] = []
    for row in rows:
        full = sum(r["rows"] for r in part) >= CHUNK_ROWS or sum(r["bytes"] for r in part) >= 4 * CHUNK_BYTES
        if part and full:
            yield part
            part = []
        part.append(row)
    yield part


def number_values(rows: pa.Table, names: Sequence[str]) -> tuple[Ints, pa.Table]:
    """Number the distinct values of the columns `names`: (each row's number, the values by number)."""
    codes: Ints = np.zeros(rows.num_rows, np.int64)
    most = 1
    for name in names:
        encoded = encode_dictionary(rows[name])
        codes = codes * len(encoded.dictionary) + np.asarray(encoded.indices)
        most *= len(encoded.dictionary)
        if most > _RENUMBER_ABOVE:
            # Number only the combinations that occur, so that the codes do not overflow.
            codes, most = _renumber(codes), rows.num_rows
    codes = _renumber(codes)
    some = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    some[codes] = np.arange(rows.num_rows)
    return codes, rows.select(list(names)).take(pa.array(some))


def _renumber(codes: Ints) -> Ints:
    """Number distinct codes from 0 on, without a gap."""
    return np.asarray(encode_dictionary(pa.array(codes)).indices).astype(np.int64)


def _measure_text_bytes(rows: pa.Table) -> Ints:
    """The most bytes of SQL for each row, by its final image, or if it has none, by its first one."""
    parts = [
        _measure_image_bytes(batch[Change.AFTER], batch[Change.BEFORE])
        for batch in rows.select([Change.AFTER, Change.BEFORE]).to_batches()
    ]
    return np.concatenate([np.empty(0, np.int64), *parts])


def _measure_image_bytes(after: pa.MapArray, before: pa.MapArray) -> Ints:
    if not after.null_count:
        return _measure_map_bytes(after)
    if after.null_count == len(after):
        return _measure_map_bytes(before)
    return np.where(np.asarray(after.is_valid()), _measure_map_bytes(after), _measure_map_bytes(before))


def _measure_map_bytes(maps: pa.MapArray) -> Ints:
    offsets = np.asarray(maps.offsets)
    items = maps.items[offsets[0] : offsets[-1]]
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(pc.fill_null(pc.binary_length(items), 0))])
    sizes: Ints = np.diff(ends[offsets - offsets[0]]) * TEXT_FACTOR + np.diff(offsets) * ENTRY_BYTES
    return sizes
