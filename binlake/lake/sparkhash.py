"""The hash of rows as Spark computes it (spark_jobs.lake.folds), for rows that are here in Arrow.

What compact and convert seal; all else takes `binlake.lake.rowhash`.

Spark's `xxhash64` is XXH64 of each value in turn, seeded by the hash so far (42 at first), numbers as little-endian
bytes of their width; a NULL leaves the hash as it is.
"""

from __future__ import annotations

import functools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from xxhash import xxh64_intdigest as _mix

_SEED = 42
_TOP = 1 << 63
_BYTES: dict[pa.DataType, Callable[..., bytes]] = {
    pa.int32(): struct.Struct("<i").pack,
    pa.int64(): struct.Struct("<q").pack,
    pa.string(): str.encode,
    pa.binary(): bytes,
}


def folds(rows: pa.Table, columns: Sequence[str]) -> tuple[int, int | None, int | None]:
    """Count, sum and exclusive or of the signed hashes of `columns`; the last two None without rows."""
    hashes = signed(row_hashes(rows, columns))
    return (len(hashes), sum(hashes), functools.reduce(operator.xor, hashes)) if hashes else (0, None, None)


def row_hashes(rows: pa.Table, columns: Sequence[str]) -> list[int]:
    """The hash of each row, from 0 to 2^64 - 1.

    Columns are INT, BIGINT, STRING, BINARY, or MAP of STRING to STRING. Raises KeyError for another type.
    """
    hashes = [_SEED] * rows.num_rows
    for name in columns:
        column = rows[name]
        mixed = _entries if pa.types.is_map(column.type) else _value(_BYTES[column.type])
        values = zip(hashes, column.to_pylist(), strict=True)
        hashes = [so_far if value is None else mixed(value, so_far) for so_far, value in values]
    return hashes


def signed(hashes: Sequence[int]) -> list[int]:
    """As BIGINT."""
    return [value - 2 * _TOP if value >= _TOP else value for value in hashes]


def _value(as_bytes: Callable[..., bytes]) -> Callable[[Any, int], int]:
    return lambda value, so_far: _mix(as_bytes(value), so_far)


def _entries(entries: Sequence[tuple[str, str | None]], so_far: int) -> int:
    """Of a map, whose entries have no order: by name, as Spark sorts text."""
    for name, value in sorted((name.encode(), value) for name, value in entries):
        so_far = _mix(name, so_far)
        so_far = so_far if value is None else _mix(value.encode(), so_far)
    return so_far
