"""Sorts Arrow rows by some of their integer columns, the first column first.

Rule: rows that are already in order, as they usually are, are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Ints = npt.NDArray[np.int64]
Rows = TypeVar("Rows", pa.RecordBatch, pa.Table)


def sort_rows(rows: Rows, columns: Sequence[str]) -> Rows:
    """`rows` sorted by `columns`."""
    order = compute_order(stack_places(rows, columns))
    return rows if (np.diff(order) == 1).all() else rows.take(pa.array(order))


def stack_places(rows: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> Ints:
    """A matrix with each row's values of `columns`."""
    return np.column_stack([np.asarray(rows.column(name)).astype(np.int64) for name in columns])


def compute_order(places: Ints) -> Any:
    """The indices that sort `places`."""
    return np.lexsort(places.T[::-1])
