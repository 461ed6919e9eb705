"""The format of TiDB's drainer for files (db-type = "file"): one `pb_binlog.Binlog` per transaction or DDL, in order.

Rule: protobuf is written by columns, with the drainer's forms of values, which every reparo reads: temporal types,
DECIMAL and JSON as texts, ENUM, SET and BIT as numbers (its reparo takes bytes of a BIT for 0). A DDL is written with
the commit_ts from which rows have its definition, which is at or below its own commit_ts (hazards R-18), so records
never go back in time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake.common.arrowcolumns import (
    Array,
    Ints,
    Part,
    build_binary_array,
    compute_starts,
    decode_hex,
    encode_fixed_numbers,
    encode_varints,
    join_parts,
    scatter,
)
from binlake.common.lakecolumns import Message
from binlake.config.protocols import PbOptions
from binlake.ddl.definitions import LandedDdl
from binlake.feed.encoding import (
    BYTES,
    VARINT,
    as_binary,
    compute_member_numbers,
    convert_images_to_zone,
    encode_field,
    encode_tag,
    find_run_ends,
    join_runs,
    join_transactions,
    measure_lengths,
    parse_bits,
)
from binlake.feed.formats import DELETE, INSERT, UPDATE, Bodies, Changes, FeedEvent, RowFormat
from binlake.rows.codec import datum as d
from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.rows.schema.job import Action
from binlake.wire import pb_binlog_pb2 as pb

_KINDS = {INSERT: pb.Insert, UPDATE: pb.Update, DELETE: pb.Delete}
_SIGN = np.uint64(1 << 63)
_VALUE, _CHANGED = 4, 5


class PbBinlogFormat(RowFormat):
    """The format of the drainer's files; an update that changes the key is sent as an update."""

    splits_moves = False
    one_partition = True
    whole_transactions = True

    def __init__(self, options: PbOptions) -> None:
        self._options = options

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: no keys; until `assemble`, values are the rows' fields of `DMLData`."""
        table, op = changes.table, changes.op
        head = pb.Event(schema_name=table.db, table_name=table.name, tp=_KINDS[op]).SerializeToString()
        images = [changes.select_before(table.row_columns)] if op == UPDATE else []
        images.append(changes.select_last(table.row_columns))
        shown_images = [convert_images_to_zone(table.row_columns, image, self._options.time_zone) for image in images]
        event: list[Part] = [head]
        for column in table.row_columns:
            event += _encode_column(column, [image[column.name] for image in shown_images])
        return Bodies(
            pa.nulls(len(changes), pa.binary()), join_parts(encode_field(1, _repeat_for_rows(event, len(changes))))
        )

    def assemble(self, messages: pa.Table) -> pa.Table:
        """As Format.assemble: one message per transaction, at the position of its last row."""
        messages = messages.combine_chunks()
        commits, starts = (np.asarray(messages.column(name)) for name in (Message.COMMIT_TS, Message.START_TS))
        ends = find_run_ends(commits, starts)
        events = join_runs(messages.column(Message.VALUE).combine_chunks(), ends)
        head = encode_tag(1, VARINT) + bytes([pb.DML]) + encode_tag(2, VARINT)
        binlogs = join_parts([head, encode_varints(commits[ends].view(np.uint64)), *encode_field(3, events)])
        return join_transactions(messages, ends, binlogs)

    def encode_ddl(self, ddl: LandedDdl, /) -> FeedEvent | None:
        """As Format.encode_ddl: a separate record."""
        query = _format_ddl(ddl).encode("utf-8", "surrogateescape")
        return FeedEvent(None, pb.Binlog(tp=pb.DDL, commit_ts=ddl.since, ddl_query=query).SerializeToString(), False)


def _format_ddl(ddl: LandedDdl) -> str:
    """The DDL's text, preceded by `use` of its database except for CREATE DATABASE."""
    sql = (ddl.sql or ddl.query).strip().rstrip(";").rstrip()
    if ddl.action == Action.CREATE_SCHEMA or not ddl.db:
        return f"{sql};"
    quoted = ddl.db.replace("`", "``")
    return f"use `{quoted}`; {sql};"


def _repeat_for_rows(parts: list[Part], rows: int) -> Array:
    """Join the parts per row. Without columns all rows have the same event, so repeat it."""
    return join_parts(parts) if len(parts) > 1 else pa.repeat(pa.scalar(parts[0], pa.binary()), rows)


def _encode_column(column: ColumnInfo, sides: list[Array]) -> list[Part]:
    """The field with each row's `Column`: one value, or the values before and after an update."""
    head = pb.Column(name=column.name, tp=bytes([column.tp]), mysql_type=column.type_name).SerializeToString()
    content: list[Part] = [head]
    size = np.full(len(sides[0]), len(head), np.int64)
    for number, texts in zip((_VALUE, _CHANGED), sides, strict=False):
        datum, lengths = _encode_datums(column, texts)
        prefix = encode_varints(lengths.astype(np.uint64))
        content += [encode_tag(number, BYTES), prefix, *datum]
        size += 1 + measure_lengths(prefix) + lengths
    return [encode_tag(4, BYTES), encode_varints(size.astype(np.uint64)), *content]


def _encode_datums(column: ColumnInfo, texts: Array) -> tuple[list[Part], Ints]:
    """The parts of each value's datum, and its length in bytes."""
    if not texts.null_count:
        datums = join_parts(_encode_datum(column, texts))
        return [datums], measure_lengths(datums)
    valid = np.asarray(pc.is_valid(texts))
    datums = join_parts(_encode_datum(column, texts.drop_null()))
    lengths = np.ones(len(texts), np.int64)
    lengths[valid] = measure_lengths(datums)
    # A NULL is one byte; other rows are empty in this part.
    nils = build_binary_array(compute_starts((~valid).astype(np.int64)), np.full(int((~valid).sum()), d.NIL, np.uint8))
    return [scatter(datums, valid), nils], lengths


def _encode_datum(column: ColumnInfo, texts: Array) -> list[Part]:
    match column.tp:
        case _ if column.tp in t.INTEGERS and column.unsigned:
            return _encode_unsigned(np.asarray(pc.cast(texts, pa.uint64())))
        case _ if column.tp in t.INTEGERS or column.tp == t.YEAR:
            return [bytes([d.VARINT]), encode_varints(_encode_zigzag(np.asarray(pc.cast(texts, pa.int64()))))]
        case t.ENUM | t.SET:
            return _encode_unsigned(np.asarray(compute_member_numbers(column, texts)))
        case t.BIT:
            return _encode_unsigned(np.asarray(parse_bits(texts)))
        case t.FLOAT | t.DOUBLE:
            kind = pa.float32() if column.tp == t.FLOAT else pa.float64()
            return [bytes([d.FLOAT]), _encode_comparable(np.asarray(pc.cast(texts, kind)).astype(np.float64))]
        case _:
            values = decode_hex(texts) if column.is_binary else as_binary(texts)
            return [bytes([d.COMPACT]), encode_varints(_encode_zigzag(measure_lengths(values))), values]


def _encode_unsigned(values: Any) -> list[Part]:
    return [bytes([d.UVARINT]), encode_varints(values)]


def _encode_zigzag(values: Any) -> Any:
    return ((values << 1) ^ (values >> 63)).view(np.uint64)


def _encode_comparable(values: Any) -> Array:
    """Eight bytes per number that compare like the numbers."""
    bits = values.view(np.uint64)
    return encode_fixed_numbers(np.where(bits & _SIGN, ~bits, bits | _SIGN), ">u8")
