"""Encodes a column's canonical texts of `mutation` in Avro's binary encoding.

Rule: the encoding follows the block that `schema.py` writes for the column. A text that does not fit the type is an
error that names the column; it is never converted to another value.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.config.protocols import AvroOptions
from binlake.errors import SchemaError
from binlake.feed.avro import binary
from binlake.feed.avro.schema import choose_avro_type, find_null_branch
from binlake.feed.bytecolumns import Array, Ints, decode_hex, scatter
from binlake.feed.values import convert_texts_to_zone, show_members
from binlake.rows.codec.writers import derive_decimal_layout
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

_MOST_128 = 38


def encode_column(column: ColumnInfo, texts: Array, options: AvroOptions) -> list[Array]:
    """The parts of each row's value, to be concatenated (`join_parts`); none is NULL.

    `texts`: string array of canonical texts. Raises SchemaError for a NULL in a NOT NULL column and for a text that
    does not fit the type.
    """
    branch = find_null_branch(column)
    if branch is None:
        if texts.null_count:
            raise SchemaError("a NOT NULL column has a NULL", where={"column": column.name})
        return _encode(column, texts, options)
    branches = binary.encode_branches(pc.is_valid(texts), branch)
    if not texts.null_count:
        return [branches, *_encode(column, texts, options)]
    valid = np.asarray(pc.is_valid(texts))
    return [branches, *(scatter(part, valid) for part in _encode(column, texts.drop_null(), options))]


def _encode(column: ColumnInfo, texts: Array, options: AvroOptions) -> list[Array]:
    try:
        return _encode_values(column, texts, options)
    except (pa.ArrowInvalid, ValueError) as error:
        raise SchemaError(
            f"a value does not fit its column's type in Avro: {error}",
            where={"column": column.name, "type": column.type_text},
        ) from error


def _encode_values(column: ColumnInfo, texts: Array, options: AvroOptions) -> list[Array]:
    match choose_avro_type(column, options):
        case "int" | "long":
            return [binary.encode_longs(_parse_numbers(column, texts))]
        case "double":
            kind = pa.float32() if column.tp == t.FLOAT else pa.float64()
            return [binary.encode_doubles(np.asarray(pc.cast(texts, kind)).astype(np.float64))]
        case "float":
            return [binary.encode_floats(np.asarray(pc.cast(texts, pa.float32())))]
        case "bytes":
            return _add_sizes(_encode_bytes(column, texts))
        case _:
            return _add_sizes(convert_texts_to_zone(column, show_members(column, texts), options.time_zone))


def _parse_numbers(column: ColumnInfo, texts: Array) -> Ints:
    kind = pa.uint64() if column.unsigned and column.tp == t.LONGLONG else pa.int64()
    return np.asarray(pc.cast(texts, kind)).view(np.int64)


def _encode_bytes(column: ColumnInfo, texts: Array) -> Array:
    if column.tp == t.NEWDECIMAL:
        precision, scale = derive_decimal_layout(column)
        kind = pa.decimal128(_MOST_128, scale) if precision <= _MOST_128 else pa.decimal256(76, scale)
        return binary.encode_decimals(pc.cast(texts, kind))
    values = decode_hex(texts)
    return binary.shorten_bits(values) if column.tp == t.BIT else values


def _add_sizes(values: Array) -> list[Array]:
    return [binary.encode_sizes(values), pc.cast(values, pa.binary())]
