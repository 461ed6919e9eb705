"""Decodes the JSON protocols: canal-json, open-protocol and debezium."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from binlake.feed.reading.events import FeedRecord, MessageEvent, build_undecodable_error

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
