"""Decodes the messages of TiDB's drainer in Kafka: one `slave.binlog` per transaction or DDL, in protobuf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError

from binlake.feed.reading.events import Event, Record, build_undecodable_error
from binlake.wire import slave_binlog_pb2 as pb

_OPS = {pb.Insert: "c", pb.Update: "u", pb.Delete: "d"}


def decode_slave_binlog(record: Record) -> Iterator[Event]:
    """The events of the message: one per row change, or its DDL."""
    try:
        binlog = pb.Binlog.FromString(record.value or b"")
    except DecodeError as error:
        raise build_undecodable_error(record, f"it is not a slave.binlog: {error}") from error
    if binlog.type == pb.DDL:
        data = binlog.ddl_data
        query = {"sql": data.ddl_query.decode("utf-8", "replace")}
        yield Event(record.place, binlog.commit_ts, data.schema_name, data.table_name, "ddl", message=query)
        return
    for table in binlog.dml_data.tables:
        for mutation in table.mutations:
            yield _build_row_event(record, binlog.commit_ts, table, mutation)


def _build_row_event(record: Record, commit_ts: int, table: pb.Table, mutation: pb.TableMutation) -> Event:
    op, row = _OPS[mutation.type], _decode_row(table, mutation.row)
    names = {name for key in table.unique_keys if key.name == "PRIMARY" for name in key.column_names}
    key = {name: value for name, value in row.items() if name in names}
    before = _decode_row(table, mutation.change_row) if op == "u" else None
    value = None if op == "d" and key else row
    return Event(record.place, commit_ts, table.schema_name, table.table_name, op, key or None, value, before)


def _decode_row(table: pb.Table, row: pb.Row) -> dict[str, Any]:
    return {info.name: _decode_value(column) for info, column in zip(table.column_info, row.columns, strict=True)}


def _decode_value(column: pb.Column) -> Any:
    fields = column.ListFields()
    return None if column.is_null or not fields else fields[0][1]
