"""The digest of rows: equal for equal values in the same columns, wherever it is computed and however rows are ordered.

The driver and Spark's workers (`binlake.spark_jobs.job.lake.fold_rows`) call these same functions on Arrow data. The
hash is Binlake's own and must never change: sealed manifests hold digests of it. It does not depend on the width of a
number, on how Arrow lays a column out (chunks, slices, dictionaries), or on the order of a map's entries.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from binlake.common.arrowcolumns import encode_dictionary

Uints = NDArray[np.uint64]
Ints = NDArray[np.int64]

VERSION = "2:"
"""The prefix of these digests; older digests, which Spark computed, have no prefix."""

_ROWS = 1 << 14
"""Rows hashed at once: so many that their numbers stay in the processor's cache, also those of a map's entries."""
_LONG = 96
"""Longer values (bytes) are hashed by one C call each, which then costs less than word by word for all values."""
_TOP = 1 << 64
_NULL, _TEXT, _LIST, _MAP = (
    np.uint64(one) for one in (0x9FB21C651E98DF25, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63)
)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_STEP = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
# By the number of bytes left in a value: the mask of the bytes of a word that belong to it.
_LEFT = np.array([(1 << 8 * left) - 1 for left in range(9)], np.uint64)
_PAD = bytes(8)


@dataclass(frozen=True, slots=True)
class Fold:
    """A summary of hashes that does not depend on their order: their number, sum modulo 2^64, and exclusive or."""

    count: int
    total: int
    xor: int


def hash_rows(rows: pa.Table | pa.RecordBatch, columns: Sequence[str]) -> Uints:
    """The hash of each row over `columns`, in the order given.

    Raises TypeError for a column whose type is not whole numbers, dates, texts, bytes, or lists and maps of them.
    """
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    table = table.select(list(columns))
    parts = [_hash_batch(batch) for batch in table.to_batches(max_chunksize=_ROWS)]
    return np.concatenate([*parts, np.empty(0, np.uint64)])


def fold(hashes: Uints) -> Fold:
    """The fold of `hashes`."""
    return Fold(len(hashes), int(np.add.reduce(hashes)), int(np.bitwise_xor.reduce(hashes)))


def merge_folds(folds: Iterable[Fold]) -> Fold:
    """The fold of all hashes that `folds` summarise."""
    parts = list(folds)
    xor = functools.reduce(operator.xor, (part.xor for part in parts), 0)
    return Fold(sum(part.count for part in parts), sum(part.total for part in parts) % _TOP, xor)


def compute_digest(whole: Fold) -> str:
    """The digest of the rows with this fold."""
    return VERSION + hashlib.sha256(f"{whole.count}:{whole.total}:{whole.xor}".encode()).hexdigest()


def _hash_batch(batch: pa.RecordBatch) -> Uints:
    hashes = np.zeros(batch.num_rows, np.uint64)
    for column in batch.columns:
        hashes *= _STEP
        hashes += _hash_values(column)
        hashes = _mix(hashes)
    return hashes


def _hash_values(array: pa.Array) -> Uints:
    """The hash of each value."""
    hashes = _choose_hasher(array.type)(array)
    if array.null_count:
        hashes[np.asarray(array.is_null())] = _NULL
    return hashes


def _choose_hasher(kind: pa.DataType) -> Callable[[pa.Array], Uints]:
    types = pa.types
    ways: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], Uints]], ...] = (
        (types.is_integer, _hash_numbers),
        (types.is_boolean, _hash_numbers),
        (types.is_date32, lambda array: _hash_numbers(array.cast(pa.int32()))),
        (types.is_null, lambda array: np.full(len(array), _NULL)),
        (types.is_dictionary, _hash_encoded),
        (types.is_map, _hash_maps),
        (types.is_list, _hash_lists),
        (_is_text, _hash_texts),
    )
    for fits, way in ways:
        if fits(kind):
            return way
    raise TypeError(f"rows with a column of type {kind} have no digest")


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(fits(kind) for fits in (types.is_string, types.is_binary, types.is_large_string, types.is_large_binary))


def _hash_numbers(array: pa.Array) -> Uints:
    filled = array.fill_null(False if pa.types.is_boolean(array.type) else 0) if array.null_count else array
    return _mix(np.asarray(filled).astype(np.int64).view(np.uint64) + _STEP)


def _hash_encoded(array: pa.DictionaryArray) -> Uints:
    if not len(array.dictionary):
        return np.full(len(array), _NULL)
    return _hash_values(array.dictionary)[np.asarray(array.indices.fill_null(0)).astype(np.int64)]


def _hash_lists(array: pa.ListArray) -> Uints:
    offsets = _read_offsets(array)
    sizes = np.diff(offsets)
    places = np.arange(offsets[-1] - offsets[0]) - np.repeat(offsets[:-1] - offsets[0], sizes)
    entries = _hash_values(array.values[offsets[0] : offsets[-1]])
    return _combine(_mix(entries + places.view(np.uint64) * _STEP), offsets, _LIST)


def _hash_maps(array: pa.MapArray) -> Uints:
    offsets = _read_offsets(array)
    span = slice(offsets[0], offsets[-1])
    # Maps have few distinct names.
    names = _hash_values(encode_dictionary(array.keys[span]))
    entries = _mix(names * _STEP + _hash_values(array.items[span]))
    return _combine(entries, offsets, _MAP)


def _combine(entries: Uints, offsets: Ints, kind: np.uint64) -> Uints:
    """One hash for the entries between each two `offsets`; their order does not matter."""
    sums = np.concatenate([np.zeros(1, np.uint64), entries.cumsum(dtype=np.uint64)])
    at = offsets - offsets[0]
    return _mix((sums[at[1:]] - sums[at[:-1]]) ^ (np.diff(at).view(np.uint64) * _STEP + kind))


def _hash_texts(array: pa.Array) -> Uints:
    wide = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    offsets = _read_offsets(array, np.int64 if wide else np.int32)
    low, high = int(offsets[0]), int(offsets[-1])
    buffer = array.buffers()[2]
    data = b"".join((memoryview(buffer)[low:high], _PAD)) if buffer is not None else _PAD
    starts, ends = offsets[:-1] - low, offsets[1:] - low
    sizes = ends - starts
    hashes = _hash_words(data, starts, sizes)
    long = np.flatnonzero(sizes > _LONG)
    if long.size:
        spans = map(slice, starts[long].tolist(), ends[long].tolist())
        hashes[long] += np.fromiter(map(xxh3_64_intdigest, map(data.__getitem__, spans)), np.uint64, len(long))
    return _mix(hashes)


def _hash_words(data: bytes, at: Ints, sizes: Ints) -> Uints:
    """Hash sizes and bytes of values that begin `at`, eight bytes at a time; of long values only the first eight."""
    words: NDArray[Any] = np.ndarray(len(data) - 7, "<u8", data, strides=(1,))
    hashes = _mix_step((sizes.view(np.uint64) * _STEP + _TEXT) ^ (words[at] & _LEFT[np.minimum(sizes, 8)]))
    which = np.flatnonzero((sizes > 8) & (sizes <= _LONG))
    at, left = at[which] + 8, sizes[which] - 8
    while which.size:
        hashes[which] = _mix_step(hashes[which] ^ (words[at] & _LEFT[np.minimum(left, 8)]))
        more = np.flatnonzero(left > 8)
        which, at, left = which[more], at[more] + 8, left[more] - 8
    return hashes


def _mix_step(hashes: Uints) -> Uints:
    """One step of the hash, a bijection: different values give different results."""
    hashes = hashes * _FIRST
    hashes ^= hashes >> _HALF
    return hashes


def _mix(hashes: Uints) -> Uints:
    """The final step, a bijection after which every bit of a hash depends on all of its bits."""
    hashes = hashes ^ (hashes >> _HALF)
    hashes *= _FIRST
    hashes ^= hashes >> _HALF
    hashes *= _SECOND
    hashes ^= hashes >> _HALF
    return hashes


def _read_offsets(array: pa.Array, kind: type[np.signedinteger[Any]] = np.int32) -> Ints:
    """Where each value begins, and where the last one ends, in the buffers of `array`."""
    if not len(array):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(array.buffers()[1], kind)
    return offsets[array.offset : array.offset + len(array) + 1].astype(np.int64)
