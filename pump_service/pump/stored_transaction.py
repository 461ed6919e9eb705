"""A large transaction that is sent from the value log in parts, so that no more than a part of it is in memory.

Its payload is that of `heads.complete`: C up to its field 4, then P after that field. Its bytes are checked as they are
read: with the last part the crc of the whole P is known, and a consumer counts a binlog only when it has all parts.
"""

from __future__ import annotations

from typing import cast

import google_crc32c

from binlake.pump_service.pump.heads import parse_layout
from binlake.pump_service.pump.record import Pointer, RecordFrame, RecordHeader
from binlake.pump_service.pump.vlog import ValueLog
from binlake.rpc.messages import PREFIX
from binlake.wire.binlog_pb2 import Prewrite
from binlake.wire.blocks import PART_BYTES, encode_part_head

_WINDOW_BYTES = 4096


class StoredTransaction:
    """A complete C that is read and framed part by part; for one consumer.

    `size`: bytes of its payload; `is_sent`: all parts have been read.
    """

    def __init__(self, log: ValueLog, commit_ts: int, start_ts: int, commit_head: bytes, prewrite: _Record) -> None:
        self.commit_ts = commit_ts
        self.start_ts = start_ts
        self.size = len(commit_head) + prewrite.header.length - prewrite.cut
        self._commit_head = commit_head
        self._prewrite = prewrite
        self._log = log
        self._offset = 0
        self._at = prewrite.cut
        self._crc = google_crc32c.extend(prewrite.header.seed, prewrite.read(0, prewrite.cut))

    @classmethod
    def find(
        cls, log: ValueLog, commit: bytes, commit_ts: int, start_ts: int, prewrite: Pointer
    ) -> StoredTransaction | None:
        """The transaction of the C `commit`, whose P stands at `prewrite`; None if one of them is not plain.

        Raises WireError, LostRange.
        """
        layout = parse_layout(commit)
        record = None if layout is None else _Record.find(log, prewrite)
        if layout is None or record is None:
            return None
        return cls(log, commit_ts, start_ts, commit[: layout.cut], record)

    @property
    def is_sent(self) -> bool:
        """Whether all parts have been read."""
        return self._offset == self.size

    def read_next(self) -> list[bytes]:
        """The message with the next part, in pieces. Raises WireError with the last part if P is damaged, LostRange."""
        head = self._commit_head if not self._offset else b""
        count = min(PART_BYTES - len(head), self._prewrite.header.length - self._at)
        data = self._prewrite.read(self._at, count)
        self._crc = google_crc32c.extend(self._crc, data)
        begin = encode_part_head(self.commit_ts, self.start_ts, self.size, self._offset) + head
        self._at += count
        self._offset += len(head) + count
        if self.is_sent and self._crc != self._prewrite.header.crc:
            raise self._prewrite.frame.build_crc_error(self._prewrite.pointer.offset)
        return [PREFIX.pack(0, len(begin) + count) + begin, data]


class _Record:
    """The payload of a record, byte by byte or in stretches, without reading all of it. `cut` as in PayloadLayout."""

    def __init__(self, log: ValueLog, pointer: Pointer, frame: RecordFrame, header: RecordHeader) -> None:
        self.pointer, self.frame, self.header = pointer, frame, header
        self.cut = 0
        self._log = log
        self._window, self._begin = b"", 0

    @classmethod
    def find(cls, log: ValueLog, pointer: Pointer) -> _Record | None:
        """The record at `pointer`; None if its payload is not plain. Raises WireError, LostRange."""
        frame = log.look_up_frame(pointer.fid)
        raw = log.read_bytes(pointer, frame.header_bytes)
        record = cls(log, pointer, frame, frame.decode_header(raw, 0, pointer.offset))
        # It has the length and the items of the bytes.
        layout = parse_layout(cast("bytes", record))
        if layout is None or layout.tp != Prewrite or layout.commit_ts == layout.start_ts:
            return None
        record.cut = layout.cut
        return record

    def read(self, at: int, count: int) -> bytes:
        """`count` bytes from offset `at` of the payload. Raises WireError if the file ends before them, LostRange."""
        place = Pointer(self.pointer.fid, self.pointer.offset + self.frame.header_bytes + at)
        data = self._log.read_bytes(place, count)
        if len(data) < count:
            raise self.frame.build_crc_error(self.pointer.offset)
        return data

    def __len__(self) -> int:
        return self.header.length

    def __getitem__(self, at: int | slice) -> int | bytes:
        if isinstance(at, slice):
            return self.read(at.start, min(at.stop, len(self)) - at.start)
        if at >= len(self):
            raise IndexError(at)
        if not self._begin <= at < self._begin + len(self._window):
            self._window, self._begin = self.read(at, min(_WINDOW_BYTES, len(self) - at)), at
        return self._window[at - self._begin]
