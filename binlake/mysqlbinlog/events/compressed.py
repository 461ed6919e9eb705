"""Compressed events: MySQL's TRANSACTION_PAYLOAD (zstd, a whole transaction) and MariaDB's single events (zlib)."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pyarrow as pa

from binlake.errors import WireError
from binlake.mysqlbinlog.events.header import HEADER_BYTES
from binlake.mysqlbinlog.events.numbers import read_length

_END, _COMPRESSION, _UNCOMPRESSED_SIZE = 0, 2, 3
_ZSTD, _NONE = 0, 255


def read_payload_events(event: bytes) -> Iterator[bytes]:
    """The events in a TRANSACTION_PAYLOAD event without checksum; they have no checksums either. Raises WireError."""
    fields, at = _read_payload_fields(event)
    data: bytes = event[at:]
    algorithm = fields.get(_COMPRESSION, _NONE)
    if algorithm == _ZSTD:
        data = _unzstd(data, fields.get(_UNCOMPRESSED_SIZE, 0))
    elif algorithm != _NONE:
        raise WireError(f"compression {algorithm} of a transaction is unknown", hint="only zstd and none are supported")
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < HEADER_BYTES or at + size > len(data):
            raise WireError("a compressed transaction ends inside an event")
        yield data[at : at + size]
        at += size


def _read_payload_fields(event: bytes) -> tuple[dict[int, int], int]:
    fields: dict[int, int] = {}
    at = HEADER_BYTES
    while True:
        kind, at = read_length(event, at)
        if kind == _END:
            return fields, at
        size, at = read_length(event, at)
        fields[kind], _ = read_length(event, at)
        at += size


def _unzstd(data: bytes, size: int) -> bytes:
    try:
        plain: bytes = pa.decompress(data, decompressed_size=size, codec="zstd", asbytes=True)
    except (OSError, OverflowError, MemoryError) as error:
        raise WireError(f"a compressed transaction cannot be read: {error}") from None
    return plain


def uncompress_mariadb(data: bytes) -> bytes:
    """Decompress the compressed part of an event: a byte, the length in big-endian, zlib. Raises WireError."""
    algorithm, width = data[0] >> 4 & 7, data[0] & 7
    if not data[0] & 0x80 or algorithm:
        raise WireError(f"compression {algorithm} of an event is unknown", hint="SET GLOBAL log_bin_compress = OFF")
    size = int.from_bytes(data[1 : 1 + width], "big")
    try:
        plain = zlib.decompress(data[1 + width :])
    except zlib.error as error:
        raise WireError(f"a compressed event cannot be read: {error}") from None
    if len(plain) != size:
        raise WireError(f"a compressed event has {len(plain)} bytes, but states {size}")
    return plain
