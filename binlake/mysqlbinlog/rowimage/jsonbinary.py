"""Parses MySQL's binary JSON to values from which TiDB's is written (MySQL `json_binary.h`).

A document is a type byte and a value; in an object or array, entries contain small values or offsets from its start:
2 bytes in small ones, 4 in large ones. A DECIMAL becomes a double, as TiDB casts it.
"""

from __future__ import annotations

import struct
from typing import Any

from binlake.rows.codec.jsons import DATE, DATETIME, MAX_DEPTH, TIME, TIMESTAMP, Opaque, Temporal
from binlake.rows.codec.numbers import read_decimal
from binlake.rows.codec.temporal import format_date, format_duration, format_moment
from binlake.rows.schema import mysqltypes as t

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_OPAQUE = 15
_NUMBERS = {
    _INT16: struct.Struct("<h"), _UINT16: struct.Struct("<H"), _INT32: struct.Struct("<i"),
    _UINT32: struct.Struct("<I"), _INT64: struct.Struct("<q"), _UINT64: struct.Struct("<Q"),
    _DOUBLE: struct.Struct("<d"),
}  # fmt: skip
_LITERALS = {0: None, 1: True, 2: False}
_SMALL, _LARGE = struct.Struct("<HH"), struct.Struct("<II")
_KEY_SMALL, _KEY_LARGE = struct.Struct("<HH"), struct.Struct("<IH")
_MOMENTS = {t.DATE: DATE, t.DATETIME: DATETIME, t.TIMESTAMP: TIMESTAMP}


def decode_json(raw: bytes) -> Any:
    """The document as from `json.loads`, with Opaque and Temporal; empty bytes are a null, as MySQL reads them."""
    try:
        return _decode_value(raw[0], raw, 1, 0) if raw else None
    except struct.error as error:
        raise ValueError(f"a JSON document is damaged: {error}") from error


def _decode_value(kind: int, data: bytes, pos: int, depth: int) -> Any:
    if depth > MAX_DEPTH + 1:
        raise ValueError("a JSON document is too deep")
    if kind == _STRING:
        return _read_sized(data, pos).decode()
    number = _NUMBERS.get(kind)
    if number is not None:
        return number.unpack_from(data, pos)[0]
    if kind == _LITERAL:
        return _decode_literal(data[pos])
    if kind == _OPAQUE:
        return _decode_opaque(data[pos], _read_sized(data, pos + 1))
    if kind in (_SMALL_OBJECT, _LARGE_OBJECT):
        return _decode_object(data, pos, kind == _LARGE_OBJECT, depth)
    if kind in (_SMALL_ARRAY, _LARGE_ARRAY):
        large = kind == _LARGE_ARRAY
        count = (_LARGE if large else _SMALL).unpack_from(data, pos)[0]
        return _decode_elements(data, pos, pos + (8 if large else 4), count, large, depth)
    raise ValueError(f"unknown JSON type {kind}")


def _decode_literal(code: int) -> bool | None:
    if code not in _LITERALS:
        raise ValueError(f"unknown JSON literal {code}")
    return _LITERALS[code]


def _decode_object(data: bytes, start: int, large: bool, depth: int) -> dict[str, Any]:
    head, entry = (_LARGE, _KEY_LARGE) if large else (_SMALL, _KEY_SMALL)
    count = head.unpack_from(data, start)[0]
    pos, keys = start + head.size, []
    for _ in range(count):
        offset, size = entry.unpack_from(data, pos)
        keys.append(_slice(data, start + offset, size).decode())
        pos += entry.size
    return dict(zip(keys, _decode_elements(data, start, pos, count, large, depth), strict=True))


def _decode_elements(data: bytes, start: int, pos: int, count: int, large: bool, depth: int) -> list[Any]:
    width = 4 if large else 2
    if pos + count * (width + 1) > len(data):
        raise ValueError("a JSON document is cut short")
    values = []
    for at in range(pos, pos + count * (width + 1), width + 1):
        kind = data[at]
        inline = kind in (_LITERAL, _INT16, _UINT16) or (large and kind in (_INT32, _UINT32))
        value_at = at + 1 if inline else start + int.from_bytes(data[at + 1 : at + 1 + width], "little")
        values.append(_decode_value(kind, data, value_at, depth + 1))
    return values


def _read_sized(data: bytes, pos: int) -> bytes:
    size, shift = 0, 0
    while True:
        byte = data[pos]
        size |= (byte & 0x7F) << shift
        pos, shift = pos + 1, shift + 7
        if byte < 0x80:
            return _slice(data, pos, size)


def _slice(data: bytes, pos: int, size: int) -> bytes:
    if pos + size > len(data):
        raise ValueError("a JSON document is cut short")
    return data[pos : pos + size]


def _decode_opaque(tp: int, body: bytes) -> Opaque | Temporal | float:
    if tp == t.NEWDECIMAL:
        return float(read_decimal(body, 0, 0)[0])
    if tp == t.DURATION:
        return Temporal(TIME, format_duration(_decode_nanoseconds(int.from_bytes(body, "little", signed=True)), 6))
    if tp in _MOMENTS:
        packed = int.from_bytes(body, "little", signed=True)
        return Temporal(_MOMENTS[tp], format_date(packed) if tp == t.DATE else format_moment(packed, 6))
    return Opaque(tp, body)


def _decode_nanoseconds(packed: int) -> int:
    size = abs(packed)
    clock = size >> 24
    seconds = (clock >> 12 & 0x3FF) * 3600 + (clock >> 6 & 63) * 60 + (clock & 63)
    nanos = (seconds * 1_000_000 + (size & 0xFFFFFF)) * 1000
    return -nanos if packed < 0 else nanos
