"""The Avro protocol as a format: one message per row change, tombstones for deletions, no DDL and no watermarks."""

from __future__ import annotations

import pyarrow as pa

from binlake.config.protocols import AvroOptions
from binlake.feed.avro.bodies import encode_keys, encode_values
from binlake.feed.avro.schema import build_key_schema, build_value_schema, require_key_columns
from binlake.feed.formats import DELETE, Bodies, Changes, MessageSchemas, RowFormat
from binlake.rows.schema import TableDef


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
