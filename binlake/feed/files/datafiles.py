"""The data files of a window: which messages each of them has, and its bytes.

Messages are split by table, version and date, and each file ends after a transaction. Rule: which messages share a file
depends only on the messages and the file size, not on the parts in which they arrive. So a repeated run writes the same
files.

A file of a text protocol has one message per line, without keys, as in TiCDC's storage sink. Avro messages are an Avro
object container file, which any Avro reader can read without a registry. A record has `commit_ts`, `key`, `value` (null
for a deletion). Key and value are encoded with the messages' schemas, byte for byte like their bodies in Kafka; the
schemas are in the file's header (Avro 1.12, "Object Container Files").
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from binlake import tso
from binlake.common.arrowcolumns import join_parts
from binlake.common.lakecolumns import Message
from binlake.feed import avro
from binlake.feed.files.layout import Versions, build_data_folder, format_date

Ints = npt.NDArray[np.int64]

ROW_BYTES = 10
"""Estimated bytes of a message besides key and value: the commit_ts, or the end of a line."""
_OF_TABLE = (Message.DB, Message.TABLE, Message.KEY_SCHEMA, Message.VALUE_SCHEMA)
_CONTENT = (Message.COMMIT_TS, Message.START_TS, Message.KEY, Message.VALUE)
_NEEDED = (*_CONTENT, *_OF_TABLE)
_DAY_MS = 86_400_000


class FileGroup(NamedTuple):
    """Messages that may share a file: with the same folder and schemas (fingerprints; None: no schema)."""

    folder: str
    key_schema: str | None
    value_schema: str | None


@dataclass(frozen=True)
class Piece:
    """The messages of one file."""

    group: FileGroup
    messages: pa.Table


class Cutter:
    """Splits the messages of one window into files of about `file_size` bytes."""

    def __init__(self, versions: Versions, separator: str, file_size: int) -> None:
        self._versions, self._separator, self._size = versions, separator, file_size
        self._open: dict[FileGroup, pa.Table] = {}

    def list_folders(self) -> list[str]:
        """The folders of the messages so far."""
        return sorted({group.folder for group in self._open})

    def add(self, messages: pa.Table) -> Iterator[Piece]:
        """Add the next messages in commit order. Yields the files that are full."""
        for group, own in self._split_by_group(messages.select(_NEEDED)):
            before = self._open.get(group)
            rows = (own if before is None else pa.concat_tables([before, own])).combine_chunks()
            self._open[group], start = rows, 0
            for end in _find_ends(rows, self._size):
                yield Piece(group, rows.slice(start, end - start))
                start = end
            self._open[group] = rows.slice(start)

    def finish(self) -> Iterator[Piece]:
        """Yield the remaining files at the window's end."""
        for group, rows in self._open.items():
            if rows.num_rows:
                yield Piece(group, rows)

    def _split_by_group(self, messages: pa.Table) -> Iterator[tuple[FileGroup, pa.Table]]:
        commits = np.asarray(messages.column(Message.COMMIT_TS)).astype(np.int64)
        days = (commits >> tso.LOGICAL_BITS) // _DAY_MS
        # A version may begin inside a day, so the rows of a table and day are split again by commit_ts. Names are cast
        # to texts, because dictionaries of several batches cannot be grouped.
        keyed = pa.table({name: messages.column(name).cast(pa.string()) for name in _OF_TABLE})
        keyed = keyed.append_column("day", pa.array(days)).append_column("row", pa.array(np.arange(len(commits))))
        names = [*_OF_TABLE, "day"]
        for part in keyed.group_by(names, use_threads=False).aggregate([("row", "list")]).to_pylist():
            rows = np.array(part["row_list"], np.int64)
            db, table = part[Message.DB], part[Message.TABLE]
            for version, numbers in self._split_by_version(db, table, rows, commits):
                folder = build_data_folder(db, table, version, format_date(int(commits[numbers[0]]), self._separator))
                group = FileGroup(folder, part[Message.KEY_SCHEMA], part[Message.VALUE_SCHEMA])
                yield group, messages.select(_CONTENT).take(pa.array(numbers))

    def _split_by_version(self, db: str, table: str, rows: Ints, commits: Ints) -> Iterator[tuple[int, Ints]]:
        versions = self._versions.look_up(db, table)
        places = np.searchsorted([version.since for version in versions], commits[rows], side="right") - 1
        for place in np.unique(np.maximum(places, 0)):
            yield versions[place].version, rows[np.maximum(places, 0) == place]


def _find_ends(messages: pa.Table, size: int) -> Iterator[int]:
    """The row numbers at which files end: ends of transactions, each at least `size` bytes after the previous one."""
    ends = np.cumsum(_measure_sizes(messages))
    changed = np.zeros(messages.num_rows, bool)
    for name in (Message.COMMIT_TS, Message.START_TS):
        values = np.asarray(messages.column(name)).astype(np.int64)
        changed[1:] |= values[1:] != values[:-1]
    starts = np.flatnonzero(changed)
    written = 0
    while True:
        full = int(np.searchsorted(ends, written + size))
        place = int(np.searchsorted(starts, full, side="right"))
        if place >= len(starts):
            return
        yield int(starts[place])
        written = int(ends[starts[place] - 1])


def _measure_sizes(messages: pa.Table) -> Any:
    lengths = [pc.fill_null(pc.binary_length(messages.column(name)), 0) for name in (Message.KEY, Message.VALUE)]
    return np.asarray(lengths[0]).astype(np.int64) + np.asarray(lengths[1]) + ROW_BYTES


def encode_text_file(messages: pa.Table, terminator: bytes) -> bytes:
    """The values, each followed by `terminator`."""
    values = pc.fill_null(messages.combine_chunks().column(Message.VALUE), b"").combine_chunks()
    return join_values(pc.binary_join_element_wise(values, terminator, b""))


def join_values(values: Any) -> bytes:
    """All values of a binary array, none NULL, concatenated."""
    _, offsets, data = values.buffers()
    if data is None or not len(values):
        return b""
    bounds = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    return bytes(memoryview(data)[bounds[0] : bounds[-1]])


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
        [avro.encode_longs(commits), key, avro.encode_branches(pc.is_valid(value), 0), pc.fill_null(value, b"")]
    )


def _encode_number(value: int) -> bytes:
    return bytes(avro.encode_longs(np.array([value], np.int64))[0].as_py())


def _add_size(value: bytes) -> bytes:
    return _encode_number(len(value)) + value
