"""Reads binlog files as events of a feed: one per row change or DDL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from binlake.base.filestore import Store
from binlake.binlogfile.framing import build_damage_error
from binlake.binlogfile.reading import DELETE, INSERT, UPDATE, Ddl, FilePosition, RowEvent, decode_value, read_items
from binlake.feed.reading.events import Event

_OPS = {INSERT: "c", UPDATE: "u", DELETE: "d"}


def read_binlog_files(store: Store) -> Iterator[Event]:
    """All events of the folder, in commit order. Raises Permanent, Transient."""
    for item in read_items(store):
        place = f"{item.place.file}@{item.place.offset}"
        if isinstance(item, Ddl):
            yield Event(place, item.commit_ts, item.db, "", "ddl", message={"sql": item.sql})
        else:
            for event in item.events:
                yield _build_row_event(place, item.commit_ts, item.place, event)


def _build_row_event(place: str, commit_ts: int, position: FilePosition, event: RowEvent) -> Event:
    try:
        row = {column.name: decode_value(column, column.value) for column in event.columns}
        changed: dict[str, Any] = {c.name: decode_value(c, c.changed) for c in event.columns if c.changed is not None}
    except ValueError as error:
        raise build_damage_error(str(error), position.file, position.offset) from error
    update = event.kind == UPDATE
    return Event(place, commit_ts, event.db, event.table, _OPS[event.kind], None, changed if update else row,
                 row if update else None)  # fmt: skip
