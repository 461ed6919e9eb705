"""TiDB's binary JSON and its text as TiDB prints it: keys sorted, ", " and ": " between (tidb-binlog 1.12).

Honest documents never overlap, so the nodes visited are bounded by the bytes given: damaged offsets cannot loop.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from typing import Any

from binlake.codec.floats import json_double_text
from binlake.codec.temporal import duration_text
from binlake.varint import read_uvarint, write_uvarint

OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING, OPAQUE = 0x01, 0x03, 0x04, 0x09, 0x0A, 0x0B, 0x0C, 0x0D
DATE, DATETIME, TIMESTAMP, TIME = 0x0E, 0x0F, 0x10, 0x11
MAX_DEPTH = 100
"""TiDB refuses deeper documents."""

_LITERALS = {0: "null", 1: "true", 2: "false"}
_FIXED = {LITERAL: 1, INT64: 8, UINT64: 8, DOUBLE: 8, DATE: 8, DATETIME: 8, TIMESTAMP: 8, TIME: 12}
_ESCAPE = re.compile('["\\\\\x00-\x1f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def json_end(data: bytes, pos: int) -> int:
    """The position behind the document whose type byte is at `pos`."""
    kind = data[pos]
    pos += 1
    if kind in (OBJECT, ARRAY):
        end = pos + _u32(data, pos + 4)
    elif kind == STRING:
        size, start = read_uvarint(data, pos)
        end = start + size
    elif kind == OPAQUE:
        size, start = read_uvarint(data, pos + 1)
        end = start + size
    elif kind in _FIXED:
        end = pos + _FIXED[kind]
    else:
        raise ValueError(f"unknown JSON type {kind:#x}")
    if end > len(data):
        raise ValueError("a JSON document is cut short")
    return end


def json_text(data: bytes, pos: int) -> tuple[str, int]:
    """(text, next position) of the document whose type byte is at `pos`; raises ValueError or IndexError if damaged."""
    end = json_end(data, pos)
    return _Reader(data, end).value(data[pos], pos + 1, 0), end


class _Reader:
    def __init__(self, data: bytes, end: int) -> None:
        self.data = data
        self.end = end
        self.budget = end + 1

    def value(self, kind: int, pos: int, depth: int) -> str:
        self.budget -= 1
        if depth > MAX_DEPTH or self.budget < 0:
            raise ValueError("a JSON document is damaged: too deep or with overlapping parts")
        if kind in (OBJECT, ARRAY):
            return self.container(kind, pos, depth)
        return _scalar(kind, self.data[: self.end], pos)

    def container(self, kind: int, start: int, depth: int) -> str:
        count = _u32(self.data, start)
        entries = start + 8
        if kind == ARRAY:
            return f"[{', '.join(self.element(start, entries + 5 * i, depth) for i in range(count))}]"
        values = entries + 6 * count
        parts = (
            f"{self.key(start, entries + 6 * i)}: {self.element(start, values + 5 * i, depth)}" for i in range(count)
        )
        return f"{{{', '.join(parts)}}}"

    def element(self, start: int, entry: int, depth: int) -> str:
        kind = self.data[entry]
        if kind == LITERAL:
            return self.value(kind, entry + 1, depth + 1)
        return self.value(kind, start + _u32(self.data, entry + 1), depth + 1)

    def key(self, start: int, entry: int) -> str:
        self.budget -= 1
        if self.budget < 0:
            raise ValueError("a JSON document is damaged: more keys than bytes")
        at, size = start + _u32(self.data, entry), int.from_bytes(self.data[entry + 4 : entry + 6], "little")
        return _quote(_slice(self.data, at, size).decode())


def _scalar(kind: int, data: bytes, pos: int) -> str:
    if kind == STRING:
        size, start = read_uvarint(data, pos)
        return _quote(_slice(data, start, size).decode())
    if kind == OPAQUE:
        size, start = read_uvarint(data, pos + 1)
        return f'"base64:type{data[pos]}:{base64.b64encode(_slice(data, start, size)).decode()}"'
    body = _slice(data, pos, _FIXED.get(kind, 0))
    if kind == LITERAL:
        return _LITERALS[body[0]]
    if kind in (INT64, UINT64):
        return str(int.from_bytes(body, "little", signed=kind == INT64))
    if kind == DOUBLE:
        return json_double_text(struct.unpack("<d", body)[0])
    if kind == TIME:
        return f'"{duration_text(int.from_bytes(body[:8], "little", signed=True), 6)}"'
    if kind in (DATE, DATETIME, TIMESTAMP):
        return _core_time(kind, int.from_bytes(body, "little"))
    raise ValueError(f"unknown JSON type {kind:#x}")


def _core_time(kind: int, bits: int) -> str:
    date = f"{bits >> 50:04d}-{bits >> 46 & 15:02d}-{bits >> 41 & 31:02d}"
    if kind == DATE:
        return f'"{date}"'
    micro = bits >> 4 & 0xFFFFF
    return f'"{date} {bits >> 36 & 31:02d}:{bits >> 30 & 63:02d}:{bits >> 24 & 63:02d}.{micro:06d}"'


def _quote(text: str) -> str:
    return f'"{_ESCAPE.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT.get(char) or f"\\u{ord(char):04x}"


def _u32(data: bytes, pos: int) -> int:
    return int.from_bytes(_slice(data, pos, 4), "little")


def _slice(data: bytes, pos: int, size: int) -> bytes:
    if pos + size > len(data):
        raise ValueError("a JSON document is cut short")
    return data[pos : pos + size]


def write_json(text: str) -> bytes:
    """Type byte and binary value of JSON text; integers become int64 or uint64, others double. Raises ValueError."""
    try:
        kind, body = _encode(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no JSON document: {error}") from error
    return bytes((kind,)) + body


def _encode(value: Any) -> tuple[int, bytes]:
    if isinstance(value, dict):
        return OBJECT, _encode_object(value)
    if isinstance(value, list):
        return ARRAY, _container(len(value), b"", [_encode(item) for item in value])
    if value is None or isinstance(value, bool):
        return LITERAL, bytes((0 if value is None else 1 if value else 2,))
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        signed = value < 1 << 63
        return (INT64 if signed else UINT64), value.to_bytes(8, "little", signed=signed)
    if isinstance(value, str):
        body = value.encode()
        return STRING, write_uvarint(len(body)) + body
    return DOUBLE, struct.pack("<d", value)


def _encode_object(value: dict[str, Any]) -> bytes:
    items = sorted((key.encode(), _encode(item)) for key, item in value.items())
    at = 8 + 11 * len(items)
    entries, keys = b"", b""
    for key, _ in items:
        entries += struct.pack("<IH", at + len(keys), len(key))
        keys += key
    return _container(len(items), entries, [item for _, item in items], keys)


def _container(count: int, key_entries: bytes, items: list[tuple[int, bytes]], keys: bytes = b"") -> bytes:
    at = 8 + len(key_entries) + 5 * count + len(keys)
    entries, bodies = b"", b""
    for kind, body in items:
        if kind == LITERAL:
            entries += bytes((kind,)) + body.ljust(4, b"\0")
        else:
            entries += struct.pack("<BI", kind, at + len(bodies))
            bodies += body
    return struct.pack("<II", count, at + len(bodies)) + key_entries + entries + keys + bodies
