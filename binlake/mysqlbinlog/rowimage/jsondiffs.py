"""Applies differences of a JSON document (MySQL, binlog_row_value_options = PARTIAL_JSON) to the previous document.

A difference is an operation, a path as text and, unless it removes, a value in binary JSON (MySQL `json_diff.cc`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from binlake.mysqlbinlog.rowimage.jsonbinary import decode_json

_REPLACE, _INSERT, _REMOVE = range(3)
_LEG = re.compile(r'\[(?:(last)(?:-(\d+))?|(\d+))\]|\.("(?:[^"\\]|\\.)*")|\.([^.\[]+)', re.DOTALL)
_SIZES = {0xFC: 2, 0xFD: 3, 0xFE: 8}

Leg = str | int


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
        path, pos = _read_sized(diffs, pos + 1)
        legs: list[Leg] = [0, *parse_path(path.decode())]
        if operation == _REMOVE:
            _apply(root, legs, operation, None)
            continue
        value, pos = _read_sized(diffs, pos)
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


def _read_sized(data: bytes, pos: int) -> tuple[bytes, int]:
    size, pos = read_packed(data, pos)
    if pos + size > len(data):
        raise ValueError("a JSON difference is cut short")
    return data[pos : pos + size], pos + size
