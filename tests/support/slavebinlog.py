"""Read the drainer's Kafka messages with protobuf's generated classes: rows as canonical texts."""

from __future__ import annotations

from collections.abc import Mapping

from support.feedrows import Row, member_text, number_text

from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t
from binlake.wire import slave_binlog_pb2 as pb


def row_of_slave(table: pb.Table, row: pb.Row, columns: Mapping[str, ColumnInfo]) -> Row:
    """A row of `table` as texts."""
    assert len(row.columns) == len(table.column_info)
    return {
        info.name: _text(columns[info.name], info.mysql_type, value)
        for info, value in zip(table.column_info, row.columns, strict=True)
    }


def _text(column: ColumnInfo, mysql_type: str, value: pb.Column) -> str | None:
    if value.is_null:
        assert len(value.ListFields()) == 1
        return None
    [(field, content)] = value.ListFields()
    if mysql_type in ("enum", "set"):
        assert field.name == "uint64_value"
        return member_text(column, content)
    if mysql_type.endswith("int"):
        assert field.name == ("uint64_value" if column.unsigned else "int64_value")
        return str(content)
    if mysql_type in ("float", "double"):
        assert field.name == "double_value"
        return number_text(column, content)
    if field.name == "bytes_value":
        return str(content.decode() if mysql_type == "json" else content.hex().upper())
    assert field.name == "string_value"
    return f"{int(content):04}" if column.tp == t.YEAR else str(content)
