"""The schema block of Debezium's messages: Kafka Connect's types of a table's columns and of the envelope.

Rule: only a definition and the options decide it. Defaults are omitted, because a consumer would use them instead of
NULLs.
"""

from __future__ import annotations

from typing import Any

from binlake.feed.avroschema import build_legal_name, format_tidb_type
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
