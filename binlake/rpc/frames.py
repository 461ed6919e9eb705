"""HTTP/2 frames as bytes (RFC 9113 sections 4, 6): constants, builders and the two kinds of protocol errors."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADER = struct.Struct(">BHBBI")
"""Length (high byte, low two bytes), kind, flags, stream id (its top bit is reserved)."""
U31 = 0x7FFFFFFF
DEFAULT_WINDOW = 65_535
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = (1 << 24) - 1

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)

END_STREAM = ACK = 0x01
END_HEADERS = 0x04
PADDED = 0x08
WITH_PRIORITY = 0x20

_SETTING = struct.Struct(">HI")
_NUMBER = struct.Struct(">I")
_GOAWAY = struct.Struct(">II")


class Code(IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


class Setting(IntEnum):
    """Parameters of SETTINGS."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ConnectionFault(Exception):
    """The peer broke a rule of the connection: GOAWAY with `code`, then the connection is closed."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class StreamFault(Exception):
    """The peer broke a rule of one stream: RST_STREAM with `code`."""

    def __init__(self, stream_id: int, code: Code, text: str) -> None:
        super().__init__(text)
        self.stream_id = stream_id
        self.code = code


def encode_head(length: int, kind: int, flags: int, stream_id: int) -> bytes:
    """The nine bytes before a payload of `length` bytes."""
    return HEADER.pack(length >> 16, length & 0xFFFF, kind, flags, stream_id)


def encode_frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return encode_head(len(payload), kind, flags, stream_id) + payload


def encode_headers(stream_id: int, block: bytes, *, end_stream: bool, max_frame: int = DEFAULT_FRAME_BYTES) -> bytes:
    """HEADERS, with as many CONTINUATION frames as `max_frame` requires."""
    flags = END_STREAM if end_stream else 0
    if len(block) <= max_frame:
        return encode_frame(HEADERS, flags | END_HEADERS, stream_id, block)
    parts = [block[at : at + max_frame] for at in range(0, len(block), max_frame)]
    frames = [encode_frame(HEADERS, flags, stream_id, parts[0])]
    frames += [encode_frame(CONTINUATION, 0, stream_id, part) for part in parts[1:-1]]
    return b"".join((*frames, encode_frame(CONTINUATION, END_HEADERS, stream_id, parts[-1])))


def encode_settings(values: Iterable[tuple[Setting, int]]) -> bytes:
    """SETTINGS with these values."""
    return encode_frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """(parameter, value) in order, including unknown parameters."""
    return list(_SETTING.iter_unpack(payload))


def encode_window_update(stream_id: int, increment: int) -> bytes:
    """WINDOW_UPDATE; stream 0 is the connection."""
    return encode_frame(WINDOW_UPDATE, 0, stream_id, _NUMBER.pack(increment))


def encode_rst_stream(stream_id: int, code: Code) -> bytes:
    """RST_STREAM."""
    return encode_frame(RST_STREAM, 0, stream_id, _NUMBER.pack(code))


def encode_goaway(last_id: int, code: Code, text: str = "") -> bytes:
    """GOAWAY: streams up to `last_id` are still served."""
    return encode_frame(GOAWAY, 0, 0, _GOAWAY.pack(last_id, code) + text.encode()[:1000])


def decode_number(payload: bytes) -> int:
    """The 31 bits of a WINDOW_UPDATE's payload."""
    return int.from_bytes(payload, "big") & U31


def unpad(payload: bytes) -> bytes:
    """The payload of a PADDED frame. Raises ConnectionFault if the padding is longer than the frame."""
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(Code.PROTOCOL_ERROR, "padding is longer than its frame")
    return payload[1 : len(payload) - payload[0]]
