"""MySQL's binary JSON (`json_binary.h`): parsed to values, converted to TiDB's directly, changed by differences.

A document is a type byte and a value; in an object or array, entries contain small values or offsets from its start:
2 bytes in small ones, 4 in large ones. A DECIMAL becomes a double, as TiDB casts it. The direct conversion uses that
strings, doubles and literals are the same bytes in both; the result equals writing the value of `decode_json`, which is
the reference and knows the rarer types too.

A difference (binlog_row_value_options = PARTIAL_JSON, `json_diff.cc`) is an operation, a path as text and, unless it
removes, a value in binary JSON.
"""

from __future__ import annotations

import json
import re
import struct
from functools import lru_cache
from struct import Struct, error
from typing import Any, NamedTuple

from binlake.rows.codec.datum import read_decimal
from binlake.rows.codec.jsons import (
    ARRAY,
    DATE,
    DATETIME,
    DOUBLE,
    INT64,
    LITERAL,
    MAX_DEPTH,
    OBJECT,
    STRING,
    TIME,
    TIMESTAMP,
    UINT64,
    Opaque,
    Temporal,
    encode_json,
)
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
_REPLACE, _INSERT, _REMOVE = range(3)
_LEG = re.compile(r'\[(?:(last)(?:-(\d+))?|(\d+))\]|\.("(?:[^"\\]|\\.)*")|\.([^.\[]+)', re.DOTALL)
_SIZES = {0xFC: 2, 0xFD: 3, 0xFE: 8}
Leg = str | int
_INTEGERS = {_INT16: Struct("<h"), _UINT16: Struct("<H"), _INT32: Struct("<i"), _UINT32: Struct("<I")}
_WIDE = {_INT64: INT64, _UINT64: UINT64, _DOUBLE: DOUBLE}
_WORD, _HEAD, _KEY, _ENTRY = Struct("<q").pack, Struct("<II").pack, Struct("<IH").pack, Struct("<BI").pack
# Of small and large containers: count and size, the entry of a key and of a value.
_SMALL_PARTS = Struct("<HH"), Struct("<HH"), Struct("<BH")
_LARGE_PARTS = Struct("<II"), Struct("<IH"), Struct("<BI")
_KNOWN_KEYS, _LONG_KEYS = 1024, 4096
"""Number of cached sets of keys, and the bytes from which a set is not cached."""
_Part = tuple[int, bytes]
"""TiDB's type and body of a value."""


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
        keys.append(_cut(data, start + offset, size).decode())
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
            return _cut(data, pos, size)


def _cut(data: bytes, pos: int, size: int) -> bytes:
    if not 0 <= pos <= len(data) - size:
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


def read_packed(data: bytes, pos: int) -> tuple[int, int]:
    """A length-encoded integer of MySQL's protocol, and the position after it."""
    first = data[pos]
    if first < 0xFB:
        return first, pos + 1
    size = _SIZES.get(first, 0)
    if not size or pos + 1 + size > len(data):
        raise ValueError("a length-encoded integer is damaged")
    return int.from_bytes(data[pos + 1 : pos + 1 + size], "little"), pos + 1 + size


def apply_diffs(document: Any, diffs: bytes) -> Any:
    """The document after `diffs`. Raises ValueError, KeyError or IndexError if they do not fit it."""
    root, pos = [document], 0
    while pos < len(diffs):
        operation = diffs[pos]
        path, pos = _read_part(diffs, pos + 1)
        legs: list[Leg] = [0, *parse_path(path.decode())]
        if operation == _REMOVE:
            _apply(root, legs, operation, None)
            continue
        value, pos = _read_part(diffs, pos)
        _apply(root, legs, operation, decode_json(value))
    return root[0]


def parse_path(path: str) -> list[Leg]:
    """The legs of a path such as `$.a[2]."b c"[last-1]`: names and array indexes, negative ones from the end."""
    legs: list[Leg] = []
    pos = 1
    while pos < len(path):
        match = _LEG.match(path, pos)
        if match is None:
            raise ValueError("a path in a JSON difference cannot be read")
        last, back, index, quoted, name = match.groups()
        if last:
            legs.append(-1 - int(back or 0))
        else:
            legs.append(int(index) if index is not None else json.loads(quoted) if quoted is not None else name)
        pos = match.end()
    return legs


def _apply(root: list[Any], legs: list[Leg], operation: int, value: Any) -> None:
    *others, last = _select_real_legs(root, legs)
    parent: Any = root
    for leg in others:
        parent = parent[leg]
    if operation == _REMOVE:
        del parent[last]
    elif operation == _INSERT and isinstance(parent, list):
        parent.insert(int(last), value)
    elif operation in (_INSERT, _REPLACE):
        parent[last] = value
    else:
        raise ValueError(f"unknown operation {operation} in a JSON difference")


def _select_real_legs(root: list[Any], legs: list[Leg]) -> list[Leg]:
    """The legs without indexes into non-arrays: there the only element is the value itself."""
    real: list[Leg] = []
    value: Any = root
    for number, leg in enumerate(legs):
        if isinstance(leg, int) and not isinstance(value, list):
            continue
        real.append(leg)
        if number < len(legs) - 1:
            value = value[leg]
    return real


def _read_part(data: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = read_packed(data, pos)
    if pos + size > len(data):
        raise ValueError("a JSON difference is cut short")
    return data[pos : pos + size], pos + size


def convert_to_tidb_json(raw: bytes) -> bytes:
    """TiDB's type byte and value of a document. Raises ValueError or IndexError for a damaged one."""
    if not raw:
        return encode_json(None)
    try:
        kind, body = _convert_part(raw[0], raw, 1, 0)
    except error as damage:
        raise ValueError(f"a JSON document is damaged: {damage}") from damage
    return bytes((kind,)) + body


def _convert_part(kind: int, data: bytes, pos: int, depth: int) -> _Part:
    if kind == _STRING:
        return STRING, _cut_sized(data, pos)
    integer = _INTEGERS.get(kind)
    if integer is not None:
        return INT64, _WORD(integer.unpack_from(data, pos)[0])
    if kind in _WIDE:
        body = _cut(data, pos, 8)
        # TiDB's integers are signed if they fit.
        return (INT64 if kind == _UINT64 and body[7] < 0x80 else _WIDE[kind]), body
    if kind <= _LARGE_ARRAY:
        return _convert_container(kind, data, pos, depth)
    if kind == _LITERAL and data[pos] < 3:
        return LITERAL, data[pos : pos + 1]
    written = encode_json(decode_json(bytes((kind,)) + data[pos:]))
    return written[0], written[1:]


def _convert_container(kind: int, data: bytes, start: int, depth: int) -> _Part:
    if depth > MAX_DEPTH:
        raise ValueError("a JSON document is too deep")
    large = kind in (_LARGE_OBJECT, _LARGE_ARRAY)
    head, key_entry, value_entry = _LARGE_PARTS if large else _SMALL_PARTS
    count, size = head.unpack_from(data, start)
    if start + size > len(data):
        raise ValueError("a JSON document is cut short")
    pos = start + head.size
    if kind in (_SMALL_ARRAY, _LARGE_ARRAY):
        values = value_entry.iter_unpack(_cut(data, pos, value_entry.size * count))
        return ARRAY, _build_container(
            count, b"", b"", [_convert_element(data, start, large, depth, *value) for value in values]
        )
    if not count:
        return OBJECT, _build_container(0, b"", b"", [])
    values_at = pos + key_entry.size * count
    last, length = key_entry.unpack_from(data, values_at - key_entry.size)
    # The documents of a column mostly have the same keys.
    keys_at = values_at + value_entry.size * count
    texts = _cut(data, keys_at, start + last + length - keys_at)
    find = _convert_keys if len(texts) < _LONG_KEYS else _convert_keys.__wrapped__
    keys = find(_cut(data, pos, values_at - pos), texts, keys_at - start, large)
    values = value_entry.iter_unpack(_cut(data, values_at, value_entry.size * count))
    parts = [_convert_element(data, start, large, depth, *value) for value in values]
    return OBJECT, _build_container(count, keys.entries, keys.texts, [parts[index] for index in keys.order])


class _Keys(NamedTuple):
    """The keys of an object in TiDB's order: their indexes in MySQL's order, TiDB's entries and texts."""

    order: list[int]
    entries: bytes
    texts: bytes


@lru_cache(_KNOWN_KEYS)
def _convert_keys(entries: bytes, texts: bytes, offset: int, large: bool) -> _Keys:
    """`texts`: of all keys, the first at `offset`, in MySQL's order, which is by length first."""
    spans = list((_LARGE_PARTS if large else _SMALL_PARTS)[1].iter_unpack(entries))
    keys = [_cut(texts, at - offset, length) for at, length in spans]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    at, written = 8 + 11 * len(keys), []
    for index in order:
        written.append(_KEY(at, len(keys[index])))
        at += len(keys[index])
    return _Keys(order, b"".join(written), b"".join([keys[index] for index in order]))


def _convert_element(data: bytes, start: int, large: bool, depth: int, kind: int, value: int) -> _Part:
    """A value by its entry, which contains small values itself and the offset of others."""
    if kind == _STRING:
        value_at = start + value
        size = data[value_at]
        return STRING, _cut(data, value_at, size + 1) if size < 0x80 else _cut_sized(data, value_at)
    if kind == _INT16:
        return INT64, _WORD((value & 0xFFFF ^ 0x8000) - 0x8000)
    if kind == _UINT16:
        return INT64, _WORD(value & 0xFFFF)
    if kind == _LITERAL and value & 0xFF < 3:
        return LITERAL, bytes((value & 0xFF,))
    if large and kind == _INT32:
        return INT64, _WORD((value ^ 0x80000000) - 0x80000000)
    if large and kind == _UINT32:
        return INT64, _WORD(value)
    return _convert_part(kind, data, start + value, depth + 1)


def _build_container(count: int, key_entries: bytes, keys: bytes, parts: list[_Part]) -> bytes:
    at = 8 + len(key_entries) + 5 * count + len(keys)
    entries, bodies = [key_entries], [keys]
    for kind, body in parts:
        if kind == LITERAL:
            entries.append(b"\x04" + body + b"\0\0\0")
        else:
            entries.append(_ENTRY(kind, at))
            bodies.append(body)
            at += len(body)
    return b"".join((_HEAD(count, at), *entries, *bodies))


def _cut_sized(data: bytes, pos: int) -> bytes:
    """A string preceded by its length, which both formats write the same way."""
    size, shift, at = 0, 0, pos
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return _cut(data, pos, at - pos + size)
