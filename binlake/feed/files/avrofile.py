"""Writes Avro messages as an Avro object container file, which any Avro reader can read without a registry.

A record of the file has `commit_ts`, `key`, `value` (null for a deletion). Key and value are encoded with the messages'
schemas, byte for byte like their bodies in Kafka. The schemas are in the file's header (Avro 1.12, "Object Container
Files").
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from binlake.base.arrowcolumns import join_parts
from binlake.base.lakecolumns import Message
from binlake.feed.avro import binary
from binlake.feed.files.textfile import join_values

_MAGIC = b"Obj\x01"
_BLOCK_ROWS = 4096
NAMESPACE = "binlake.feed"


def build_file_schema(key_schema: str, value_schema: str) -> str:
    """The schema of a file's records. Key and value have the same name in a registry; here the key gets a suffix."""
    key = json.loads(key_schema)
    fields = [
        {"name": "commit_ts", "type": "long"},
        {"name": "key", "type": {**key, "name": f"{key['name']}_key"}},
        {"name": "value", "type": ["null", json.loads(value_schema)], "default": None},
    ]
    record = {"type": "record", "name": "message", "namespace": NAMESPACE, "fields": fields}
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def encode_avro_file(messages: pa.Table, key_schema: str, value_schema: str) -> bytes:
    """The file of `messages`, which all have these schemas. Equal messages give equal bytes."""
    schema = build_file_schema(key_schema, value_schema).encode()
    records = _encode_records(messages)
    sync = xxhash.xxh3_128_digest(schema + join_values(records))
    header = (
        _MAGIC
        + _encode_number(2)
        + _add_size(b"avro.codec")
        + _add_size(b"null")
        + _add_size(b"avro.schema")
        + _add_size(schema)
    )
    parts = [header + _encode_number(0) + sync]
    for start in range(0, len(records), _BLOCK_ROWS):
        block = records[start : start + _BLOCK_ROWS]
        content = join_values(block)
        parts += [_encode_number(len(block)), _encode_number(len(content)), content, sync]
    return b"".join(parts)


def _encode_records(messages: pa.Table) -> Any:
    one = messages.combine_chunks()
    key, value = (one.column(name).combine_chunks() for name in (Message.KEY, Message.VALUE))
    commits = np.asarray(one.column(Message.COMMIT_TS)).astype(np.int64)
    return join_parts(
        [binary.encode_longs(commits), key, binary.encode_branches(pc.is_valid(value), 0), pc.fill_null(value, b"")]
    )


def _encode_number(value: int) -> bytes:
    return bytes(binary.encode_longs(np.array([value], np.int64))[0].as_py())


def _add_size(value: bytes) -> bytes:
    return _encode_number(len(value)) + value
