"""Records of a binlog file: magic, length, payload, checksum (CRC-32C), little endian (tidb-binlog 1.9).

Rule: a record is whole or it is damage that is named with its file and offset. The original seeks to the next magic
behind damage, and so loses transactions without a word; here nothing behind damage is read.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NamedTuple

import google_crc32c

from binlake.binlogfile.names import Compression
from binlake.errors import Permanent, Transient

MAGIC = 471532804
HEAD = struct.Struct("<IQ")
CRC = struct.Struct("<I")
FRAME_BYTES = HEAD.size + CRC.size
"""What a record takes beside its payload."""
MOST_PAYLOAD = (1 << 31) - 1
"""Of protobuf; a damaged length may be any number."""
_PIECE = 16 << 20
_BUFFER = 1 << 20


class DamagedFile(Permanent):
    """What is at an offset of a binlog file is not what was written there, or is not there any more."""


class Record(NamedTuple):
    """`payload` lies at `offset` (bytes, of a compressed file those behind decompression)."""

    offset: int
    payload: bytes


def damage(what: str, name: str, offset: int) -> DamagedFile:
    """The error for damage in the file `name`."""
    return DamagedFile(
        f"a binlog file is damaged: {what}",
        where={"file": name, "offset": offset},
        hint="bring the file back from a copy; `binlake files verify` shows all that is wrong in a folder",
    )


def pack_record(payload: bytes) -> bytes:
    """The record of `payload`."""
    return b"".join((HEAD.pack(MAGIC, len(payload)), payload, CRC.pack(google_crc32c.value(payload))))


def compress(content: bytes, compression: Compression) -> bytes:
    """`content` as a member of a compressed file, always the same; members one behind the other are a file again."""
    if compression == "gzip":
        return gzip.compress(content, mtime=0)
    if compression == "zstd":
        # Imported late: relay files, which have this framing, need no Arrow.
        import pyarrow as pa

        return bytes(pa.Codec("zstd").compress(content, asbytes=True))
    return content


def read_records(
    stream: BinaryIO, name: str, compression: Compression = "none", *, torn_end: bool = False
) -> Iterator[Record]:
    """All records of the file `name` in order.

    `torn_end`: a record that is cut short at the file's end is the end, as the original sees its last file, which a
    drainer may be writing. Raises DamagedFile, Transient.
    """
    with _errors(name, compression):
        plain = _decompressed(stream, compression)
        offset = 0
        while head := _read(plain, HEAD.size):
            cut = "a record is cut short"
            payload = b""
            if len(head) == HEAD.size:
                payload, cut = _payload(plain, head, name, offset)
            if cut:
                if torn_end:
                    return
                raise damage(cut, name, offset)
            yield Record(offset, payload)
            offset += FRAME_BYTES + len(payload)


def _payload(plain: BinaryIO, head: bytes, name: str, offset: int) -> tuple[bytes, str]:
    """The payload behind `head`, and what is wrong with its end ("" = nothing)."""
    magic, length = HEAD.unpack(head)
    if magic != MAGIC:
        raise damage("no record begins here", name, offset)
    if length > MOST_PAYLOAD:
        raise damage(f"a record of {length} bytes", name, offset)
    body = _read(plain, length + CRC.size)
    if len(body) < length + CRC.size:
        return b"", "a record is cut short"
    payload = body[:length]
    if google_crc32c.value(payload) != CRC.unpack_from(body, length)[0]:
        raise damage("a record has a wrong checksum", name, offset)
    return payload, ""


def _read(plain: BinaryIO, size: int) -> bytes:
    """`size` bytes, or those up to the end. Not more is asked for at once than there may be."""
    if size <= _PIECE:
        data = plain.read(size)
        if len(data) == size or not data:
            return data
        parts = [data]
    else:
        parts = []
    missing = size - sum(map(len, parts))
    while missing and (data := plain.read(min(missing, _PIECE))):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def _decompressed(stream: BinaryIO, compression: Compression) -> BinaryIO:
    if compression == "gzip":
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), _BUFFER)
    if compression == "zstd":
        import pyarrow as pa

        # Unbuffered, it would be asked for a few bytes at a time.
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"), _BUFFER)
    return stream


@contextmanager
def _errors(name: str, compression: Compression) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damage(f"its compressed data cannot be read: {error}", name, 0) from error
    except OSError as error:
        if compression == "zstd" and ("ZSTD" in str(error) or "Truncated" in str(error)):
            raise damage(f"its compressed data cannot be read: {error}", name, 0) from error
        raise Transient(f"a binlog file cannot be read: {error}", where={"file": name},
                        hint="check the disk, or the store") from error  # fmt: skip
