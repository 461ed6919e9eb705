"""Writes protobuf by columns, for all formats that use it.

Rule: no Python object per value. A field's parts are joined by `join_parts`; runs of rows become one value each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.base.arrowcolumns import Array, Ints, Part, encode_varints

VARINT, FIXED64, BYTES = 0, 1, 2
"""Protobuf's wire types."""
TRANSACTION = "transaction"
"""The `op` of a message that is a whole transaction."""


def encode_tag(number: int, wire: int) -> bytes:
    """The tag before a field."""
    return bytes([number << 3 | wire])


def encode_number_field(number: int, values: npt.NDArray[np.uint64]) -> list[Part]:
    """A field of varints."""
    return [encode_tag(number, VARINT), encode_varints(values)]


def encode_field(number: int, values: Array) -> list[Part]:
    """A field of bytes, texts or messages."""
    return [encode_tag(number, BYTES), encode_varints(measure_lengths(values).astype(np.uint64)), values]


def measure_lengths(values: Array) -> Ints:
    """The length of each value in bytes; no value may be NULL."""
    lengths: Ints = np.asarray(pc.binary_length(values)).astype(np.int64)
    return lengths


def find_run_ends(*columns: npt.NDArray[Any]) -> Ints:
    """The last row of each run of rows with equal values in all `columns`."""
    changes = [np.diff(column) != 0 for column in columns]
    return np.append(np.flatnonzero(np.logical_or.reduce(changes)), len(columns[0]) - 1)


def join_runs(values: Array, ends: Ints) -> Array:
    """Join the values of each run, which ends at one of `ends`, to one value."""
    bounds = np.concatenate([[0], ends + 1]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(bounds), values), b"")


def join_transactions(messages: pa.Table, ends: Ints, values: Array) -> pa.Table:
    """The messages at `ends`, each for its whole transaction, with `values` and without table and key."""
    replaced = {"db": "", "table": "", "op": TRANSACTION, "key": None}
    # Drop the replaced columns first: `take` would copy all their values.
    others = messages.drop_columns([*replaced, "value"]).take(pa.array(ends))
    columns = {name: others.column(name) for name in others.column_names} | {"value": values}
    for name, value in replaced.items():
        columns[name] = pa.repeat(pa.scalar(value, messages.schema.field(name).type), len(others))
    return pa.table([columns[name] for name in messages.column_names], schema=messages.schema)
