"""gRPC's formats on top of HTTP/2: length-prefixed messages, gzip, grpc-timeout, and how a call ends (status, text)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping, Sequence
from enum import IntEnum
from urllib.parse import unquote_to_bytes

from binlake.common.spool import MessagePiece
from binlake.errors import BinlakeError

PREFIX = struct.Struct(">BI")
"""Compressed flag, length of the message in bytes."""

PREFIX_BYTES = 5
_GZIP_MAGIC = b"\x1f\x8b"
_GZIP = 16 + zlib.MAX_WBITS
_SMALLEST_GZIP = 128  # bytes: gzip makes smaller messages longer
_FREE_BYTES = 1 << 20  # a message up to this size may have any compression ratio
_MOST_TIMES = 64  # highest ratio above that size: with zeros, gzip can reach a thousand
_LEVEL = 1  # a pump compresses each message separately, so speed matters
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_MAX_TEXT_BYTES = 4096


class Status(IntEnum):
    """Status codes of gRPC (its `statuscodes` document)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(BinlakeError):
    """A call that did not end with OK: its `status`, and the status message in `message`."""

    def __init__(
        self, status: Status, message: str, *, hint: str = "", where: Mapping[str, object] | None = None
    ) -> None:
        self.status = status
        super().__init__(message, hint=hint, where=where)

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (self.status, self.message, self.hint, self.where))


def _rebuild(status: Status, message: str, hint: str, where: dict[str, object]) -> RpcError:
    return RpcError(status, message, hint=hint, where=where)


def encode_message(message: bytes, *, gzip: bool = False) -> bytes:
    """`message` with its prefix; compressed with `gzip` if that makes it smaller."""
    if gzip and len(message) >= _SMALLEST_GZIP:
        packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        packed = packer.compress(message) + packer.flush()
        return PREFIX.pack(1, len(packed)) + packed
    return PREFIX.pack(0, len(message)) + message


def frame_pieces(pieces: Sequence[MessagePiece]) -> list[MessagePiece]:
    """A message given in `pieces`, with its prefix; none of them is copied."""
    return [PREFIX.pack(0, sum(map(len, pieces))), *pieces]


def unpack(flag: int, body: bytes, *, gzip: bool, max_bytes: int) -> bytes:
    """The message in `body`. Raises RpcError if it is damaged, compressed without an encoding, or above `max_bytes`."""
    if not flag:
        return body
    if flag != 1 or not gzip:
        raise RpcError(Status.INTERNAL, f"message with compressed flag {flag} and no known grpc-encoding")
    unpacker = zlib.decompressobj(_GZIP)
    try:
        message = unpacker.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise RpcError(Status.INTERNAL, f"damaged gzip message: {error}") from None
    if len(message) > max_bytes:
        raise build_too_large_error("more", max_bytes)
    if not unpacker.eof:
        raise RpcError(Status.INTERNAL, "gzip message is cut off")
    return message


def read_unpacked_size(packed: bytes, max_bytes: int) -> int:
    """The unpacked size that a gzip message declares. Raises RpcError if it, or its ratio, is too high."""
    if packed[:2] != _GZIP_MAGIC:
        raise RpcError(Status.INTERNAL, "damaged gzip message: it has no gzip header")
    size = int.from_bytes(packed[-4:], "little")
    if size > max_bytes:
        raise build_too_large_error(size, max_bytes)
    if size > max(_FREE_BYTES, _MOST_TIMES * len(packed)):
        text = (
            f"gzip message of {len(packed)} bytes unpacks to {size}, more than {_MOST_TIMES} times: do not compress it"
        )
        raise RpcError(Status.RESOURCE_EXHAUSTED, text)
    return size


def build_too_large_error(size: int | str, max_bytes: int) -> RpcError:
    """The error for a message above the limit, with the text of grpc-go."""
    return RpcError(Status.RESOURCE_EXHAUSTED, f"grpc: received message larger than max ({size} vs. {max_bytes})")


class Splitter:
    """Splits the bytes of a stream into messages, many at once. `gzip`: whether that is the grpc-encoding."""

    def __init__(self, max_bytes: int) -> None:
        self.gzip = False
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._have = 0
        self._needed = PREFIX_BYTES

    @property
    def clean(self) -> bool:
        """Whether there is no part of an unfinished message."""
        return not self._have

    def feed(self, parts: list[bytes]) -> list[bytes]:
        """The messages that `parts` complete. Raises RpcError as unpack()."""
        self._parts += parts
        self._have += sum(map(len, parts))
        if self._have < self._needed:
            return []  # parts of a large message are joined once, not each time
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        messages, at = self._cut(data)
        rest = data[at:] if at else data
        self._parts, self._have = ([rest], len(rest)) if rest else ([], 0)
        return messages

    def _cut(self, data: bytes) -> tuple[list[bytes], int]:
        messages: list[bytes] = []
        add, unpack_from = messages.append, PREFIX.unpack_from
        at, end = 0, len(data)
        while end - at >= PREFIX_BYTES:
            flag, length = unpack_from(data, at)
            if length > self._max_bytes:
                raise build_too_large_error(length, self._max_bytes)
            following = at + PREFIX_BYTES + length
            if following > end:
                self._needed = PREFIX_BYTES + length
                return messages, at
            body = data[at + PREFIX_BYTES : following]
            add(unpack(flag, body, gzip=self.gzip, max_bytes=self._max_bytes) if flag else body)
            at = following
        self._needed = PREFIX_BYTES
        return messages, at


def parse_timeout(value: bytes) -> float:
    """Seconds of a grpc-timeout such as b"15S". Raises RpcError."""
    digits, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not digits.isdigit() or len(digits) > 8:
        raise RpcError(Status.INTERNAL, f"malformed grpc-timeout: {value[:20]!r}")
    return int(digits) * _UNITS[unit]


def format_timeout(seconds: float) -> bytes:
    """A grpc-timeout, rounded up: at most eight digits."""
    if seconds < 99:
        return b"%du" % max(1, int(seconds * 1e6 + 0.999))
    return b"%dS" % min(99_999_999, int(seconds + 0.999))


def quote_text(text: str) -> bytes:
    """A grpc-message: percent-encoded, at most 4 KiB of text."""
    raw = text.encode()[:_MAX_TEXT_BYTES]
    return b"".join(bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in raw)


def unquote_text(value: bytes) -> str:
    """The text of a grpc-message; invalid percent-encoding is left as it is."""
    return unquote_to_bytes(value).decode(errors="replace")
