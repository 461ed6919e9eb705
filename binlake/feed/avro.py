"""TiCDC's Avro protocol: one message per row change, no DDL, no watermarks (reference 2.1 to 2.5).

Bodies have no header: publish adds the schema's id. A column's canonical texts are encoded in Avro's binary encoding
(Avro 1.12, "Binary Encoding"), one binary array per column, after the block that `avroschema` writes for the column. A
text that does not fit the type is an error that names the column; it is never converted to another value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake import tso
from binlake.common.arrowcolumns import (
    Array,
    Ints,
    build_binary_array,
    build_fixed_width_array,
    compute_starts,
    decode_hex,
    encode_varints,
    join_parts,
    scatter,
    split_binary_array,
)
from binlake.config.protocols import AvroOptions
from binlake.errors import SchemaError
from binlake.feed.avroschema import (
    build_key_schema,
    build_value_schema,
    choose_avro_type,
    find_null_branch,
    require_key_columns,
)
from binlake.feed.encoding import convert_texts_to_zone, show_members
from binlake.feed.formats import DELETE, Bodies, Changes, MessageSchemas, RowFormat
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t


def encode_longs(values: Ints) -> Array:
    """Encode numbers as zig-zag varints, for both `int` and `long`."""
    return encode_varints(((values << 1) ^ (values >> 63)).view(np.uint64))


def encode_sizes(values: Array) -> Array:
    """The length in bytes of each value, as Avro writes it before `bytes` and `string`; a NULL's length is 0."""
    lengths = pc.fill_null(pc.binary_length(values), 0)
    return encode_longs(np.asarray(lengths).astype(np.int64))


def encode_doubles(values: npt.NDArray[np.float64]) -> Array:
    """Eight bytes each, little-endian."""
    return build_fixed_width_array(values.astype("<f8").view(np.uint8), 8, len(values))


def encode_floats(values: npt.NDArray[np.float32]) -> Array:
    """Four bytes each, little-endian."""
    return build_fixed_width_array(values.astype("<f4").view(np.uint8), 4, len(values))


def encode_branches(valid: Array, null_branch: int) -> Array:
    """Each row's branch number in the union of `null` and another type, in one byte."""
    null, value = 2 * null_branch, 2 * (1 - null_branch)
    return build_fixed_width_array(np.where(np.asarray(valid), value, null).astype(np.uint8), 1, len(valid))


def encode_decimals(decimals: Array) -> Array:
    """The unscaled two's complement of decimals (128 or 256 bits, none NULL), big-endian, in the fewest bytes."""
    width = decimals.type.byte_width
    raw = np.frombuffer(decimals.buffers()[1], np.uint8)
    first = decimals.offset * width
    digits = raw[first : first + len(decimals) * width].reshape(-1, width)[:, ::-1]
    sign = np.where(digits[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    # A leading byte that is only the sign is dropped if the next byte begins with the same sign.
    spare = (digits[:, :-1] == sign) & ((digits[:, 1:] ^ sign) < 0x80)
    return _drop_leading_bytes(digits, np.logical_and.accumulate(spare, axis=1).sum(axis=1))


def shorten_bits(values: Array) -> Array:
    """Big-endian numbers without leading zero bytes; 0 is one byte (reference 2.3, BIT). NULL stays NULL."""
    offsets, data = split_binary_array(values)
    rows = np.repeat(np.arange(len(values)), np.diff(offsets))
    last = np.zeros(len(data), bool)
    last[offsets[1:][np.diff(offsets) > 0] - 1] = True
    # A byte is needed if its row has a nonzero byte at or before it.
    nonzero_seen = np.cumsum(data != 0)
    before = np.concatenate([[0], nonzero_seen])[offsets[:-1]]
    needed = (nonzero_seen > before[rows]) | last
    lengths = np.bincount(rows[needed], minlength=len(values))
    return build_binary_array(compute_starts(lengths.astype(np.int64)), data[needed], values)


def _drop_leading_bytes(digits: Any, lead: npt.NDArray[np.int64]) -> Array:
    width = digits.shape[1]
    needed = np.arange(width) >= lead[:, None]
    return build_binary_array(compute_starts(width - lead), np.ascontiguousarray(digits)[needed])


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
    branches = encode_branches(pc.is_valid(texts), branch)
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
            return [encode_longs(_parse_numbers(column, texts))]
        case "double":
            kind = pa.float32() if column.tp == t.FLOAT else pa.float64()
            return [encode_doubles(np.asarray(pc.cast(texts, kind)).astype(np.float64))]
        case "float":
            return [encode_floats(np.asarray(pc.cast(texts, pa.float32())))]
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
        return encode_decimals(pc.cast(texts, kind))
    values = decode_hex(texts)
    return shorten_bits(values) if column.tp == t.BIT else values


def _add_sizes(values: Array) -> list[Array]:
    return [encode_sizes(values), pc.cast(values, pa.binary())]


Images = Mapping[str, Array]
"""By column, the canonical texts of all rows (`statements.maps.build_images_from_maps`)."""


def encode_keys(table: TableDef, images: Images, options: AvroOptions) -> Array:
    """The body of each row's key. Raises ConfigError for a table without a key, SchemaError naming table and column."""
    return join_parts(_encode_columns(table, require_key_columns(table), images, options))


def encode_values(table: TableDef, images: Images, ops: Array, commit_ts: Array, options: AvroOptions) -> Array:
    """The body of each row's value. `ops` ("c" or "u") and `commit_ts` (int64) are only for the extension (S2-08)."""
    parts = _encode_columns(table, table.row_columns, images, options)
    if options.extension:
        stamps = np.asarray(commit_ts).astype(np.int64)
        parts += [encode_sizes(ops), ops.cast(pa.binary()), encode_longs(stamps)]
        parts.append(encode_longs(_extract_physical_time(stamps)))
    return join_parts(parts)


def _extract_physical_time(stamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return stamps >> tso.LOGICAL_BITS


def _encode_columns(
    table: TableDef, columns: tuple[ColumnInfo, ...], images: Images, options: AvroOptions
) -> list[Array]:
    parts: list[Array] = []
    for column in columns:
        try:
            parts += encode_column(column, images[column.name], options)
        except SchemaError as error:
            raise SchemaError(
                error.message, hint=error.hint, where={"table": f"{table.db}.{table.name}", **error.where}
            ) from error
    return parts


class AvroFormat(RowFormat):
    """The format Avro with `options`."""

    def __init__(self, options: AvroOptions) -> None:
        self._options = options

    def build_schemas(self, table: TableDef, /) -> MessageSchemas:
        """The schemas of key and value. Raises ConfigError for a table without a key."""
        return MessageSchemas(build_key_schema(table, self._options), build_value_schema(table, self._options))

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: bodies without headers, as publish adds the schemas' ids."""
        table, count = changes.table, len(changes)
        if changes.op == DELETE:
            old = changes.select_before(require_key_columns(table))
            return Bodies(encode_keys(table, old, self._options), pa.nulls(count, pa.binary()))
        new, ops = changes.select_after(table.row_columns), pa.repeat(changes.op, count)
        values = encode_values(table, new, ops, changes.commit_ts, self._options)
        return Bodies(encode_keys(table, new, self._options), values)
