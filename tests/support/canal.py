"""Decode Canal-JSON as its public page describes: from a message back to a change with canonical texts as values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from support.feedrows import Row, bit_text, member_text, number_text

from binlake.rows.schema import ColumnInfo
from binlake.rows.schema import mysqltypes as t


@dataclass(frozen=True)
class CanalChange:
    """A row change: `type` as in the message; `data`: the row after the change, or the deleted row; `old`: the row
    before an update.
    """

    type: str
    name: tuple[str, str]
    data: Row
    old: Row | None
    commit_ts: int | None


def decode_canal(value: bytes, columns: Mapping[str, ColumnInfo]) -> CanalChange:
    """Decode a message; `columns` are its table's columns, needed for values that the message encodes as numbers."""
    message = json.loads(value)
    assert message["isDdl"] is False
    assert len(message["data"]) == 1
    assert message["sqlType"].keys() == message["mysqlType"].keys() == message["data"][0].keys()
    old = message["old"]
    return CanalChange(
        message["type"],
        (message["database"], message["table"]),
        _row(message["data"][0], message, columns),
        None if old is None else _row(old[0], message, columns),
        message.get("_tidb", {}).get("commitTs"),
    )


def _row(values: dict[str, str | None], message: dict[str, Any], columns: Mapping[str, ColumnInfo]) -> Row:
    return {name: _text(columns[name], text, message["mysqlType"][name]) for name, text in values.items()}


def _text(column: ColumnInfo, text: str | None, mysql_type: str) -> str | None:
    if text is None:
        return None
    assert isinstance(text, str)
    if mysql_type in ("enum", "set"):
        return member_text(column, int(text))
    if mysql_type == "bit":
        return bit_text(column, int(text))
    if "binary" in mysql_type or "blob" in mysql_type:
        return text.encode("latin-1").hex().upper()
    if column.tp in (t.FLOAT, t.DOUBLE):
        return number_text(column, text)
    return text
