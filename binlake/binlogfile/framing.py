"""Records of a binlog file: magic, length, payload, checksum (CRC-32C), little endian (tidb-binlog 1.9).

Rule: a record is either complete, or reported as damaged with its file and offset. After damage, the original seeks to
the next magic and so silently loses transactions; Binlake reads nothing after damage.
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

from binlake.binlogfile.folder import Compression
from binlake.errors import Permanent, Transient

MAGIC = 471532804
HEAD = struct.Struct("<IQ")
CRC = struct.Struct("<I")
FRAME_BYTES = HEAD.size + CRC.size
"""Bytes of a record besides its payload."""
MOST_PAYLOAD = (1 << 31) - 1
"""Protobuf's limit. It is checked because a damaged length can be any number."""
_PIECE = 16 << 20
_BUFFER = 1 << 20


class DamagedFile(Permanent):
    """The content of a binlog file is damaged or missing at an offset."""


class FramedPayload(NamedTuple):
    """A `payload` at `offset` (bytes, after decompression for a compressed file)."""

    offset: int
    payload: bytes


def build_damage_error(what: str, name: str, offset: int) -> DamagedFile:
    """The error for damage in the file `name`."""
    return DamagedFile(
        f"a binlog file is damaged: {what}",
        where={"file": name, "offset": offset},
        hint="restore the file from a copy; `binlake files verify` shows all problems of a folder",
    )


def pack_record(payload: bytes) -> bytes:
    """The bytes of a record with `payload`."""
    return b"".join((HEAD.pack(MAGIC, len(payload)), payload, CRC.pack(google_crc32c.value(payload))))


def compress(content: bytes, compression: Compression) -> bytes:
    """Compress `content` as a member of a compressed file, deterministically; concatenated members form a valid
    file."""
    if compression == "gzip":
        return gzip.compress(content, mtime=0)
    if compression == "zstd":
        # Imported here, because relay files use this framing but do not need Arrow.
        import pyarrow as pa

        return bytes(pa.Codec("zstd").compress(content, asbytes=True))
    return content


def read_records(
    stream: BinaryIO, name: str, compression: Compression = "none", *, torn_end: bool = False
) -> Iterator[FramedPayload]:
    """All records of the file `name` in order.

    `torn_end`: an incomplete record at the file's end counts as the end, as in the original's last file, which a
    drainer may still be writing. Raises DamagedFile, Transient.
    """
    with _translate_errors(name, compression):
        plain = _decompress(stream, compression)
        offset = 0
        while head := _read_up_to(plain, HEAD.size):
            cut = "a record is cut short"
            payload = b""
            if len(head) == HEAD.size:
                payload, cut = _read_payload(plain, head, name, offset)
            if cut:
                if torn_end:
                    return
                raise build_damage_error(cut, name, offset)
            yield FramedPayload(offset, payload)
            offset += FRAME_BYTES + len(payload)


def _read_payload(plain: BinaryIO, head: bytes, name: str, offset: int) -> tuple[bytes, str]:
    """(the payload after `head`, the problem if the file ends before it does, "" = none)."""
    magic, length = HEAD.unpack(head)
    if magic != MAGIC:
        raise build_damage_error("no record begins here", name, offset)
    if length > MOST_PAYLOAD:
        raise build_damage_error(f"a record of {length} bytes", name, offset)
    body = _read_up_to(plain, length + CRC.size)
    if len(body) < length + CRC.size:
        return b"", "a record is cut short"
    payload = body[:length]
    if google_crc32c.value(payload) != CRC.unpack_from(body, length)[0]:
        raise build_damage_error("a record has a wrong checksum", name, offset)
    return payload, ""


def _read_up_to(plain: BinaryIO, size: int) -> bytes:
    """Read `size` bytes, or up to the end, in requests of limited size."""
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


def _decompress(stream: BinaryIO, compression: Compression) -> BinaryIO:
    if compression == "gzip":
        return io.BufferedReader(gzip.GzipFile(fileobj=stream), _BUFFER)
    if compression == "zstd":
        import pyarrow as pa

        # Without a buffer the stream would be read a few bytes at a time.
        return io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"), _BUFFER)
    return stream


@contextmanager
def _translate_errors(name: str, compression: Compression) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise build_damage_error(f"its compressed data cannot be read: {error}", name, 0) from error
    except OSError as error:
        if compression == "zstd" and ("ZSTD" in str(error) or "Truncated" in str(error)):
            raise build_damage_error(f"its compressed data cannot be read: {error}", name, 0) from error
        raise Transient(f"a binlog file cannot be read: {error}", where={"file": name},
                        hint="check the disk, or the store") from error  # fmt: skip
