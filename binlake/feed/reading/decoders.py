"""Decodes the messages of each protocol from bytes to events, in order.

Rule: a message that does not match its protocol is an error with the message's position; nothing is skipped.

TiDB's drainer writes one `slave.binlog` in protobuf for each transaction or DDL.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fastavro
from google.protobuf.message import DecodeError

from binlake.errors import ConfigError
from binlake.feed.reading.events import FeedRecord, MessageEvent, build_undecodable_error
from binlake.feed.registry import MAGIC
from binlake.wire import slave_binlog_pb2 as pb

_CANAL_OPS = {"INSERT": "c", "UPDATE": "u", "DELETE": "d", "TIDB_WATERMARK": "watermark"}
_DEBEZIUM_OPS = {"c": "c", "u": "u", "d": "d", "m": "watermark"}
_LENGTH_BYTES = 8
_OPEN_VERSION = 1
_OPEN_ROW, _OPEN_DDL, _OPEN_RESOLVED = 1, 2, 3


def decode_canal_json(record: FeedRecord) -> Iterator[MessageEvent]:
    """The only event of the message."""
    message = _parse_object(record, record.value)
    extension = message.get("_tidb") or {}
    op = "ddl" if message.get("isDdl") else _CANAL_OPS.get(str(message.get("type")))
    if op is None:
        raise build_undecodable_error(record, f"its type is {message.get('type')!r}")
    rows = message.get("data") or [None]
    before = (message.get("old") or [None]) if op == "u" else [None]
    yield MessageEvent(
        record.place,
        extension.get("commitTs", extension.get("watermarkTs")),
        message.get("database") or "",
        message.get("table") or "",
        op,
        value=rows[0],
        before=before[0],
        message=message,
    )


def decode_debezium(record: FeedRecord) -> Iterator[MessageEvent]:
    """The only event of the message, without its schemas."""
    payload = _parse_object(record, record.value).get("payload")
    key = _parse_object(record, record.key).get("payload") if record.key is not None else None
    if not isinstance(payload, dict) or not isinstance(payload.get("source"), dict):
        raise build_undecodable_error(record, "it has no payload with a source")
    source, op = payload["source"], _DEBEZIUM_OPS.get(str(payload.get("op")))
    if op is None:
        raise build_undecodable_error(record, f"its op is {payload.get('op')!r}")
    yield MessageEvent(
        record.place, source.get("commit_ts"), source.get("db") or "", source.get("table") or "", op,
        key or None, payload.get("after"), payload.get("before"),
    )  # fmt: skip


def decode_open_protocol(record: FeedRecord) -> Iterator[MessageEvent]:
    """The events of the message, one or several."""
    key = record.key or b""
    if int.from_bytes(key[:_LENGTH_BYTES], "big") != _OPEN_VERSION:
        raise build_undecodable_error(record, "its key does not begin with version 1")
    keys, values = _split_frames(record, key[_LENGTH_BYTES:]), _split_frames(record, record.value or b"")
    if len(keys) != len(values):
        raise build_undecodable_error(record, f"it has {len(keys)} keys and {len(values)} values")
    for head, body in zip(keys, values, strict=True):
        yield _build_open_event(record, _parse_object(record, head), body)


def _build_open_event(record: FeedRecord, head: Mapping[str, Any], body: bytes) -> MessageEvent:
    kind, ts, db, table = (head.get(name) for name in ("t", "ts", "scm", "tbl"))
    if kind == _OPEN_RESOLVED:
        return MessageEvent(record.place, ts, op="watermark")
    message = _parse_object(record, body)
    if kind == _OPEN_DDL:
        return MessageEvent(record.place, ts, db or "", table or "", "ddl", message=message)
    if kind != _OPEN_ROW:
        raise build_undecodable_error(record, f"its type is {kind!r}")
    rows = {name: {column: cell["v"] for column, cell in row.items()} for name, row in message.items()}
    # Without the old row, an insertion cannot be distinguished from an update.
    op = "d" if "d" in rows else "u" if "p" in rows else None
    columns = rows.get("d", rows.get("u", {}))
    members = message.get("d", message.get("u", {}))
    key = {name: columns[name] for name, member in members.items() if member.get("h")}
    return MessageEvent(record.place, ts, db or "", table or "", op, key or None, rows.get("u"), rows.get("p"))


def _split_frames(record: FeedRecord, content: bytes) -> list[bytes]:
    """The parts of a key or value, each preceded by its length."""
    parts, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + _LENGTH_BYTES], "big")
        at += _LENGTH_BYTES
        if at + size > len(content):
            raise build_undecodable_error(record, "a part is longer than the message")
        parts.append(content[at : at + size])
        at += size
    return parts


def _parse_object(record: FeedRecord, body: bytes | None) -> dict[str, Any]:
    try:
        message = json.loads(body or b"")
    except ValueError as error:
        raise build_undecodable_error(record, f"it is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise build_undecodable_error(record, "it is not a JSON object")
    return message


_OPS = {pb.Insert: "c", pb.Update: "u", pb.Delete: "d"}


def decode_slave_binlog(record: FeedRecord) -> Iterator[MessageEvent]:
    """The events of the message: one per row change, or its DDL."""
    try:
        binlog = pb.Binlog.FromString(record.value or b"")
    except DecodeError as error:
        raise build_undecodable_error(record, f"it is not a slave.binlog: {error}") from error
    if binlog.type == pb.DDL:
        data = binlog.ddl_data
        query = {"sql": data.ddl_query.decode("utf-8", "replace")}
        yield MessageEvent(record.place, binlog.commit_ts, data.schema_name, data.table_name, "ddl", message=query)
        return
    for table in binlog.dml_data.tables:
        for mutation in table.mutations:
            yield _build_row_event(record, binlog.commit_ts, table, mutation)


def _build_row_event(record: FeedRecord, commit_ts: int, table: pb.Table, mutation: pb.TableMutation) -> MessageEvent:
    op, row = _OPS[mutation.type], _decode_row(table, mutation.row)
    names = {name for key in table.unique_keys if key.name == "PRIMARY" for name in key.column_names}
    key = {name: value for name, value in row.items() if name in names}
    before = _decode_row(table, mutation.change_row) if op == "u" else None
    value = None if op == "d" and key else row
    return MessageEvent(record.place, commit_ts, table.schema_name, table.table_name, op, key or None, value, before)


def _decode_row(table: pb.Table, row: pb.Row) -> dict[str, Any]:
    return {info.name: _decode_value(column) for info, column in zip(table.column_info, row.columns, strict=True)}


def _decode_value(column: pb.Column) -> Any:
    fields = column.ListFields()
    return None if column.is_null or not fields else fields[0][1]


Decoder = Callable[[FeedRecord], Iterator[MessageEvent]]
"""Decodes a message. Raises WireError for a message that does not match the protocol, Permanent, Transient."""
Schemas = Callable[[int], str]
"""Returns the text of a schema by its id. Raises Permanent, Transient."""
COMMIT_TS_HEADER = "tidb_commit_ts"
"""The header of tombstones with their commit_ts (MISSION S2-48)."""
_HEADER_BYTES = 5


class AvroDecoder:
    """Decodes keys and values, which begin with the id of their writer's schema (reference 2.1)."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._parsed: dict[int, Any] = {}

    def __call__(self, record: FeedRecord) -> Iterator[MessageEvent]:
        """The only event of the message."""
        if record.key is None:
            raise build_undecodable_error(record, "it has no key")
        schema, key = self._decode(record, record.key)
        value = None if record.value is None else self._decode(record, record.value)[1]
        yield build_row_event(record.place, schema, key, value, _read_commit_ts(record.headers))

    def _decode(self, record: FeedRecord, body: bytes) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        if body[:1] != MAGIC or len(body) < _HEADER_BYTES:
            raise build_undecodable_error(record, "it does not begin with 0 and the id of a schema")
        number = int.from_bytes(body[1:_HEADER_BYTES], "big")
        if number not in self._parsed:
            self._parsed[number] = fastavro.parse_schema(json.loads(self._schemas(number)))
        schema = self._parsed[number]
        stream = io.BytesIO(body[_HEADER_BYTES:])
        try:
            value: Any = fastavro.schemaless_reader(stream, schema, None)
        except (EOFError, ValueError, IndexError) as error:
            raise build_undecodable_error(record, f"it does not match schema {number}: {error}") from error
        if stream.read(1):
            raise build_undecodable_error(record, f"it is longer than schema {number} allows")
        return schema, value


def build_row_event(
    place: str, schema: Mapping[str, Any], key: Mapping[str, Any], value: Mapping[str, Any] | None, ts: int | None
) -> MessageEvent:
    """The event of an Avro message. `schema`: that of its key; `ts`: the commit_ts if the value has none."""
    namespace, _, table = str(schema["name"]).rpartition(".")
    if not namespace:
        namespace = str(schema.get("namespace", ""))
    values = value or {}
    return MessageEvent(
        place,
        values.get("_tidb_commit_ts", ts),
        namespace.rpartition(".")[2],
        table,
        "d" if value is None else values.get("_tidb_op"),
        key,
        value,
    )


def build_decoder(protocol: str, schemas: Schemas | None = None) -> Decoder:
    """The decoder of `protocol`. `schemas`: needed for protocols with a registry. Raises ConfigError."""
    if protocol == "avro":
        if schemas is None:
            raise ConfigError(
                "messages in Avro need their schema registry", hint="give --schema-registry http://host:8081"
            )
        return AvroDecoder(schemas)
    if protocol not in PLAIN:
        raise ConfigError(
            "messages of this protocol cannot be read here",
            where={"protocol": protocol},
            hint=f"use one of {', '.join(('avro', *PLAIN))}",
        )
    return PLAIN[protocol]


def _read_commit_ts(headers: Mapping[str, bytes]) -> int | None:
    text = headers.get(COMMIT_TS_HEADER)
    return int(text) if text is not None else None


PLAIN: Mapping[str, Decoder] = {
    "canal-json": decode_canal_json,
    "open-protocol": decode_open_protocol,
    "debezium": decode_debezium,
    "slave-binlog": decode_slave_binlog,
}
