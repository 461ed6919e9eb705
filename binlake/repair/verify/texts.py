"""One text per value and one hash per row, computed alike by a server's SQL and from the lake's texts.

A hash is the first 64 bits of SHA-256 (MySQL 9.6 has no MD5) over the row's texts, each preceded by its length, so that
two different rows never have the same text. Hashes are added: two equal rows would cancel each other under XOR (MISSION
U-18). If a server writes a value in another form, the hashes differ and the rows are compared by value: that takes
time, but the result stays right.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake.compare.values import build_canonical_converter
from binlake.rows.codec.numbers import as_float32, format_double
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote_name
from binlake.statements.servertexts import is_bytes, render_column_sql, render_text_sql

Hashes = npt.NDArray[np.uint64]
Texts = Mapping[str, Sequence[str | None]]
"""Column name -> canonical texts (as in `mutation`) of all rows."""

HASH = "sha256"
"""The hash function's name in the state that a run stores for the next one."""

_LARGE = t.BLOBS | {t.JSON}


def render_hash_sql(columns: Sequence[ColumnInfo]) -> str:
    """The SQL of a row's hash over `columns`: an unsigned 64-bit number."""
    row = ",".join(_render_part_sql(column) for column in columns)
    return f"CAST(CONV(LEFT(SHA2(CONCAT({row}),256),16),16,10) AS UNSIGNED)"


def build_fold(column: ColumnInfo) -> Callable[[str | None], str | None]:
    """A function whose results are equal for canonical texts that docs/understand/equality.md calls equal."""
    # The lake's text of a binary value already has that page's form.
    return (lambda text: text) if column.is_binary else build_canonical_converter(column.type_name)


def hash_texts(columns: Sequence[ColumnInfo], texts: Texts) -> Hashes:
    """The value of `render_hash_sql` for each row of `texts`."""
    parts = [_encode_part(column, texts[column.name]) for column in columns]
    rows = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string())).cast(pa.large_binary())
    sha256 = hashlib.sha256
    numbers = (int.from_bytes(sha256(row, usedforsecurity=False).digest()[:8], "big") for row in rows.to_pylist())
    return np.fromiter(numbers, np.uint64, len(rows))


def _render_part_sql(column: ColumnInfo) -> str:
    if column.tp in _LARGE:
        return f"IFNULL(SHA2({render_column_sql(column)},256),'-')"
    text = f"HEX({quote_name(column.name)})" if is_bytes(column) else render_text_sql(column)
    return f"IFNULL(CONCAT(LENGTH({text}),':',{text}),'-')"


def _encode_part(column: ColumnInfo, texts: Sequence[str | None]) -> Any:
    if column.tp in _LARGE:
        return pa.array([_hash_large(column, text) for text in texts], pa.large_string())
    if column.tp == t.FLOAT:
        texts = [None if text is None else format_double(as_float32(text)) for text in texts]
    values = pa.array(texts, pa.large_string())
    sizes = pc.binary_length(values).cast(pa.large_string())
    return pc.fill_null(pc.binary_join_element_wise(sizes, values, pa.scalar(":", pa.large_string())), "-")


def _hash_large(column: ColumnInfo, text: str | None) -> str:
    if text is None:
        return "-"
    data = bytes.fromhex(text) if column.is_binary else text.encode()
    return hashlib.sha256(data, usedforsecurity=False).hexdigest()
