"""Debezium's JSON as TiCDC writes it: key and value with schemas, source block, rows before and after.

Deletions have a value too, and no tombstone follows. Both times (`source.ts_ms`, `ts_ms`) are the commit time, so that
a message is a pure function of its row. Only a definition and the options decide the schema block (Kafka Connect's
types of a table's columns and of the envelope). Defaults are omitted from it, because a consumer would use them instead
of NULLs.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from binlake import tso
from binlake.common.arrowcolumns import Array, Part, decode_hex, join_parts, map_distinct
from binlake.config.protocols import DebeziumOptions
from binlake.feed.avroschema import build_legal_name, format_tidb_type
from binlake.feed.encoding import (
    as_binary,
    encode_base64,
    encode_json,
    encode_numbers,
    encode_object,
    encode_strings,
    escape_texts,
    show_members,
)
from binlake.feed.formats import DELETE, INSERT, UPDATE, Bodies, Changes, FeedEvent, Images, RowFormat, find_row_key
from binlake.rows.codec.temporal import parse_duration
from binlake.rows.schema import ColumnInfo, TableDef
from binlake.rows.schema import mysqltypes as t

Json = dict[str, Any]

_INTEGERS = {t.TINY: ("int16", "int16"), t.SHORT: ("int16", "int32"), t.INT24: ("int32", "int32"),
             t.LONG: ("int32", "int64"), t.LONGLONG: ("int64", "int64")}  # fmt: skip
"""By type: Connect's type of signed and of unsigned numbers."""
_NAMED = {t.DATE: ("int32", "time.Date"), t.NEWDATE: ("int32", "time.Date"), t.YEAR: ("int32", "time.Year"),
          t.TIMESTAMP: ("string", "time.ZonedTimestamp"), t.DURATION: ("int64", "time.MicroTime"),
          t.JSON: ("string", "data.Json"), t.ENUM: ("string", "data.Enum"),
          t.SET: ("string", "data.EnumSet")}  # fmt: skip
_PLAIN = {t.FLOAT: "float", t.DOUBLE: "double", t.NEWDECIMAL: "double"}
_SOURCE = (("version", "string", False), ("connector", "string", False), ("name", "string", False),
           ("ts_ms", "int64", False), ("snapshot", "", True), ("db", "string", False), ("sequence", "string", True),
           ("table", "string", True), ("server_id", "int64", False), ("gtid", "string", True),
           ("file", "string", False), ("pos", "int64", False), ("row", "int32", False), ("thread", "int64", True),
           ("query", "string", True))  # fmt: skip
_SNAPSHOT: Json = {
    "type": "string",
    "optional": True,
    "name": "io.debezium.data.Enum",
    "version": 1,
    "parameters": {"allowed": "true,last,false,incremental"},
    "default": "false",
    "field": "snapshot",
}
MILLIS_DIGITS = 3
"""The number of fractional digits up to which a DATETIME is in milliseconds."""
_NO_MOMENT = "1970-01-01T00:00:00Z"
WATERMARK = "m"
"""The `op` of the message at the end of a window."""


def build_record_name(cluster: str, table: TableDef) -> str:
    """The prefix of the names of the table's schemas."""
    return ".".join(map(build_legal_name, (cluster, table.db, table.name)))


def build_key_schema(name: str, columns: tuple[ColumnInfo, ...]) -> Json:
    """The schema of the keys."""
    return {
        "type": "struct",
        "name": f"{name}.Key",
        "optional": False,
        "fields": [build_field_schema(column) for column in columns],
    }


def build_envelope_schema(name: str, columns: tuple[ColumnInfo, ...] | None, *, extension: bool) -> Json:
    """The schema of the values. `columns`: None for a message without a row; `extension`: add TiDB's types."""
    images = (
        []
        if columns is None
        else [_build_image(name, "before", columns, False), _build_image(name, "after", columns, extension)]
    )
    transaction = {
        "type": "struct",
        "fields": [
            _build_simple_field("id", "string"),
            _build_simple_field("total_order", "int64"),
            _build_simple_field("data_collection_order", "int64"),
        ],
        "optional": True,
        "name": "event.block",
        "version": 1,
        "field": "transaction",
    }
    fields = [
        *images,
        _build_source(),
        _build_simple_field("op", "string"),
        _build_simple_field("ts_ms", "int64", True),
        transaction,
    ]
    return {"type": "struct", "optional": False, "name": f"{name}.Envelope", "version": 1, "fields": fields}


def build_field_schema(column: ColumnInfo) -> Json:
    """The schema block of a column."""
    kind, name, parameters = _choose_type(column)
    block: Json = {"type": kind, "optional": not column.not_null}
    if name:
        block |= {"name": f"io.debezium.{name}", "version": 1}
    if parameters:
        block["parameters"] = parameters
    return block | {"field": column.name}


def _choose_type(column: ColumnInfo) -> tuple[str, str, Json]:
    """Connect's type, the name of its semantic type, and the parameters of that."""
    if column.tp in _INTEGERS:
        return _INTEGERS[column.tp][column.unsigned], "", {}
    if column.tp == t.BIT:
        return ("boolean", "", {}) if column.flen == 1 else ("bytes", "data.Bits", {"length": str(column.flen)})
    if column.tp == t.DATETIME:
        return "int64", "time.Timestamp" if column.fsp <= MILLIS_DIGITS else "time.MicroTimestamp", {}
    if column.tp in (t.ENUM, t.SET):
        escape_texts = [member.replace(",", r"\,") if column.tp == t.ENUM else member for member in column.elems]
        return (*_NAMED[column.tp], {"allowed": ",".join(escape_texts)})
    if column.tp in _NAMED:
        return (*_NAMED[column.tp], {})
    return _PLAIN.get(column.tp, "string"), "", {}


def _build_image(name: str, side: str, columns: tuple[ColumnInfo, ...], extension: bool) -> Json:
    fields = [
        build_field_schema(column) | ({"tidb_type": format_tidb_type(column)} if extension else {})
        for column in columns
    ]
    return {"type": "struct", "optional": True, "name": f"{name}.Value", "field": side, "fields": fields}


def _build_source() -> Json:
    fields = [
        _SNAPSHOT if name == "snapshot" else _build_simple_field(name, kind, optional)
        for name, kind, optional in _SOURCE
    ]
    return {
        "type": "struct",
        "fields": fields,
        "optional": False,
        "name": "io.debezium.connector.mysql.Source",
        "field": "source",
    }


def _build_simple_field(name: str, kind: str, optional: bool = False) -> Json:
    return {"type": kind, "optional": optional, "field": name}


def encode_values(column: ColumnInfo, texts: Array) -> list[Part]:
    """The values of `column` in the form for `jsontext.encode_object`."""
    match column.tp:
        case t.LONGLONG if column.unsigned:
            # Connect has no unsigned numbers: numbers beyond a long wrap around.
            return encode_numbers(pc.cast(texts, pa.uint64()).view(pa.int64()))
        case t.YEAR:
            return encode_numbers(pc.cast(texts, pa.int64()))
        case _ if column.tp in t.INTEGERS or column.tp in (t.FLOAT, t.DOUBLE, t.NEWDECIMAL):
            return encode_numbers(texts)
        case t.DATE | t.NEWDATE:
            return _encode_calendar(column, _count_since_epoch(texts, pa.date32(), "D"))
        case t.DATETIME:
            unit = "ms" if column.fsp <= MILLIS_DIGITS else "us"
            return _encode_calendar(column, _count_since_epoch(texts, pa.timestamp(unit), unit))
        case t.TIMESTAMP:
            return encode_strings(as_binary(_format_zoned(texts)))
        case t.DURATION:
            return encode_numbers(map_distinct(texts, lambda text: parse_duration(text) // 1000, pa.int64()))
        case t.BIT:
            return _encode_bits(column, texts)
        case _ if column.is_binary:
            return encode_strings(encode_base64(decode_hex(texts)))
        case _:
            return encode_strings(escape_texts(show_members(column, texts)))


def _count_since_epoch(texts: Array, kind: pa.DataType, unit: str) -> Array:
    """Days, or fractions of a second in `unit`, since 1970; NULL for an invalid date."""
    try:
        return pc.cast(texts, kind).view(pa.int32() if unit == "D" else pa.int64()).cast(pa.int64())
    except pa.ArrowInvalid:
        return map_distinct(texts, lambda text: _parse_moment(text, unit), pa.int64())


def _parse_moment(text: str, unit: str) -> int | None:
    try:
        return int(np.datetime64(text).astype(f"datetime64[{unit}]").astype(np.int64))
    except ValueError:
        return None


def _encode_calendar(column: ColumnInfo, numbers: Array) -> list[Part]:
    return encode_numbers(pc.fill_null(numbers, 0) if column.not_null else numbers)


def _format_zoned(texts: Array) -> Array:
    """A TIMESTAMP, which is in UTC, in ISO 8601."""
    shown = pc.binary_join_element_wise(pc.replace_substring(texts, " ", "T"), "Z", "")
    return pc.if_else(pc.starts_with(texts, "0000-00-00"), _NO_MOMENT, shown)


def _encode_bits(column: ColumnInfo, texts: Array) -> list[Part]:
    if column.flen == 1:
        return encode_numbers(map_distinct(texts, lambda text: "true" if int(text, 16) else "false", pa.string()))
    # Reverse the bytes, as Connect's bits are little-endian.
    return encode_strings(map_distinct(texts, lambda text: b64encode(bytes.fromhex(text)[::-1]), pa.binary()))


class DebeziumFormat(RowFormat):
    """The format Debezium with `options`."""

    def __init__(self, options: DebeziumOptions) -> None:
        self._options = options
        self.splits_moves = not options.raw_updates

    def encode(self, changes: Changes) -> Bodies:
        """As Format.encode: keys with the columns that identify a row, values with the row before and after."""
        table, columns, key = changes.table, changes.table.row_columns, find_row_key(changes.table)
        name = build_record_name(self._options.cluster, table)
        payload = self._encode_payload_head(
            table.db, table.name, encode_numbers(changes.commit_ts), _encode_millis(changes)
        )
        payload += [b',"op":', encode_json(changes.op)]
        if changes.op != UPDATE or self._options.old_values:
            payload += [
                b',"before":',
                *([b"null"] if changes.op == INSERT else _encode_row(columns, changes.select_before(columns))),
            ]
        payload += [
            b',"after":',
            *([b"null"] if changes.op == DELETE else _encode_row(columns, changes.select_after(columns))),
            b"}",
        ]
        values = self._wrap_with_schema(
            payload, build_envelope_schema(name, columns, extension=self._options.extension)
        )
        keys = self._wrap_with_schema(_encode_row(key, changes.select_last(key)), build_key_schema(name, key))
        constant = all(isinstance(part, bytes) for part in keys)
        keys_of_rows = pa.repeat(pa.scalar(b"".join(keys), pa.binary()), len(changes)) if constant else join_parts(keys)
        return Bodies(keys_of_rows, join_parts(values))

    def encode_watermark(self, ts: int, /) -> FeedEvent | None:
        """As Format.watermark: to all partitions, only with the extension."""
        if not self._options.extension:
            return None
        name, moment = f"{self._options.cluster}.watermark", b"%d" % tso.extract_physical(ts)
        payload = [*self._encode_payload_head("", "", [b"%d" % ts], [moment]), b',"op":', encode_json(WATERMARK), b"}"]
        value = self._wrap_with_schema(payload, build_envelope_schema(name, None, extension=True))
        key = self._wrap_with_schema([b"{}"], build_key_schema(name, ()))
        return FeedEvent(b"".join(key), b"".join(value), True)

    def _encode_payload_head(self, db: str, table: str, commit_ts: list[Part], millis: list[Part]) -> list[Part]:
        """The beginning of a payload: source, time and transaction."""
        cluster = encode_json(self._options.cluster)
        head: dict[str, Any] = {"snapshot": "false", "db": db, "table": table, "server_id": 0, "gtid": None,
                                "file": "", "pos": 0, "row": 0, "thread": 0, "query": None}  # fmt: skip
        return [
            b'{"source":{"version":"2.4.0.Final","connector":"TiCDC","name":', cluster, b',"ts_ms":', *millis, b",",
            encode_json(head)[1:-1], b',"commit_ts":', *commit_ts, b',"cluster_id":', cluster, b'},"ts_ms":', *millis,
            b',"transaction":null',
        ]  # fmt: skip

    def _wrap_with_schema(self, payload: list[Part], schema: dict[str, Any]) -> list[Part]:
        tail = b',"schema":' + encode_json(schema) if self._options.schemas else b""
        return [b'{"payload":', *payload, tail, b"}"]


def _encode_row(columns: tuple[ColumnInfo, ...], images: Images) -> list[Part]:
    return encode_object((column.name, encode_values(column, images[column.name])) for column in columns)


def _encode_millis(changes: Changes) -> list[Part]:
    return encode_numbers(pc.shift_right(changes.commit_ts, tso.LOGICAL_BITS))
