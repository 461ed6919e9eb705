"""TiDB's binary JSON and its text as TiDB prints it: sorted keys, separators ", " and ": " (tidb-binlog 1.12).

Only a whole double has another text: TiDB prints `5`, which would be written as an integer; the canonical text is
`5.0`.

In a valid document no parts overlap. The reader therefore visits at most as many nodes as the document has bytes, so
that damaged offsets cannot cause an endless loop.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from binlake.common.varint import read_uvarint, write_uvarint
from binlake.rows.codec.datum import format_json_double, show_json_double
from binlake.rows.codec.temporal import format_duration, parse_duration, parse_moment_parts

OBJECT, ARRAY, LITERAL, INT64, UINT64, DOUBLE, STRING, OPAQUE = 0x01, 0x03, 0x04, 0x09, 0x0A, 0x0B, 0x0C, 0x0D
DATE, DATETIME, TIMESTAMP, TIME = 0x0E, 0x0F, 0x10, 0x11
MAX_DEPTH = 100
"""TiDB refuses more deeply nested documents."""

_LITERALS = {0: "null", 1: "true", 2: "false"}
_FIXED = {LITERAL: 1, INT64: 8, UINT64: 8, DOUBLE: 8, DATE: 8, DATETIME: 8, TIMESTAMP: 8, TIME: 12}
_ESCAPE = re.compile('["\\\\\x00-\x1f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def find_json_end(data: bytes, pos: int) -> int:
    """The position after the document whose type byte is at `pos`."""
    kind = data[pos]
    pos += 1
    if kind in (OBJECT, ARRAY):
        end = pos + _read_u32(data, pos + 4)
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


def read_json(data: bytes, pos: int) -> tuple[str, int]:
    """(text, next position) of the document whose type byte is at `pos`; raises ValueError or IndexError if damaged.

    `write_json` of the text gives the document again: a double stays a double (`5.0`).
    """
    end = find_json_end(data, pos)
    return _Reader(data[pos:end], format_json_double).read_value(data[pos], 1, 0), end


def show_json(document: bytes) -> str:
    """A document as TiDB prints it, where a whole double looks like an integer. Raises as `read_json`."""
    return _Reader(document, show_json_double).read_value(document[0], 1, 0)


class _Reader:
    def __init__(self, data: bytes, format_double: Callable[[float], str]) -> None:
        self.data = data
        self.format_double = format_double
        self.budget = len(data) + 1

    def read_value(self, kind: int, pos: int, depth: int) -> str:
        self.budget -= 1
        if depth > MAX_DEPTH or self.budget < 0:
            raise ValueError("a JSON document is damaged: too deep or with overlapping parts")
        if kind in (OBJECT, ARRAY):
            return self.read_container(kind, pos, depth)
        if kind == DOUBLE:
            return self.format_double(struct.unpack("<d", _slice(self.data, pos, 8))[0])
        return _read_scalar(kind, self.data, pos)

    def read_container(self, kind: int, start: int, depth: int) -> str:
        count = _read_u32(self.data, start)
        entries = start + 8
        if kind == ARRAY:
            return f"[{', '.join(self.read_element(start, entries + 5 * i, depth) for i in range(count))}]"
        values = entries + 6 * count
        parts = (
            f"{self.read_key(start, entries + 6 * i)}: {self.read_element(start, values + 5 * i, depth)}"
            for i in range(count)
        )
        return f"{{{', '.join(parts)}}}"

    def read_element(self, start: int, entry: int, depth: int) -> str:
        kind = self.data[entry]
        if kind == LITERAL:
            return self.read_value(kind, entry + 1, depth + 1)
        return self.read_value(kind, start + _read_u32(self.data, entry + 1), depth + 1)

    def read_key(self, start: int, entry: int) -> str:
        self.budget -= 1
        if self.budget < 0:
            raise ValueError("a JSON document is damaged: more keys than bytes")
        at, size = start + _read_u32(self.data, entry), int.from_bytes(self.data[entry + 4 : entry + 6], "little")
        return quote_json(_slice(self.data, at, size).decode())


def _read_scalar(kind: int, data: bytes, pos: int) -> str:
    if kind == STRING:
        size, start = read_uvarint(data, pos)
        return quote_json(_slice(data, start, size).decode())
    if kind == OPAQUE:
        size, start = read_uvarint(data, pos + 1)
        return f'"base64:type{data[pos]}:{base64.b64encode(_slice(data, start, size)).decode()}"'
    body = _slice(data, pos, _FIXED.get(kind, 0))
    if kind == LITERAL:
        return _LITERALS[body[0]]
    if kind in (INT64, UINT64):
        return str(int.from_bytes(body, "little", signed=kind == INT64))
    if kind == TIME:
        return f'"{format_duration(int.from_bytes(body[:8], "little", signed=True), 6)}"'
    if kind in (DATE, DATETIME, TIMESTAMP):
        return _format_core_time(kind, int.from_bytes(body, "little"))
    raise ValueError(f"unknown JSON type {kind:#x}")


def _format_core_time(kind: int, bits: int) -> str:
    date = f"{bits >> 50:04d}-{bits >> 46 & 15:02d}-{bits >> 41 & 31:02d}"
    if kind == DATE:
        return f'"{date}"'
    micro = bits >> 4 & 0xFFFFF
    return f'"{date} {bits >> 36 & 31:02d}:{bits >> 30 & 63:02d}:{bits >> 24 & 63:02d}.{micro:06d}"'


def quote_json(text: str) -> str:
    """Quote `text` as TiDB shows it inside a document."""
    return f'"{_ESCAPE.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    return _SHORT.get(char) or f"\\u{ord(char):04x}"


def _read_u32(data: bytes, pos: int) -> int:
    return int.from_bytes(_slice(data, pos, 4), "little")


def _slice(data: bytes, pos: int, size: int) -> bytes:
    if pos + size > len(data):
        raise ValueError("a JSON document is cut short")
    return data[pos : pos + size]


@dataclass(frozen=True)
class Opaque:
    """Bytes of a MySQL type inside a document, which JSON text shows as base64."""

    tp: int
    body: bytes


@dataclass(frozen=True)
class Temporal:
    """A DATE, DATETIME, TIMESTAMP or TIME inside a document, with its text."""

    kind: int
    text: str
    fsp: int = 6


def write_json(text: str) -> bytes:
    """Type byte and binary value of JSON text; integers become int64 or uint64, others double. Raises ValueError."""
    try:
        return encode_json(json.loads(text, parse_constant=_refuse_constant))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a JSON document: {error}") from error


def encode_json(value: Any) -> bytes:
    """Type byte and binary value of a `json.loads` result that may contain Opaque and Temporal. Raises ValueError."""
    kind, body = _encode(value, 0)
    return bytes((kind,)) + body


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _encode(value: Any, depth: int) -> tuple[int, bytes]:
    if depth > MAX_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return OBJECT, _encode_object(value, depth)
    if isinstance(value, list):
        return ARRAY, _encode_container(len(value), b"", [_encode(item, depth + 1) for item in value])
    return _encode_scalar(value)


def _encode_scalar(value: Any) -> tuple[int, bytes]:
    if value is None or isinstance(value, bool):
        return LITERAL, bytes((0 if value is None else 1 if value else 2,))
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        signed = value < 1 << 63
        return (INT64 if signed else UINT64), value.to_bytes(8, "little", signed=signed)
    if isinstance(value, str):
        body = value.encode()
        return STRING, write_uvarint(len(body)) + body
    if isinstance(value, Opaque):
        return OPAQUE, bytes((value.tp,)) + write_uvarint(len(value.body)) + value.body
    if isinstance(value, Temporal):
        return value.kind, _encode_temporal(value)
    if not isfinite(value):
        raise ValueError(f"{value} is not a JSON number")
    return DOUBLE, struct.pack("<d", value)


def _encode_temporal(value: Temporal) -> bytes:
    if value.kind == TIME:
        return struct.pack("<qI", parse_duration(value.text), value.fsp)
    year, month, day, clock, micro = parse_moment_parts(value.text)
    hour, minute, second = clock
    date = year << 50 | month << 46 | day << 41
    return struct.pack("<Q", date | hour << 36 | minute << 30 | second << 24 | micro << 4)


def _encode_object(value: dict[str, Any], depth: int) -> bytes:
    items = sorted((key.encode(), _encode(item, depth + 1)) for key, item in value.items())
    at = 8 + 11 * len(items)
    entries, keys = b"", b""
    for key, _ in items:
        if len(key) > 0xFFFF:
            raise ValueError("a key is longer than 65535 bytes")
        entries += struct.pack("<IH", at + len(keys), len(key))
        keys += key
    return _encode_container(len(items), entries, [item for _, item in items], keys)


def _encode_container(count: int, key_entries: bytes, items: list[tuple[int, bytes]], keys: bytes = b"") -> bytes:
    at = 8 + len(key_entries) + 5 * count + len(keys)
    entries, bodies = b"", b""
    for kind, body in items:
        if kind == LITERAL:
            entries += bytes((kind,)) + body.ljust(4, b"\0")
        else:
            entries += struct.pack("<BI", kind, at + len(bodies))
            bodies += body
    return struct.pack("<II", count, at + len(bodies)) + key_entries + entries + keys + bodies
