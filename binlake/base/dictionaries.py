"""Numbers the distinct values of a column.

Rule: the dictionary has exactly the values that occur, each once, in order of first appearance. Arrow keeps the whole
dictionary of an array that is sliced or filtered, and `dictionary_encode` returns such an array as it is: whoever walks
its dictionary finds values of rows that are not there.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def encode_dictionary(values: Any) -> Any:
    """`values`, an array or chunked array of any kind, as one dictionary array; NULL has no number."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    return plain.dictionary_encode()
