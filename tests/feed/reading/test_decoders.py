"""Decoded messages, and errors that name the position of invalid ones."""

from __future__ import annotations

import io
import json
from decimal import Decimal

import fastavro
import pytest

from binlake.errors import ConfigError, WireError
from binlake.feed.reading.decoders import AvroDecoder, build_decoder, decode_canal_json
from binlake.feed.reading.events import FeedRecord
from binlake.feed.registry import encode_header

FIELDS = [{"name": "id", "type": "int"}]
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
TEXTS = {
    1: json.dumps({"type": "record", "name": "item", "namespace": "default.shop", "fields": FIELDS}),
    2: json.dumps(
        {
            "type": "record",
            "name": "item",
            "namespace": "default.shop",
            "fields": [
                *FIELDS, {"name": "price", "type": DECIMAL}, {"name": "code", "type": "bytes"},
                {"name": "_tidb_op", "type": "string"}, {"name": "_tidb_commit_ts", "type": "long"},
                {"name": "_tidb_commit_physical_time", "type": "long"},
            ],
        }
    ),
}  # fmt: skip
TS = 417318403368288260
ROW = {
    "id": 7, "price": Decimal("1.50"), "code": b"\x00\xff", "_tidb_op": "u", "_tidb_commit_ts": TS,
    "_tidb_commit_physical_time": TS >> 18,
}  # fmt: skip


def body(number: int, record: dict[str, object]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(json.loads(TEXTS[number])), record)
    return encode_header(number) + stream.getvalue()


KEY = body(1, {"id": 7})


# S2-09, S2-10, DESIGN 3.12
def test_avro_message_is_shown_with_its_row_and_timestamps_as_text() -> None:
    (event,) = AvroDecoder(TEXTS.__getitem__)(FeedRecord("t[0]@3", KEY, body(2, ROW)))
    assert event.to_dict() == {
        "commit_ts": str(TS), "db": "shop", "table": "item", "op": "u", "place": "t[0]@3", "key": {"id": 7},
        "value": {
            "id": 7, "price": "1.50", "code": "00FF", "_tidb_op": "u", "_tidb_commit_ts": str(TS),
            "_tidb_commit_physical_time": TS >> 18,
        },
    }  # fmt: skip
    json.dumps(event.to_dict())


# S2-48, X-16
def test_tombstone_is_a_deletion_with_its_commit_ts_from_the_header() -> None:
    (event,) = AvroDecoder(TEXTS.__getitem__)(FeedRecord("t[0]@4", KEY, None, {"tidb_commit_ts": str(TS).encode()}))
    assert event.to_dict() == {
        "commit_ts": str(TS), "db": "shop", "table": "item", "op": "d", "place": "t[0]@4", "key": {"id": 7},
        "value": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (None, b"", "it has no key"),
        (KEY, b"{}", "does not begin with 0"),
        (KEY, body(2, ROW)[:-3], "does not match schema 2"),
        (KEY, body(2, ROW) + b"x", "longer than schema 2 allows"),
    ],
)
def test_bytes_that_are_not_avro_are_refused_with_their_position(key: bytes | None, value: bytes, message: str) -> None:
    with pytest.raises(WireError, match=rf"{message}.*at=t\[1\]@9"):
        list(AvroDecoder(TEXTS.__getitem__)(FeedRecord("t[1]@9", key, value)))


def test_canal_json_message_is_shown_unchanged() -> None:
    message = {
        "database": "shop", "table": "item", "isDdl": False, "type": "UPDATE", "data": [{"id": "7", "n": "2"}],
        "old": [{"id": "7", "n": "1"}], "_tidb": {"commitTs": TS},
    }  # fmt: skip
    (event,) = decode_canal_json(FeedRecord("t[0]@0", None, json.dumps(message).encode()))
    assert (event.commit_ts, event.db, event.table, event.op) == (TS, "shop", "item", "u")
    assert (event.value, event.before) == ({"id": "7", "n": "2"}, {"id": "7", "n": "1"})
    assert event.to_dict()["message"] == {**message, "_tidb": {"commitTs": str(TS)}}
    watermark = {"type": "TIDB_WATERMARK", "isDdl": False, "_tidb": {"watermarkTs": TS}}
    (event,) = decode_canal_json(FeedRecord("t[0]@1", None, json.dumps(watermark).encode()))
    assert (event.op, event.commit_ts) == ("watermark", TS)


@pytest.mark.parametrize("content", [b"", b"[]", b"nonsense", b'{"type":"OTHER"}'])
def test_invalid_canal_json_is_refused(content: bytes) -> None:
    with pytest.raises(WireError, match=r"at=t\[0\]@0"):
        list(decode_canal_json(FeedRecord("t[0]@0", None, content)))


def test_each_protocol_has_a_decoder_or_is_named() -> None:
    with pytest.raises(ConfigError, match="--schema-registry"):
        build_decoder("avro")
    with pytest.raises(ConfigError, match=r"protocol=simple.*avro, canal-json"):
        build_decoder("simple")
