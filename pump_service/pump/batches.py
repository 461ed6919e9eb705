"""Transactions on their way from the value log to a consumer: batches in columns, and the messages they are sent in.

A batch has complete transactions and fakes in ascending commit_ts. A payload is held as two pieces, from its commit and
from its prewrite, until a caller wants it joined. Each message carries one binlog, as the original's do, or many
binlogs for a consumer that asked for blocks (binlake.wire.blocks); batches are framed in pieces that do not block the
loop for long. PullBinlogResp messages have the same bytes as protobuf would write, at a tenth of the cost: entity
(field 1) = pos (1, empty: Go emits it), payload (2), meta (4) = startTs (1), commitTs (2), and gRPC's prefix before
each message. The timestamps of a batch are encoded together, column by column.

A large transaction is sent from the value log in parts, so that no more than a part of it is in memory. Its payload is
that of `heads.complete`: C up to its field 4, then P after that field. Its bytes are checked as they are read: with the
last part the crc of the whole P is known, and a consumer counts a binlog only when it has all parts.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import cast

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from binlake.common.varint import write_uvarint
from binlake.pump_service.pump.heads import parse_layout
from binlake.pump_service.pump.ranges import Ints
from binlake.pump_service.pump.record import Pointer, RecordFrame, RecordHeader
from binlake.pump_service.pump.vlog import ValueLog
from binlake.rpc import Call
from binlake.rpc.messages import PREFIX
from binlake.wire import blocks as wire
from binlake.wire.binlog_pb2 import Prewrite
from binlake.wire.blocks import PART_BYTES, encode_part_head
from binlake.wire.pump_pb2 import PullBinlogResp

_WINDOW_BYTES = 4096

Transaction = tuple[int, int, bytes]
"""(start_ts, commit_ts, payload: the complete C, or a fake as stored)."""

_FEW = 8
_NINE = 1 << 56  # timestamps from this one to below 2^63 are varints of nine bytes: all since 2016
_META_BYTES = 22
_SHIFTS = np.arange(0, 63, 7, dtype=np.uint64)
_CHUNK_BYTES = 256 << 10
_LARGE = 1 << 20  # bytes: larger payloads are not copied


class TransactionBatch:
    """Transactions in ascending commit_ts; new ones are added at the end.

    `large`: the only transaction of the batch, if it is sent from the value log; then the batch is not empty.
    """

    def __init__(self) -> None:
        self.large: StoredTransaction | None = None
        self._starts: list[Ints] = []
        self._commits: list[Ints] = []
        self._pieces: list[bytes] = []

    def __len__(self) -> int:
        return len(self._pieces) >> 1 if self.large is None else 1

    def add(self, start_ts: int, commit_ts: int, payload: bytes) -> None:
        """Add a transaction."""
        self.extend(np.array([start_ts], np.int64), np.array([commit_ts], np.int64), [payload, b""])

    def extend(self, start_ts: Ints, commit_ts: Ints, pieces: list[bytes]) -> None:
        """Add several transactions; `pieces`: two for each."""
        self._starts.append(start_ts)
        self._commits.append(commit_ts)
        self._pieces += pieces

    def select_after(self, ts: int) -> TransactionBatch:
        """The transactions with a commit_ts above `ts`."""
        first = int(np.searchsorted(self.commit_ts, ts, side="right"))
        return self.select_range(first, len(self))

    def select_range(self, first: int, last: int) -> TransactionBatch:
        """The transactions from index `first` to `last` - 1."""
        some = TransactionBatch()
        some.extend(self.start_ts[first:last], self.commit_ts[first:last], self._pieces[2 * first : 2 * last])
        return some

    @property
    def start_ts(self) -> Ints:
        """The start_ts of each transaction."""
        return _concatenate(self._starts)

    @property
    def commit_ts(self) -> Ints:
        """The commit_ts of each transaction."""
        return _concatenate(self._commits)

    @property
    def sizes(self) -> Ints:
        """Bytes of each payload."""
        lengths = np.fromiter(map(len, self._pieces), np.int64, len(self._pieces))
        return lengths[::2] + lengths[1::2]

    @property
    def pieces(self) -> list[bytes]:
        """The pieces of all payloads, in order."""
        return self._pieces

    def list_transactions(self) -> list[Transaction]:
        """The transactions as tuples, payloads joined."""
        payloads = map(operator.add, self._pieces[::2], self._pieces[1::2])
        return list(zip(self.start_ts.tolist(), self.commit_ts.tolist(), payloads, strict=True))


def split_into_frames(batch: TransactionBatch, call: Call, *, blocks: bool) -> Iterator[tuple[int, list[bytes]]]:
    """The frames of `batch` for `call`, a few at a time, each group with the last commit_ts it contains."""
    return _frame_in_blocks(batch, call) if blocks else _frame_singly(batch.list_transactions(), call)


def _frame_singly(batch: list[Transaction], call: Call) -> Iterator[tuple[int, list[bytes]]]:
    if call.request.gzip:
        for entity in batch:
            yield entity[1], [call.encode_message(encode_message(*entity))]
        return
    first, size = 0, 0
    for at, entity in enumerate(batch):
        if len(entity[2]) >= _LARGE:
            if first < at:
                yield batch[at - 1][1], [frame_batch(batch[first:at])]
            yield entity[1], list(frame_in_pieces(entity))
            first, size = at + 1, 0
            continue
        size += len(entity[2])
        if size >= _CHUNK_BYTES:
            yield entity[1], [frame_batch(batch[first : at + 1])]
            first, size = at + 1, 0
    if first < len(batch):
        yield batch[-1][1], [frame_batch(batch[first:])]


def _frame_in_blocks(batch: TransactionBatch, call: Call) -> Iterator[tuple[int, list[bytes]]]:
    sizes = batch.sizes
    ends = sizes.cumsum()
    first = 0
    while first < len(sizes):
        before = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, before + _CHUNK_BYTES, side="right")))
        some = batch.select_range(first, last)
        head = wire.encode_head(some.commit_ts, some.start_ts, sizes[first:last])
        yield int(some.commit_ts[-1]), _frame_block(head, some.pieces, int(ends[last - 1]) - before, call)
        first = last


def _frame_block(head: bytes, pieces: list[bytes], size: int, call: Call) -> list[bytes]:
    if call.request.gzip:
        return [call.encode_message(b"".join((head, *pieces)))]
    begin = PREFIX.pack(0, len(head) + size) + head
    return [begin, *pieces] if size >= _LARGE else [b"".join((begin, *pieces))]


def encode_message(start_ts: int, commit_ts: int, payload: bytes) -> bytes:
    """One PullBinlogResp."""
    response = PullBinlogResp()
    entity = response.entity
    entity.pos.SetInParent()
    entity.payload = payload
    entity.meta.startTs = start_ts
    entity.meta.commitTs = commit_ts
    return response.SerializeToString()


def frame_batch(batch: Sequence[Transaction]) -> bytes:
    """The messages of `batch`, each with its prefix."""
    if len(batch) < _FEW:
        return b"".join(piece for entity in batch for piece in frame_in_pieces(entity))
    start_ts, commit_ts, payloads = zip(*batch, strict=True)
    ts = np.array((start_ts, commit_ts), np.uint64)
    if ts.min() < _NINE:
        return b"".join(piece for entity in batch for piece in frame_in_pieces(entity))
    metas = _encode_metas(ts)
    out: list[bytes] = []
    at = 0
    for payload in payloads:
        following = at + _META_BYTES
        out += (_encode_head(len(payload), _META_BYTES), payload, metas[at:following])
        at = following
    return b"".join(out)


def frame_in_pieces(entity: Transaction) -> tuple[bytes, bytes, bytes]:
    """One message with its prefix, in pieces. The second piece is the payload itself, so a large one is not copied."""
    start_ts, commit_ts, payload = entity
    meta = b"".join(tag + write_uvarint(ts) for tag, ts in ((b"\x08", start_ts), (b"\x10", commit_ts)) if ts)
    return _encode_head(len(payload), len(meta) + 2), payload, b"\x22" + bytes((len(meta),)) + meta


def _encode_metas(ts: NDArray[np.uint64]) -> bytes:
    """The meta fields, 22 bytes each: tag and length, then a tag and nine bytes for each ts."""
    out = np.empty((ts.shape[1], _META_BYTES), np.uint8)
    out[:, 0], out[:, 1], out[:, 2], out[:, 12] = 0x22, 20, 0x08, 0x10
    for values, begin in zip(ts, (3, 13), strict=True):
        out[:, begin : begin + 9] = (values[:, None] >> _SHIFTS) & np.uint64(0x7F) | np.uint64(0x80)
        out[:, begin + 8] &= 0x7F
    return out.tobytes()


@lru_cache(4096)
def _encode_head(size: int, meta: int) -> bytes:
    """The bytes before a payload of `size` bytes that is followed by a meta field of `meta` bytes."""
    payload = b"\x12" + write_uvarint(size) if size else b""
    entity = 2 + len(payload) + size + meta
    response = b"\x0a" + write_uvarint(entity)
    return PREFIX.pack(0, len(response) + entity) + response + b"\x0a\x00" + payload


def _concatenate(parts: list[Ints]) -> Ints:
    if len(parts) > 1:
        parts[:] = [np.concatenate(parts)]
    return parts[0] if parts else np.empty(0, np.int64)


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
