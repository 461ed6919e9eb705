"""Find the value at a path of a JSON column's text, and compare it; values of different types always differ.

The null of a document is a value, not NULL. Numbers keep their text, so that `->>` shows them as TiDB does.
"""

from __future__ import annotations

import json
from typing import Any

from binlake.rows.codec.jsons import quote_json


class _Null:
    """The null of a document."""

    def __reduce__(self) -> str:
        return "JSON_NULL"


JSON_NULL = _Null()


class _Number(str):
    """A number as the document writes it."""

    __slots__ = ()


def find_value(path: tuple[str | int, ...], text: str) -> Any:
    """The value at `path` (names and array indexes) of the document `text`; None if there is none."""
    value = json.loads(text, parse_int=_Number, parse_float=_Number)
    for leg in path:
        if isinstance(leg, str):
            if not isinstance(value, dict) or leg not in value:
                return None
            value = value[leg]
        elif isinstance(value, list):
            if leg >= len(value):
                return None
            value = value[leg]
        elif leg:  # The [0] of a value that is not an array is the value itself.
            return None
    return JSON_NULL if value is None else value


def equals(constant: str | float, value: Any) -> bool:
    """Whether a document's value equals a constant text or number."""
    if isinstance(constant, str):
        return type(value) is str and value == constant
    return isinstance(value, _Number) and float(value) == constant


def unquote(value: Any) -> str:
    """The operator ->>: a text without its quotes, any other value as the document shows it."""
    return value if type(value) is str else _format_document(value)


def _format_document(value: Any) -> str:
    if isinstance(value, _Number):
        return str(value)
    if isinstance(value, str):
        return quote_json(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_format_document, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quote_json(key)}: {_format_document(part)}" for key, part in value.items()) + "}"
    return "null" if value is None or value is JSON_NULL else "true" if value else "false"
