"""Converts MySQL's binary JSON to TiDB's directly: strings, doubles and literals are the same bytes in both.

The result equals writing the value of `jsonbinary.decode_json`, which is the reference and knows the rarer types too.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct, error
from typing import NamedTuple

from binlake.mysqlbinlog.rowimage.jsonbinary import decode_json
from binlake.rows.codec.jsons import ARRAY, DOUBLE, INT64, LITERAL, MAX_DEPTH, OBJECT, STRING, UINT64, encode_json

_SMALL_OBJECT, _LARGE_OBJECT, _SMALL_ARRAY, _LARGE_ARRAY, _LITERAL = range(5)
_INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(5, 13)
_INTEGERS = {_INT16: Struct("<h"), _UINT16: Struct("<H"), _INT32: Struct("<i"), _UINT32: Struct("<I")}
_WIDE = {_INT64: INT64, _UINT64: UINT64, _DOUBLE: DOUBLE}
_WORD, _HEAD, _KEY, _ENTRY = Struct("<q").pack, Struct("<II").pack, Struct("<IH").pack, Struct("<BI").pack
# Of small and large containers: count and size, the entry of a key and of a value.
_SMALL = Struct("<HH"), Struct("<HH"), Struct("<BH")
_LARGE = Struct("<II"), Struct("<IH"), Struct("<BI")

_KNOWN_KEYS, _LONG_KEYS = 1024, 4096
"""Number of cached sets of keys, and the bytes from which a set is not cached."""

_Part = tuple[int, bytes]
"""TiDB's type and body of a value."""


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
        return STRING, _read_sized(data, pos)
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
    head, key_entry, value_entry = _LARGE if large else _SMALL
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
    spans = list((_LARGE if large else _SMALL)[1].iter_unpack(entries))
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
        return STRING, _cut(data, value_at, size + 1) if size < 0x80 else _read_sized(data, value_at)
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


def _read_sized(data: bytes, pos: int) -> bytes:
    """A string preceded by its length, which both formats write the same way."""
    size, shift, at = 0, 0, pos
    while True:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return _cut(data, pos, at - pos + size)


def _cut(data: bytes, pos: int, size: int) -> bytes:
    if not 0 <= pos <= len(data) - size:
        raise ValueError("a JSON document is cut short")
    return data[pos : pos + size]
