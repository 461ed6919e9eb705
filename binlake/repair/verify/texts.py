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

from binlake.compare.values import make_canonical_converter
from binlake.rows.codec.floats import as_float32, format_double, format_float
from binlake.rows.codec.values import name_error_value
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.statements.literal import quote_name

Hashes = npt.NDArray[np.uint64]
Texts = Mapping[str, Sequence[str | None]]
"""Column name -> canonical texts (as in `mutation`) of all rows."""

HASH = "sha256"
"""The hash function's name in the state that a run stores for the next one."""

_LARGE = t.BLOBS | {t.JSON}
_CHARACTERS = t.STRINGS | {t.ENUM, t.SET, t.JSON}


def render_hash_sql(columns: Sequence[ColumnInfo]) -> str:
    """The SQL of a row's hash over `columns`: an unsigned 64-bit number."""
    row = ",".join(_render_part_sql(column) for column in columns)
    return f"CAST(CONV(LEFT(SHA2(CONCAT({row}),256),16),16,10) AS UNSIGNED)"


def render_column_sql(column: ColumnInfo) -> str:
    """The SQL whose result `make_text_reader` converts to the canonical text of a value of `column`."""
    # HEX of a large value may exceed a packet, so bytes are sent unchanged.
    return quote_name(column.name) if _is_bytes(column) else _render_text_sql(column)


def make_text_reader(column: ColumnInfo) -> Callable[[Any], str | None]:
    """The function that converts a server's result of `render_column_sql` to the canonical text."""
    if _is_bytes(column):
        return lambda value: None if value is None else bytes(value).hex().upper()
    if column.tp == t.FLOAT:
        return lambda value: None if value is None else format_float(float(value))
    if column.tp == t.DOUBLE:
        return lambda value: None if value is None else format_double(float(value))
    return lambda value: value.decode() if isinstance(value, bytes) else value


def make_fold(column: ColumnInfo) -> Callable[[str | None], str | None]:
    """A function whose results are equal for canonical texts that docs/understand/equality.md calls equal."""
    # The lake's text of a binary value already has that page's form.
    return (lambda text: text) if column.is_binary else make_canonical_converter(column.type_name)


def hash_texts(columns: Sequence[ColumnInfo], texts: Texts) -> Hashes:
    """The value of `render_hash_sql` for each row of `texts`."""
    parts = [_encode_part(column, texts[column.name]) for column in columns]
    rows = pc.binary_join_element_wise(*parts, pa.scalar("", pa.large_string())).cast(pa.large_binary())
    sha256 = hashlib.sha256
    numbers = (int.from_bytes(sha256(row, usedforsecurity=False).digest()[:8], "big") for row in rows.to_pylist())
    return np.fromiter(numbers, np.uint64, len(rows))


def _is_bytes(column: ColumnInfo) -> bool:
    return column.is_binary and column.tp != t.BIT


def _render_part_sql(column: ColumnInfo) -> str:
    if column.tp in _LARGE:
        return f"IFNULL(SHA2({render_column_sql(column)},256),'-')"
    text = f"HEX({quote_name(column.name)})" if _is_bytes(column) else _render_text_sql(column)
    return f"IFNULL(CONCAT(LENGTH({text}),':',{text}),'-')"


def _render_text_sql(column: ColumnInfo) -> str:
    name = quote_name(column.name)
    if column.tp == t.BIT:
        return f"LPAD(HEX({name} + 0),{_count_bit_digits(column)},'0')"
    if column.has_empty_member:
        name = _render_member_sql(column)
    if column.tp in _CHARACTERS:
        return f"CONVERT({name} USING utf8mb4)"
    if column.tp == t.FLOAT:
        # The text of a FLOAT is cut to 6 digits, so convert it to a DOUBLE.
        return f"CONCAT({name} + 0e0)"
    # `+ 0` removes the padding of ZEROFILL.
    return f"CONCAT({name} + 0)" if column.tp in t.INTEGERS else f"CONCAT({name})"


def _render_member_sql(column: ColumnInfo) -> str:
    """The canonical text of an ENUM or SET with an empty member."""
    name = quote_name(column.name)
    if column.tp == t.ENUM:
        return f"IF({name} = 0,'{name_error_value(column.elems)}',{name})"
    # MySQL and MariaDB, not TiDB, omit an empty member that comes first, with its comma.
    own = 1 << column.elems.index("")
    first = f"{name} & {own} AND NOT {name} & {own - 1}"
    return f"IF({first},CONCAT(',',TRIM(LEADING ',' FROM {name})),{name})"


def _count_bit_digits(column: ColumnInfo) -> int:
    return (max(column.flen, 1) + 7) // 8 * 2


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
