"""Numbers the distinct values of a column.

Rule: the dictionary has exactly the values that occur, each once, in order of first appearance. Arrow keeps the whole
dictionary of an array that is sliced or filtered, and `dictionary_encode` returns such an array as it is: whoever walks
its dictionary finds values of rows that are not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_RENUMBER_ABOVE = 1 << 31
"""Codes are renumbered above this number of combinations, far below the numbers whose product would overflow."""


def encode_dictionary(values: Any) -> Any:
    """`values`, an array or chunked array of any kind, as one dictionary array; NULL has no number."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return plain.dictionary_encode()


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
    numbers: Ints = np.asarray(encode_dictionary(pa.array(codes)).indices).astype(np.int64)
    return numbers
