"""The Avro protocol as a format: one message per row change, tombstones for deletions, no DDL and no watermarks.

Bodies have no header: publish adds the schema's id. A column's canonical texts are encoded in Avro's binary encoding,
after the block that `schema.py` writes for the column. A text that does not fit the type is an error that names the
column; it is never converted to another value.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from binlake import tso
from binlake.base.arrowcolumns import Array, Ints, decode_hex, join_parts, scatter
from binlake.config.protocols import AvroOptions
from binlake.errors import SchemaError
from binlake.feed.avro import binary
from binlake.feed.avro.schema import (
    build_key_schema,
    build_value_schema,
    choose_avro_type,
    find_null_branch,
    require_key_columns,
)
from binlake.feed.formats import DELETE, Bodies, Changes, MessageSchemas, RowFormat
from binlake.feed.values import convert_texts_to_zone, show_members
from binlake.rows.codec.encode import derive_decimal_layout
from binlake.rows.schema import ColumnInfo, TableDef
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
        parts += [binary.encode_sizes(ops), ops.cast(pa.binary()), binary.encode_longs(stamps)]
        parts.append(binary.encode_longs(_extract_physical_time(stamps)))
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
