"""Prints binlog files for people: each row with its columns' types, and for an update old -> new.

Rule: a value is shown as stored in its datum, since no table definition is known: an ENUM as its number, a TIMESTAMP in
the zone of the drainer that wrote the files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from binlake import tso
from binlake.binlogfile.framing import build_damage_error
from binlake.binlogfile.reading import Column, Ddl, Item, RowEvent, Transaction, decode_datum

Keeps = Callable[[str, str], bool]

_BINARY = ("binary", "varbinary", "blob", "tinyblob", "mediumblob", "longblob", "bit")


def render_text_lines(items: Iterable[Item], keeps: Keeps) -> Iterator[str]:
    """The lines of `items` for a terminal. Raises DamagedFile."""
    for item in items:
        head = f"-- {item.commit_ts} ({tso.to_datetime(item.commit_ts):%Y-%m-%d %H:%M:%S.%f} UTC)"
        if isinstance(item, Ddl):
            yield f"{head} DDL"
            yield f"use {item.db}; {item.sql};" if item.db else f"{item.sql};"
            continue
        events = [event for event in item.events if keeps(event.db, event.table)]
        if events:
            yield f"{head} {len(events)} rows"
        for event in events:
            yield f"{event.kind} {event.db}.{event.table}"
            for column in event.columns:
                old, new = _format_values(column, item)
                yield f"  {column.name} ({column.mysql_type}): {_quote_text(old)}" + (
                    f" -> {_quote_text(new)}" if column.changed is not None else ""
                )


def render_json_lines(items: Iterable[Item], keeps: Keeps) -> Iterator[str]:
    """One JSON object per row change or DDL. Raises DamagedFile."""
    for item in items:
        where = {"commit_ts": str(item.commit_ts), "file": item.place.file, "offset": item.place.offset}
        if isinstance(item, Ddl):
            yield json.dumps({**where, "kind": "ddl", "db": item.db, "sql": item.sql}, ensure_ascii=False)
            continue
        for event in item.events:
            if keeps(event.db, event.table):
                yield json.dumps({**where, **_build_row(event, item)}, ensure_ascii=False)


def _build_row(event: RowEvent, item: Transaction) -> dict[str, Any]:
    values = {column.name: _format_values(column, item) for column in event.columns}
    sides: dict[str, Any] = {}
    if event.kind != "insert":
        sides["before"] = {name: old for name, (old, _) in values.items()}
    if event.kind != "delete":
        at = 1 if event.kind == "update" else 0
        sides["after"] = {name: both[at] for name, both in values.items()}
    types = {column.name: column.mysql_type for column in event.columns}
    return {"kind": event.kind, "db": event.db, "table": event.table, **sides, "types": types}


def _format_values(column: Column, item: Transaction) -> tuple[str | None, str | None]:
    """(value, changed value) as text; bytes of binary types as upper-case hex."""
    try:
        new = None if column.changed is None else _format_datum(column, column.changed)
        return _format_datum(column, column.value), new
    except ValueError as error:
        raise build_damage_error(f"column {column.name}: {error}", item.place.file, item.place.offset) from error


def _format_datum(column: Column, datum: bytes) -> str | None:
    value = decode_datum(datum)
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        return str(value)
    if column.mysql_type not in _BINARY:
        try:
            return value.decode()
        except UnicodeDecodeError:
            pass
    return value.hex().upper()


def _quote_text(text: str | None) -> str:
    return "NULL" if text is None else json.dumps(text, ensure_ascii=False)
