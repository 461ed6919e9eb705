"""The format of TiDB's drainer for Kafka: one `slave.binlog` per transaction or DDL, in commit order in one partition.

Rule: protobuf is written by columns. A row is the bytes of a `TableMutation`; `assemble` puts the rows of a transaction
after their table's head. If a transaction changes a table in several runs, the table occurs once per run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import (
    Array,
    Part,
    decode_hex,
    encode_dictionary,
    encode_fixed_numbers,
    encode_varints,
    join_parts,
    map_distinct,
)
from binlake.common.lakecolumns import Message
from binlake.config.protocols import SlaveBinlogOptions
from binlake.ddl.definitions import LandedDdl
from binlake.feed.encoding import (
    FIXED64,
    VARINT,
    as_binary,
    compute_member_numbers,
    convert_images_to_zone,
    encode_field,
    encode_number_field,
    encode_tag,
    find_run_ends,
    join_runs,
    join_transactions,
)
from binlake.feed.formats import DELETE, INSERT, UPDATE, Bodies, Changes, FeedEvent, RowFormat
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t
from binlake.wire import slave_binlog_pb2 as pb

_MUTATIONS = {INSERT: pb.Insert, UPDATE: pb.Update, DELETE: pb.Delete}
_NULL = pb.Column(is_null=True).SerializeToString()


class SlaveBinlogFormat(RowFormat):
    """The format of the drainer's messages; an update that changes the key is sent as an update."""

    splits_moves = False
    one_partition = True
    whole_transactions = True

    def __init__(self, options: SlaveBinlogOptions) -> None:
        self._options = options

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: until `assemble`, the table's head is the key and the row's field the value."""
        table, op = changes.table, changes.op
        mutation: list[Part] = [encode_tag(1, VARINT) + bytes([_MUTATIONS[op]])]
        mutation += encode_field(2, self._encode_row(table, changes.select_last(table.row_columns)))
        if op == UPDATE:
            mutation += encode_field(3, self._encode_row(table, changes.select_before(table.row_columns)))
        head = pa.repeat(pa.scalar(encode_table_head(table), pa.binary()), len(changes))
        return Bodies(head, join_parts(encode_field(4, join_parts(mutation))))

    def assemble(self, messages: pa.Table) -> pa.Table:
        """As Format.assemble: one message per transaction, at the position of its last row."""
        messages = messages.combine_chunks()
        keys, values = (messages.column(name).combine_chunks() for name in (Message.KEY, Message.VALUE))
        numbers = [np.asarray(messages.column(name)) for name in (Message.COMMIT_TS, Message.START_TS)]
        heads = np.asarray(encode_dictionary(keys).indices)
        transaction = find_run_ends(*numbers)
        run = find_run_ends(*numbers, heads)
        tables = join_parts(encode_field(1, join_parts([keys.take(pa.array(run)), join_runs(values, run)])))
        # The last run of each transaction.
        last = np.searchsorted(run, transaction)
        stamps = encode_varints(numbers[0][transaction].view(np.uint64))
        binlogs = join_parts(
            [
                encode_tag(1, VARINT) + bytes([pb.DML]) + encode_tag(2, VARINT),
                stamps,
                *encode_field(3, join_runs(tables, last)),
            ]
        )
        return join_transactions(messages, transaction, binlogs)

    def encode_ddl(self, ddl: LandedDdl, /) -> FeedEvent | None:
        """As Format.encode_ddl: a separate message in the only partition."""
        data = pb.DDLData(schema_name=ddl.db, table_name=ddl.table, ddl_query=ddl.sql.encode())
        return FeedEvent(
            None, pb.Binlog(type=pb.DDL, commit_ts=ddl.commit_ts, ddl_data=data).SerializeToString(), False
        )

    def _encode_row(self, table: TableDef, images: Any) -> Array:
        shown = convert_images_to_zone(table.row_columns, images, self._options.time_zone)
        fields = [encode_field(1, _encode_column(column, shown[column.name])) for column in table.row_columns]
        return join_parts([part for field in fields for part in field])


def encode_table_head(table: TableDef) -> bytes:
    """The table's message without its rows."""
    columns = [
        pb.ColumnInfo(name=column.name, mysql_type=column.type_name, is_primary_key=column.name in table.primary_key)
        for column in table.row_columns
    ]
    keys = [
        pb.Key(name="PRIMARY" if key.primary else key.name, column_names=[column.name for column in key.columns])
        for key in table.list_unique_keys()
    ]
    head = pb.Table(schema_name=table.db, table_name=table.name, column_info=columns, unique_keys=keys)
    return head.SerializeToString()


def _encode_column(column: ColumnInfo, texts: Array) -> Array:
    """The serialised `Column` of each value."""
    value = join_parts(_encode_value(column, texts.drop_null() if texts.null_count else texts))
    if not texts.null_count:
        return value
    valid = np.asarray(pc.is_valid(texts))
    places = pa.array(np.cumsum(valid) - 1, mask=~valid)
    return pc.fill_null(value.take(places), _NULL)


def _encode_value(column: ColumnInfo, texts: Array) -> list[Part]:
    match column.tp:
        case _ if column.tp in t.INTEGERS:
            kind = pa.uint64() if column.unsigned else pa.int64()
            return encode_number_field(3 if column.unsigned else 2, np.asarray(pc.cast(texts, kind)).view(np.uint64))
        case t.ENUM | t.SET:
            return encode_number_field(3, np.asarray(compute_member_numbers(column, texts)))
        case t.FLOAT | t.DOUBLE:
            kind = pa.float32() if column.tp == t.FLOAT else pa.float64()
            return [
                encode_tag(4, FIXED64),
                encode_fixed_numbers(np.asarray(pc.cast(texts, kind)).astype(np.float64), "<f8"),
            ]
        case t.JSON:
            return encode_field(5, as_binary(texts))
        case t.YEAR:
            # The drainer writes a YEAR as the text of a number.
            return encode_field(6, map_distinct(texts, lambda text: b"%d" % int(text), pa.binary()))
        case _ if column.is_binary:
            return encode_field(5, decode_hex(texts))
        case _:
            return encode_field(6, as_binary(texts))
