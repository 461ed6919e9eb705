"""The row events of one transaction while its log is read: in memory, or in a file if they are many bytes.

A transaction is encoded when it is complete, and after everything before it is published. Until then only its table
maps and a few bytes of each file's buffer are in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from binlake.common.spool import SpoolFile
from binlake.mysqlbinlog.model import RowKind, RowsEvent, TableMap

SPOOL_BYTES = 16 << 20
"""Bytes of a transaction's rows above which they are in a file."""
_BLOCK = 1 << 20  # bytes written or read at once
_HEAD = struct.Struct("<BBIIII")  # kind, unchecked, table, bytes of before, after and rows
_KINDS = tuple(RowKind)


class SpooledChanges(Collection[RowsEvent]):
    """Row events in a file in `folder`, in the order in which they were added; reading them reads the file once."""

    def __init__(self, folder: Path | None) -> None:
        self._file = SpoolFile(folder)
        self._buffer = bytearray()
        self._tables: list[TableMap] = []
        self._table_numbers: dict[int, int] = {}
        self._count = 0

    @property
    def folder(self) -> Path | None:
        """The folder of its file."""
        return self._file.folder

    def add(self, event: RowsEvent) -> None:
        """Add an event. Raises BinlakeError when the disk is full or fails."""
        # By identity: table maps have many fields, and many events share one.
        number = self._table_numbers.get(id(event.table))
        if number is None:
            number = self._table_numbers[id(event.table)] = len(self._tables)
            self._tables.append(event.table)
        before, after, rows = event.before, event.after, event.rows
        self._buffer += _HEAD.pack(
            _KINDS.index(event.kind), event.unchecked, number, len(before), len(after), len(rows)
        )
        for part in (before, after, rows):
            self._buffer += part
        self._count += 1
        if len(self._buffer) >= _BLOCK:
            self._file.append(self._buffer)
            self._buffer.clear()

    def __len__(self) -> int:
        return self._count

    def __contains__(self, event: object) -> bool:
        return any(own == event for own in self)

    def __iter__(self) -> Iterator[RowsEvent]:
        if self._buffer:
            self._file.append(self._buffer)
            self._buffer.clear()
        data, at, place = b"", 0, 0
        for _ in range(self._count):
            if len(data) - at < _HEAD.size:
                size = max(_HEAD.size, _BLOCK)
                data, at, place = data[at:] + self._file.read(place, size), 0, place + size
            kind, unchecked, table, *sizes = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            missing = sum(sizes) - (len(data) - at)
            if missing > 0:
                size = max(missing, _BLOCK)
                data, at, place = data[at:] + self._file.read(place, size), 0, place + size
            first, second = at + sizes[0], at + sizes[0] + sizes[1]
            end = second + sizes[2]
            yield RowsEvent(
                _KINDS[kind], self._tables[table], data[at:first], data[first:second], data[second:end], bool(unchecked)
            )
            at = end


class ChangeBuffer:
    """The row events of an open transaction; more than SPOOL_BYTES of them go to a file in `folder`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._events: list[RowsEvent] = []
        self._spooled: SpooledChanges | None = None
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._events) or self._spooled is not None

    def add(self, event: RowsEvent) -> None:
        """Add an event. Raises BinlakeError when the disk is full or fails."""
        if self._spooled is not None:
            self._spooled.add(event)
            return
        self._events.append(event)
        self._bytes += len(event.rows)
        if self._bytes > SPOOL_BYTES:
            spooled = SpooledChanges(self._folder)
            for one in self._events:
                spooled.add(one)
            self._events, self._spooled = [], spooled

    def take(self) -> Collection[RowsEvent]:
        """The events, in order; none are left."""
        taken: Collection[RowsEvent] = self._spooled if self._spooled is not None else tuple(self._events)
        self.clear()
        return taken

    def put(self, changes: Collection[RowsEvent]) -> None:
        """Replace the events with `changes`, which were taken before."""
        self.clear()
        if isinstance(changes, SpooledChanges):
            self._spooled = changes
        else:
            for event in changes:
                self.add(event)

    def clear(self) -> None:
        """Forget the events."""
        self._events, self._spooled, self._bytes = [], None, 0
