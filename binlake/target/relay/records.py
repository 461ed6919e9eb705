"""Reads and writes records of magic, length, payload and checksum, as in the original's binlog files.

A record is either complete or damaged. Framing of tidb-binlog 1.9; the payload is Binlake's JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

import google_crc32c

from binlake.binlogfile import framing


class RelayRecord(NamedTuple):
    """A record `value` at byte `offset` of its file."""

    offset: int
    value: dict[str, Any]


class Damaged(Exception):
    """The file has no complete record at byte `offset`."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"{what} at byte {offset}")


def pack_record(value: Mapping[str, Any]) -> bytes:
    """The record of `value`."""
    payload = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return framing.pack_record(payload)


def read_records(file: BinaryIO) -> Iterator[RelayRecord]:
    """All records of a file in order. Raises Damaged, OSError."""
    size = _measure_file_size(file)
    while (record := _read_next_record(file, size)) is not None:
        yield record


def read_record_at(file: BinaryIO, offset: int) -> dict[str, Any]:
    """The value of the record at `offset`. Raises Damaged, OSError."""
    size = _measure_file_size(file)
    file.seek(offset)
    record = _read_next_record(file, size)
    if record is None:
        raise Damaged(offset, "the file ends")
    return record.value


def _measure_file_size(file: BinaryIO) -> int:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


def _read_next_record(file: BinaryIO, size: int) -> RelayRecord | None:
    """The next record; None at the end of the file, which has `size` bytes."""
    offset = file.tell()
    head = file.read(framing.HEAD.size)
    if not head:
        return None
    if len(head) < framing.HEAD.size:
        raise Damaged(offset, "a torn record")
    magic, length = framing.HEAD.unpack(head)
    if magic != framing.MAGIC:
        raise Damaged(offset, "not a record")
    # Checked before reading: a damaged length may be any number.
    if length + framing.CRC.size > size - file.tell():
        raise Damaged(offset, "a torn record")
    payload, (crc,) = file.read(length), framing.CRC.unpack(file.read(framing.CRC.size))
    if google_crc32c.value(payload) != crc:
        raise Damaged(offset, "a record with a wrong checksum")
    return RelayRecord(offset, json.loads(payload))
