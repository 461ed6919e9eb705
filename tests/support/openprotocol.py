"""Decode the Open Protocol as its public page describes: events of a message, rows as canonical texts."""

from __future__ import annotations

import ast
import base64
import json
from collections.abc import Mapping
from typing import Any

from support.feedrows import Row, bit_text, member_text, number_text

from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t

Event = tuple[dict[str, Any], dict[str, Any] | None]
_BINARY = 1


def decode_open(key: bytes, value: bytes) -> list[Event]:
    """(key, value) of each event of a message; a resolved event has no value."""
    assert int.from_bytes(key[:8], "big") == 1
    keys, values = list(_parts(key[8:])), list(_parts(value))
    assert len(keys) == len(values)
    return [(json.loads(k), json.loads(v, parse_int=_number) if v else None) for k, v in zip(keys, values, strict=True)]


def row_of_open(members: Mapping[str, Any], columns: Mapping[str, ColumnInfo]) -> Row:
    """One row of a value: the part `u`, `p` or `d`."""
    return {name: _text(columns[name], member) for name, member in members.items()}


def _parts(data: bytes) -> list[bytes]:
    found = []
    while data:
        size = int.from_bytes(data[:8], "big")
        assert len(data) >= 8 + size
        found.append(data[8 : 8 + size])
        data = data[8 + size :]
    return found


def _text(column: ColumnInfo, member: Mapping[str, Any]) -> str | None:
    value, kind, binary = member["v"], member["t"], member["f"] & _BINARY
    assert kind == column.tp
    if value is None:
        return None
    if kind in (t.ENUM, t.SET):
        return member_text(column, value)
    if kind == t.BIT:
        return bit_text(column, value)
    if kind in t.BLOBS:
        data = base64.b64decode(value, validate=True)
        return data.hex().upper() if binary else data.decode()
    if kind in t.STRINGS and binary:
        # Go's quoting is a subset of Python's: \xNN, \n, \" and the like.
        return str(ast.literal_eval(f'b"{value}"').hex().upper())
    if kind in (t.FLOAT, t.DOUBLE):
        return number_text(column, value)
    if kind == t.YEAR:
        return f"{value:04}"
    return str(value)


def _number(text: str) -> float:
    # Python's parser for integers loses the sign of a negative zero.
    return -0.0 if text == "-0" else int(text)
