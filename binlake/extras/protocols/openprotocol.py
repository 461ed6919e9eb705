"""TiCDC's Open Protocol: keys and values are JSON prefixed by their length, keys also by the protocol's version.

A message has one event; TiCDC packs several into one, and consumers read both. The members of an object are sorted by
name, as Go writes them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import Array, Part, decode_hex, encode_fixed_numbers, join_parts
from binlake.config.protocols import OpenProtocolOptions
from binlake.ddl.definitions import LandedDdl
from binlake.feed.encoding import (
    as_binary,
    compute_member_numbers,
    convert_images_to_zone,
    encode_base64,
    encode_json,
    encode_numbers,
    encode_object,
    encode_strings,
    escape_go_quoted,
    escape_texts,
    parse_bits,
)
from binlake.feed.formats import (
    DELETE,
    UPDATE,
    Bodies,
    Changes,
    FeedEvent,
    RowFormat,
    choose_columns_to_send,
    find_row_key,
)
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

VERSION = (1).to_bytes(8, "big")
ROW, DDL, RESOLVED = 1, 2, 3
"""The types of events."""
BINARY, HANDLE_KEY, GENERATED, PRIMARY_KEY, UNIQUE_KEY, MULTIPLE_KEY, NULLABLE, UNSIGNED = (1 << n for n in range(8))
"""The bits of a column's flag."""
_FLAG_MULTIPLE = 8
"""TiDB's flag of a column in an index that is not unique."""


class OpenProtocolFormat(RowFormat):
    """The format Open Protocol with `options`."""

    def __init__(self, options: OpenProtocolOptions) -> None:
        self._options = options
        self.splits_moves = not options.raw_updates

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: keys with transaction and table, values with the row."""
        table, op = changes.table, changes.op
        columns = choose_columns_to_send(changes, delete_keys_only=self._options.delete_keys_only)
        members = [("d" if op == DELETE else "u", self._encode_row(changes, columns, old=op == DELETE))]
        if op == UPDATE and self._options.old_values:
            members.append(("p", self._encode_row(changes, columns, old=True)))
        key: list[Part] = [b'{"ts":', *encode_numbers(changes.commit_ts), b',"scm":', encode_json(table.db)]
        key += [b',"tbl":', encode_json(table.name), b',"t":%d}' % ROW]
        value = encode_object(members)
        return Bodies(_frame_values(join_parts(key), VERSION), _frame_values(join_parts(value)))

    def encode_ddl(self, ddl: LandedDdl, /) -> FeedEvent | None:
        """As Format.encode_ddl: to all partitions."""
        key = {"ts": ddl.commit_ts, "scm": ddl.db, "tbl": ddl.table, "t": DDL}
        return FeedEvent(VERSION + _frame(encode_json(key)), _frame(encode_json({"q": ddl.sql, "t": ddl.action})), True)

    def encode_watermark(self, ts: int, /) -> FeedEvent | None:
        """As Format.watermark: the resolved event, with an empty value, to all partitions."""
        return FeedEvent(VERSION + _frame(encode_json({"ts": ts, "t": RESOLVED})), _frame(b""), True)

    def _encode_row(self, changes: Changes, columns: tuple[ColumnInfo, ...], *, old: bool) -> list[Part]:
        images = changes.select_before(columns) if old else changes.select_after(columns)
        texts = convert_images_to_zone(columns, images, self._options.time_zone)
        handle = {column.name for column in find_row_key(changes.table)}
        return encode_object(
            (column.name, _encode_column(changes.table, column, column.name in handle, texts[column.name]))
            for column in sorted(columns, key=lambda column: column.name)
        )


def compute_column_flag(table: TableDef, column: ColumnInfo, *, handle: bool) -> int:
    """The bits that describe a column. `handle`: it belongs to the key that identifies rows."""
    primary = column.name in table.primary_key
    bits = {
        BINARY: column.charset == "binary",
        HANDLE_KEY: handle,
        GENERATED: column.is_generated,
        PRIMARY_KEY: primary,
        UNIQUE_KEY: bool(column.flag & t.FLAG_UNIQUE),
        MULTIPLE_KEY: bool(column.flag & _FLAG_MULTIPLE),
        NULLABLE: not column.not_null,
        UNSIGNED: column.unsigned,
    }
    return sum(bit for bit, holds in bits.items() if holds)


def _encode_column(table: TableDef, column: ColumnInfo, handle: bool, texts: Array) -> list[Part]:
    head = b'{"t":%d,' % column.tp + (b'"h":true,' if handle else b"")
    return [
        head + b'"f":%d,"v":' % compute_column_flag(table, column, handle=handle),
        *_encode_value(column, texts),
        b"}",
    ]


def _encode_value(column: ColumnInfo, texts: Array) -> list[Part]:
    match column.tp:
        case t.YEAR:
            # "0000" is not a JSON number.
            return encode_numbers(pc.cast(texts, pa.int64()))
        case t.ENUM | t.SET:
            return encode_numbers(compute_member_numbers(column, texts))
        case t.BIT:
            return encode_numbers(parse_bits(texts))
        case _ if column.tp in t.INTEGERS or column.tp in (t.FLOAT, t.DOUBLE):
            return encode_numbers(texts)
        case _ if column.tp in t.BLOBS:
            return encode_strings(encode_base64(decode_hex(texts) if column.is_binary else as_binary(texts)))
        case _ if column.is_binary:
            return encode_strings(escape_go_quoted(decode_hex(texts)))
        case _ if column.tp in t.STRINGS or column.tp == t.JSON:
            return encode_strings(escape_texts(texts))
        case _:
            return encode_strings(as_binary(texts))


def _frame_values(values: Array, before: bytes = b"") -> Array:
    lengths = np.asarray(pc.binary_length(values))
    return join_parts([before, encode_fixed_numbers(lengths, ">i8"), values])


def _frame(text: bytes) -> bytes:
    return len(text).to_bytes(8, "big") + text
