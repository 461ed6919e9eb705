"""The Avro protocol as a format: one message per row change, tombstones for deletions, no DDL and no watermarks."""

from __future__ import annotations

import pyarrow as pa

from binlake.config.protocols import AvroOptions
from binlake.feed.avro.bodies import encode_keys, encode_values
from binlake.feed.avro.schema import key_columns, key_schema, value_schema
from binlake.feed.formats import DELETE, Bodies, Changes, RowFormat, Schemas
from binlake.rows.schema import TableDef


class AvroFormat(RowFormat):
    """The format Avro with `options`."""

    def __init__(self, options: AvroOptions) -> None:
        self._options = options

    def schemas(self, table: TableDef, /) -> Schemas:
        """The schemas of key and value. Raises ConfigError for a table without a key."""
        return Schemas(key_schema(table, self._options), value_schema(table, self._options))

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: bodies without headers, as publish adds the schemas' ids."""
        table, count = changes.table, len(changes)
        if changes.op == DELETE:
            old = changes.before(key_columns(table))
            return Bodies(encode_keys(table, old, self._options), pa.nulls(count, pa.binary()))
        new, ops = changes.after(table.row_columns), pa.repeat(changes.op, count)
        values = encode_values(table, new, ops, changes.commit_ts, self._options)
        return Bodies(encode_keys(table, new, self._options), values)
