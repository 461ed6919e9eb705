"""Pulling: complete transactions in strictly increasing commit_ts, bounded by the watermark (tidb-binlog 2.9).

A C is completed from its P: P's prewrite_value, ddl_query, ddl_job_id and ddl_schema_state win (MISSION S0-14). R is
left out, a fake goes out as stored. Nothing is skipped: a range that may have been collected raises LostRange (hazards
R-26). A C without its P raises an error that names it, unless it was given up by command (`lost`). Files are read in
stretches, not record by record (MISSION S0-52).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from binlake.errors import LostRange, WireError
from binlake.pump_service.pump.batches import StoredTransaction, TransactionBatch
from binlake.pump_service.pump.heads import complete, parse_head, parse_layout
from binlake.pump_service.pump.index import decode_ts_key
from binlake.pump_service.pump.ranges import Ints, StretchBytes, read_block
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.sorter import EntryKind
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire.binlog_pb2 import Commit, Prewrite

_CACHE_BYTES = 16 << 20  # bytes of P that wait for their C
_BLOCK_BYTES = 2 << 20  # while a step processes a block, no other thread can run Python code, so steps must be short
_ROWS = 4096
_FEW = 8  # fewer rows are faster to read one by one
_LOOK_S = 1.0  # the longest time a stream sleeps before it checks that its caller is still there

_COMMIT, _PREWRITE = int(Commit), int(Prewrite)

Keyed = Sequence[tuple[bytes, bytes]]
"""Raw (key, pointer) of the index."""


def catch_up(
    reader: StreamReader, after_ts: int, give_up: Callable[[], bool]
) -> Iterator[tuple[int, TransactionBatch]]:
    """Every transaction and fake above `after_ts` up to the present watermark, in batches of some MiB.

    Each batch comes with the commit_ts up to which it is complete; `give_up()` ends it early. Raises LostRange when
    `after_ts` is below the collected ts, now or later; WireError when a record is damaged or a commit has no prewrite.
    Everything before the error is yielded first.
    """
    storage, last = reader.storage, after_ts
    _check_not_collected(storage, last)
    watermark = storage.watermark
    while last < watermark and not give_up():
        entries = storage.index.read_batch(last, watermark, reader.rows)
        reader.read(entries)
        _check_not_collected(storage, last)
        taken = max(
            last, decode_ts_key(entries[reader.taken - 1][0]) if reader.taken else last if entries else watermark
        )
        batch, reader.found = reader.found, TransactionBatch()
        if batch or reader.failed is None:
            yield taken, batch
        if reader.failed is not None:
            storage.pull_fault.record(taken, reader.failed)
            raise reader.failed
        storage.pull_fault.clear_below(taken)
        last = taken


def _check_not_collected(storage: PumpStorage, after_ts: int) -> None:
    gc_ts = storage.index.gc_ts
    if after_ts < gc_ts:
        raise LostRange(
            f"the pump has collected up to {gc_ts}: the range ({after_ts}, {gc_ts}] is lost here",
            where={"start_from": after_ts, "gc_ts": gc_ts},
            hint="raise the pump's gc, or rebuild the target from a snapshot at or above gc_ts",
        )


class NotNow(Exception):
    """The next binlog is large and must wait: see StreamReader.before_large."""


class StreamReader:
    """Reads for one stream. `found`: the transactions read; `taken`: how many index entries they came from. A P is kept
    until its C comes.

    `before_large(bytes)` is called before a binlog of many MiB is read, the first of its batch; it may raise NotNow.
    `in_parts`: such a binlog is not read, but becomes the `large` of its batch, which ends with it.
    """

    def __init__(self, storage: PumpStorage, *, in_parts: bool = False) -> None:
        self.before_large: Callable[[int], None] = lambda _: None
        self._in_parts = in_parts
        self.storage = storage
        self._tails: dict[int, bytes] = {}  # the bytes after field 4 of each plain P
        self._bytes = 0
        self.rows = _FEW
        self.found = TransactionBatch()
        self.taken = 0
        self.failed: WireError | LostRange | None = None

    def read(self, entries: Keyed) -> None:
        """Read the first entries; an error ends the batch before the entry that caused it."""
        self.found, self.taken, self.failed = TransactionBatch(), 0, None
        try:
            if len(entries) < _FEW:
                for _, pointer in entries:
                    self._read_one(Pointer.from_bytes(pointer))
                    self.taken += 1
            else:
                self._read_rows(entries)
        except NotNow:
            if not self.taken:
                raise
        except (WireError, LostRange) as error:
            self.failed = error
        # The number of rows doubles while blocks are far from full, so that the index is not read in vain when records
        # are large. It is kept when all entries were taken, as usual at the tail: each read has a fixed cost, so the
        # next round must not start with a few rows again.
        least = self.rows if self.taken == len(entries) else _FEW
        self.rows = min(_ROWS, max(least, 2 * self.taken))
        while self._bytes > _CACHE_BYTES:
            self._bytes -= len(self._tails.pop(next(iter(self._tails))))

    def _read_rows(self, entries: Keyed) -> None:
        block = read_block([pointer for _, pointer in entries], self.storage.records, _BLOCK_BYTES)
        joined = _MatchedRows.of(block, self._take_tail)
        try:
            for row in [*np.flatnonzero(joined.alone).tolist(), len(joined.alone)]:
                self.found.extend(*joined.cut_pieces(self.taken, row))
                self.taken = row
                if row < len(joined.alone):
                    self._read_one(Pointer.from_bytes(entries[row][1]))
                    self.taken += 1
        finally:
            for row in joined.waiting[joined.waiting < self.taken].tolist():
                self._keep_tail(int(block.start_ts[row]), block.data[block.cut[row] : block.end[row]])

    def _take_tail(self, start_ts: int) -> bytes | None:
        tail = self._tails.pop(start_ts, None)
        self._bytes -= len(tail or b"")
        return tail

    def _read_one(self, pointer: Pointer) -> None:
        if self._is_huge_prewrite(pointer):
            return
        payload = self.storage.read(pointer)
        head = parse_head(payload)
        if head.kind is EntryKind.FAKE:
            self.found.add(head.start_ts, head.commit_ts, payload)
        elif head.kind is EntryKind.COMMIT:
            self._add_complete(head.start_ts, head.commit_ts, payload)
        elif head.kind is EntryKind.PREWRITE:
            layout = parse_layout(payload)
            if layout is not None:
                self._keep_tail(head.start_ts, payload[layout.cut :])

    def _is_huge_prewrite(self, pointer: Pointer) -> bool:
        """True for a P that is too large to be kept for its C, so reading it now would mean reading it twice."""
        length, begin = self.storage.records.peek(pointer, 2)
        return length > _CACHE_BYTES and begin == b"\x08\x00"

    def _keep_tail(self, start_ts: int, tail: bytes) -> None:
        self._bytes += len(tail) - len(self._tails.get(start_ts, b""))
        self._tails[start_ts] = tail

    def _add_complete(self, start_ts: int, commit_ts: int, commit: bytes) -> None:
        payload = self._complete_commit(start_ts, commit_ts, commit)
        if payload:
            self.found.add(start_ts, commit_ts, payload)

    def _complete_commit(self, start_ts: int, commit_ts: int, commit: bytes) -> bytes:
        """The complete C; empty when it was given up by command."""
        tail, layout = self._take_tail(start_ts), parse_layout(commit)
        if tail is not None and layout is not None:
            return commit[: layout.cut] + tail
        pointer = self.storage.index.find_pointer(start_ts)
        if pointer is not None and (length := self.storage.records.peek(pointer, 0)[0]) > _CACHE_BYTES:
            if self.taken:
                raise NotNow  # so that a batch holds only one large binlog
            if self._in_parts:
                large = StoredTransaction.find(self.storage.records, commit, commit_ts, start_ts, pointer)
                if large is not None:
                    self.found.large, self.taken = large, 1
                    raise NotNow
            self.before_large(length)
        prewrite = b"" if pointer is None else self.storage.read(pointer)
        if not prewrite or parse_head(prewrite).kind is not EntryKind.PREWRITE:
            if commit_ts in self.storage.lost:
                return b""
            raise WireError(
                "a commit has no prewrite in this pump: its rows are missing, and nothing after it can be pulled",
                where={"start_ts": start_ts, "commit_ts": commit_ts},
                hint="restore the disk that has its prewrite; or, if it is gone or another pump has the transaction,"
                f" `binlake txn give-up {start_ts} --commit-ts {commit_ts} --pump NODE`",
            )
        return complete(commit, prewrite)


class _MatchedRows(NamedTuple):
    """The rows of a block. Each C is matched with the row of its P, or with the tail of a P that came before the block
    (`tails`).

    `alone`: rows to be read one by one. `gives`: rows that yield a binlog: data[begin:cut] and data[tail:tail_end].
    `waiting`: the P whose C is not in this block.
    """

    block: StretchBytes
    alone: NDArray[np.bool_]
    gives: NDArray[np.bool_]
    cut: Ints
    tail: Ints
    tail_end: Ints
    tails: dict[int, bytes]
    waiting: Ints

    @classmethod
    def of(cls, block: StretchBytes, tail_of: Callable[[int], bytes | None]) -> _MatchedRows:
        """`tail_of`: returns what is kept of the P with this start_ts."""
        sound = block.plain.copy()
        sound[sound] = _compute_crcs(block, np.flatnonzero(sound)) == block.crc[sound]
        fake = sound & (block.start_ts == block.commit_ts)
        commits = np.flatnonzero(sound & ~fake & (block.tp == _COMMIT))
        prewrites = np.flatnonzero(sound & ~fake & (block.tp == _PREWRITE))
        prewrites = prewrites[np.argsort(block.start_ts[prewrites], kind="stable")]
        begun = block.start_ts[prewrites]
        place = np.searchsorted(begun, block.start_ts[commits])
        matched = np.zeros(len(commits), np.bool_)
        near = np.flatnonzero(place < len(begun))
        matched[near] = begun[place[near]] == block.start_ts[commits[near]]
        rows = prewrites[place[matched]]
        cut, tail, tail_end = block.cut.copy(), np.zeros_like(block.cut), np.zeros_like(block.cut)
        cut[fake] = block.end[fake]
        tail[commits[matched]], tail_end[commits[matched]] = block.cut[rows], block.end[rows]
        tails, alone, gives = dict[int, bytes](), ~sound, fake
        gives[commits] = True
        for row in commits[~matched].tolist():
            before = tail_of(int(block.start_ts[row]))
            if before is None:
                alone[row], gives[row] = True, False
            else:
                tails[row] = before
        unmatched = np.ones(len(sound), np.bool_)
        unmatched[rows] = False
        waiting = prewrites[unmatched[prewrites]]
        return cls(block, alone, gives, cut, tail, tail_end, tails, waiting)

    def cut_pieces(self, first: int, last: int) -> tuple[Ints, Ints, list[bytes]]:
        """start_ts, commit_ts, and both pieces of the payload of each binlog that these rows yield."""
        rows = first + np.flatnonzero(self.gives[first:last])
        begin = np.stack((self.block.begin[rows], self.tail[rows]), axis=1).ravel()
        end = np.stack((self.cut[rows], self.tail_end[rows]), axis=1).ravel()
        data = self.block.data
        pieces = [data[start:stop] for start, stop in zip(begin.tolist(), end.tolist(), strict=True)]
        if self.tails:
            for row, tail in self.tails.items():
                if first <= row < last:
                    pieces[2 * int(np.searchsorted(rows, row)) + 1] = tail
        return self.block.start_ts[rows], self.block.commit_ts[rows], pieces


def _compute_crcs(block: StretchBytes, rows: Ints) -> Ints:
    data, crc_of = block.data, google_crc32c.extend
    places = (column[rows].tolist() for column in (block.seed, block.begin, block.end))
    return np.array([crc_of(seed, data[begin:end]) for seed, begin, end in zip(*places, strict=True)], np.int64)
