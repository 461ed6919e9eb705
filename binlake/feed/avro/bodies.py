"""Encodes row images as bodies of Avro messages, without the header: publish adds the schema's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from binlake import tso
from binlake.config.protocols import AvroOptions
from binlake.errors import SchemaError
from binlake.feed.avro import binary
from binlake.feed.avro.columns import encode_column
from binlake.feed.avro.schema import require_key_columns
from binlake.feed.bytecolumns import join_parts
from binlake.rows.schema import ColumnInfo, TableDef

Array = Any
"""A pyarrow Array (pyarrow has no stubs)."""
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
