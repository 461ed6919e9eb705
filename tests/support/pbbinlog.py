"""Read records of binlog files with protobuf's generated classes and a separate datum reader: rows as texts."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from support.feedrows import Row, member_text, number_text

from binlake.rows.schema import ColumnInfo
from binlake.wire import pb_binlog_pb2 as pb


def rows_of_event(event: pb.Event, columns: Mapping[str, ColumnInfo]) -> tuple[Row | None, Row | None]:
    """The rows before and after a change."""
    read = [pb.Column.FromString(raw) for raw in event.row]
    assert len({one.name for one in read}) == len(read)
    for one in read:
        assert one.tp == bytes([columns[one.name].tp])
        assert one.HasField("changed_value") == (event.tp == pb.Update)
    values = {one.name: _text(columns[one.name], one.mysql_type, one.value) for one in read}
    if event.tp == pb.Insert:
        return None, values
    if event.tp == pb.Delete:
        return values, None
    return values, {one.name: _text(columns[one.name], one.mysql_type, one.changed_value) for one in read}


def _text(column: ColumnInfo, mysql_type: str, datum: bytes) -> str | None:
    value = read_datum(datum)
    if value is None:
        return None
    if mysql_type in ("enum", "set"):
        assert datum[0] == 9
        return member_text(column, int(value))
    if mysql_type == "bit":
        assert datum[0] == 9
        return f"{int(value):0{(column.flen + 7) // 8 * 2}X}"
    if mysql_type.endswith("int"):
        assert datum[0] == (9 if column.unsigned else 8)
        return str(value)
    if isinstance(value, float):
        assert mysql_type in ("float", "double")
        return number_text(column, value)
    if mysql_type == "year":
        assert isinstance(value, int)
        return f"{value:04}"
    assert isinstance(value, bytes)
    binary = "blob" in mysql_type or "binary" in mysql_type
    return value.hex().upper() if binary else value.decode()


def read_datum(datum: bytes) -> int | float | bytes | None:
    """Read a datum with one of the flags that the drainer writes (tidb-binlog 1.12)."""
    flag, body = datum[0], datum[1:]
    if flag == 0:
        assert not body
        return None
    if flag == 5:
        [bits] = struct.unpack(">Q", body)
        bits = bits ^ 1 << 63 if bits >> 63 else ~bits & (1 << 64) - 1
        return float(struct.unpack(">d", struct.pack(">Q", bits))[0])
    number, size = 0, 0
    while True:
        number |= (body[size] & 127) << 7 * size
        size += 1
        if body[size - 1] < 128:
            break
    if flag == 9:
        assert size == len(body)
        return number
    signed = number >> 1 if not number & 1 else -(number >> 1) - 1
    if flag == 8:
        assert size == len(body)
        return signed
    assert flag == 2
    assert len(body) == size + signed
    return body[size:]
