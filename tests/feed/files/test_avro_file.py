"""Avro container files: what an independent Avro reader finds in them (S2-01, S0-08)."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
from support.feedmessages import commit_ts

from binlake.feed.files.datafiles import encode_avro_file
from binlake.feed.messages import MESSAGE_SCHEMA

KEY = {"type": "record", "name": "item", "namespace": "default.shop", "fields": [{"name": "id", "type": "int"}]}
VALUE = {**KEY, "fields": [*KEY["fields"], {"name": "name", "type": ["null", "string"], "default": None}]}
TEXTS = json.dumps(KEY), json.dumps(VALUE)


def body(schema: object, record: dict[str, object] | None) -> bytes | None:
    if record is None:
        return None
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), record)
    return stream.getvalue()


def messages(count: int) -> tuple[pa.Table, list[dict[str, object]]]:
    """Random messages, every third of which is a deletion, and the records that they represent."""
    wanted = [
        {
            "commit_ts": commit_ts(number), "key": {"id": number},
            "value": None if number % 3 == 2 else {"id": number, "name": None if number % 2 else f"größer {number}"},
        }
        for number in range(count)
    ]  # fmt: skip
    rows = [
        {"commit_ts": one["commit_ts"], "key": body(KEY, one["key"]), "value": body(VALUE, one["value"])}  # type: ignore[arg-type]
        for one in wanted
    ]
    return pa.Table.from_pylist(rows, schema=MESSAGE_SCHEMA), wanted


# S2-01, S2-48, X-16
def test_reader_without_a_registry_finds_keys_values_and_deletions() -> None:
    table, wanted = messages(50)
    # A slice, because files are cut from larger tables.
    content = encode_avro_file(pa.concat_tables([table, table]).slice(50), *TEXTS)
    reader = fastavro.reader(io.BytesIO(content))
    assert list(reader) == wanted
    names = [field["type"] for field in reader.writer_schema["fields"]]  # type: ignore[index]
    assert (names[1]["name"], names[2][1]["name"]) == ("default.shop.item_key", "default.shop.item")
    assert content == encode_avro_file(table, *TEXTS)


def test_large_file_has_blocks_that_can_be_read_separately() -> None:
    table, wanted = messages(9000)
    content = encode_avro_file(table, *TEXTS)
    blocks = list(fastavro.block_reader(io.BytesIO(content)))
    assert [block.num_records for block in blocks] == [4096, 4096, 808]
    assert [record for block in blocks for record in block] == wanted


# S2-01
def test_bodies_equal_those_of_kafka_byte_for_byte() -> None:
    table, _ = messages(7)
    content = encode_avro_file(table, *TEXTS)
    for name in ("key", "value"):
        for one in table.column(name).to_pylist():
            assert one is None or one in content
