"""Writes TOML for the few kinds of values in Binlake's own files; tomllib reads the same values back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def to_toml(values: Mapping[str, Any]) -> str:
    """`values` as TOML: text, numbers, booleans, lists and tables of them; None is left out."""
    lines = [f"{_format_key(name)} = {_format_value(value)}" for name, value in values.items() if value is not None]
    return "".join(f"{line}\n" for line in lines)


def to_toml_sections(values: Mapping[str, Any], place: str = "") -> str:
    """`values` as TOML for people: a table, and each table of a list, is a section; deeper tables are inline."""
    plain = {name: value for name, value in values.items() if not _is_section(value)}
    text = to_toml(plain)
    for name, value in values.items():
        path = f"{place}.{_format_key(name)}" if place else _format_key(name)
        if isinstance(value, Mapping):
            only_sections = value and all(map(_is_section, value.values()))
            text += ("" if only_sections else f"\n[{path}]\n") + to_toml_sections(value, path)
        elif _is_section(value):
            text += "".join(f"\n[[{path}]]\n{to_toml(one)}" for one in value)
    return text


def _is_section(value: Any) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)
    )


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        # TOML has JSON's escapes, but also needs one for DEL, which JSON leaves unescaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        inner = ", ".join(
            f"{_format_key(name)} = {_format_value(one)}" for name, one in value.items() if one is not None
        )
        return f"{{{inner}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return json.dumps(value)


def _format_key(name: str) -> str:
    return name if name.isascii() and name.replace("-", "").replace("_", "").isalnum() else _format_value(name)
