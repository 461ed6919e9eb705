"""Group commit: calls that arrive together share one write and one fdatasync, and are answered after it.

Batch limits are the original's (tidb-binlog 2.4): 1 MiB, or the first item + 128 KiB if the first item is small. A
batch also ends when no more items wait and where a file of the value log reaches its limit.

Before it is written, each binlog claims its timestamp; a second, different binlog with the same timestamp is refused.
The index has one slot for a ts: the start_ts of a P, the commit_ts of all others. A second binlog would hide the first
from every pull. The same binlog is accepted again (writers retry), and any binlog may replace a fake, which has no
content. The latest timestamps are held in memory; older ones are looked up in the index.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from hashlib import blake2b

import structlog

from binlake.errors import BinlakeError, LostRange, Permanent, Transient
from binlake.pump_service.pump.heads import Head, parse_head
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import RECORD, Pointer
from binlake.pump_service.pump.sorter import EntryKind, SorterEntry
from binlake.pump_service.pump.vlog import ValueLog

log = structlog.get_logger()

_GENERATION = 1 << 15  # the least number held in memory
_PREWRITE = EntryKind.PREWRITE
_MASK = (1 << 63) - 1
_HASHED_BYTES = 64 << 10
_MOST = 1 << 18  # the greatest number, however far the index is behind

TsClaim = tuple[int, int | None]
"""A claimed ts (0 = none), and the binlog that held it before (None = none)."""

_NOTHING: TsClaim = (0, None)
BATCH_BYTES = 1 << 20
SMALL_BYTES = 128 << 10
_new_entry = partial(tuple.__new__, SorterEntry)  # same as Entry(...), without a call of Python code for each

Done = Callable[[BinlakeError | None], None]
"""Called once, on the log's thread, with the outcome of an item (None = durable); must not block."""


class GroupCommit:
    """One thread that writes items in batches.

    `durable(entries, end)` is called in log order before the writers are answered, so whatever follows the log misses
    no acked binlog. `released(bytes)` reports how many bytes are no longer in flight, written or not. `over()` is
    called after each batch, when all its items have their outcome.
    """

    def __init__(
        self,
        log: ValueLog,
        taken: TimestampClaims,
        durable: Callable[[list[SorterEntry], Pointer], None],
        released: Callable[[int], None],
        over: Callable[[], None],
    ) -> None:
        self._log = log
        self._taken = taken
        self._durable = durable
        self._released = released
        self._over = over
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._held: list[Item | None] = []
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pump-value-log", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Hand over an item; its `done` gets the outcome. Raises Transient after `close`."""
        with self._gate:
            if self._closed:
                raise Transient("the pump is stopping")
            self._items.put(item)

    def close(self) -> None:
        """Write the items handed over so far, then stop."""
        with self._gate:
            self._closed = True
            self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while self._write_next():
            pass  # a separate method, so that no item of a batch stays referenced while waiting for the next one

    def _write_next(self) -> bool:
        first = self._held.pop() if self._held else self._items.get()
        if first is not None:
            self._commit(self._gather(first))
        return first is not None

    def _gather(self, first: Item) -> list[Item]:
        batch, size = [first], first.size
        limit = min(size + SMALL_BYTES if size <= SMALL_BYTES else BATCH_BYTES, self._log.compute_room_left())
        while not self._items.empty():  # only this thread takes items from it
            item = self._items.get_nowait()
            if item is None or size + item.size > limit:
                self._held.append(item)
                break
            batch.append(item)
            size += item.size
        return batch

    def _commit(self, items: list[Item]) -> None:
        batch, claims, refused = self._admit(items)
        failure = self._store(batch) if batch else None
        for claim in reversed(claims) if failure is not None else ():
            self._taken.release(claim)
        self._released(sum([item.size for item in items]))
        for item, error in refused:
            _report(item, error)
        for item in batch:
            _report(item, failure)
        self._over()

    def _admit(self, items: list[Item]) -> tuple[list[Item], list[TsClaim], list[tuple[Item, BinlakeError | None]]]:
        """The items that may be stored, the timestamps claimed for them, and the refused items."""
        batch: list[Item] = []
        claims: list[TsClaim] = []
        refused: list[tuple[Item, BinlakeError | None]] = []
        for item in items:
            try:
                claims.append(self._taken.claim(item.head, item.payload))
            except BinlakeError as error:
                refused.append((item, error))
            else:
                batch.append(item)
        return batch, claims, refused

    def _store(self, batch: list[Item]) -> BinlakeError | None:
        """Write a batch and hand it on; return the error if it could not be written."""
        heads = [item.head for item in batch]
        max_ts = max(max([head[1] for head in heads]), max([head[2] for head in heads]))
        try:
            pointers = self._log.append([item.payload for item in batch], max_ts)
        except BinlakeError as error:
            return error
        self._taken.note_stored(pointers[-1])
        end = Pointer(pointers[-1].fid, pointers[-1].offset + batch[-1].size)
        self._durable(
            [
                _new_entry((kind, start_ts, commit_ts, pointer, key))
                for (kind, start_ts, commit_ts, key), pointer in zip(heads, pointers, strict=True)
            ],
            end,
        )
        return None


class Item:
    """A binlog to be written. `done(None)` is called once it is durable, otherwise `done(error)`."""

    __slots__ = ("done", "head", "payload", "size")

    def __init__(self, payload: bytes, head: Head, done: Done) -> None:
        self.payload = payload
        self.head = head
        self.done = done
        self.size = RECORD.size + len(payload)


class Behind(Transient):
    """Too many bytes are in flight; try again later."""


class BytesInFlight:
    """Limits the bytes in flight. A caller that wants more than is left waits, and is refused after `patience_s`."""

    def __init__(self, limit: int, patience_s: float) -> None:
        self._limit = limit
        self._patience_s = patience_s
        self._used = self._waiting = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def used(self) -> int:
        """Bytes in flight."""
        return self._used

    def take(self, size: int, *, wait: bool = True) -> None:
        """Reserve `size` bytes; more than the limit is admitted only when nothing else is in flight. Raises Behind."""
        with self._lock:
            if self._used and self._used + size > self._limit and not (wait and self._wait_for(size)):
                raise Behind("the pump is behind: too many bytes wait to be stored", where={"bytes": self._used})
            self._used += size

    def give_back(self, size: int) -> None:
        """Free `size` bytes."""
        with self._lock:
            self._used -= size
            if self._waiting:
                self._changed.notify_all()

    def _wait_for(self, size: int) -> bool:
        self._waiting += 1
        fits = self._changed.wait_for(lambda: not self._used or self._used + size <= self._limit, self._patience_s)
        self._waiting -= 1
        return fits


def _report(item: Item, failure: BinlakeError | None) -> None:
    try:
        item.done(failure)
    except Exception:
        # This writer gets no answer, but the log's thread must continue to serve all others.
        log.exception("outcome_not_delivered", start_ts=item.head.start_ts)


class TimestampClaims:
    """The timestamps of one pump, each with the identity of its binlog: for a P a hash of its bytes (below 0), for all
    others the start_ts. Used by the thread that writes the log. `indexed`: the position up to which the index has them.
    """

    def __init__(self, index: PumpIndex, log: ValueLog, indexed: Callable[[], Pointer]) -> None:
        self._index = index
        self._log = log
        self._indexed = indexed
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._old_end = self._floor_end = Pointer(0, 0)
        self._floor = log.max_ts  # timestamps at or below it may be in the index only

    def claim(self, head: Head, payload: bytes) -> TsClaim:
        """Claim the ts of a binlog that is about to be stored; pass the claim to `release` if it is not stored.

        Raises Permanent when another binlog has the ts, Transient while that is not known, WireError when the binlog
        that has it is damaged.
        """
        kind, start_ts, commit_ts, _ = head
        if kind is _PREWRITE:
            key, identity = start_ts, _identify(payload)
        else:
            key, identity = commit_ts, start_ts
        if key <= 0:
            return _NOTHING
        holder = self._young.get(key)
        if holder is None:
            holder = self._old.get(key)
            if holder is None and key <= self._floor:
                holder = self._look_up(key)
        if holder is not None and holder not in (identity, key):  # start_ts = commit_ts: a fake
            raise Permanent(
                "another binlog with this timestamp is stored: this one would hide it",
                where={"ts": key, "kind": kind.value, "start_ts": start_ts},
                hint="one PD gives each timestamp once: find the process that writes this one",
            )
        self._young[key] = identity
        return key, holder

    def release(self, claim: TsClaim) -> None:
        """Undo a claim: its binlog was not stored."""
        key, before = claim
        if before is None:
            self._young.pop(key, None)
        else:
            self._young[key] = before

    def note_stored(self, last: Pointer) -> None:
        """The claimed binlogs are stored, up to the record `last`; forget old claims that the index has."""
        if len(self._young) < _GENERATION:
            return
        if self._indexed() >= self._old_end or len(self._young) >= _MOST:
            self._floor = max(self._floor, max(self._old, default=0))
            self._floor_end = max(self._floor_end, self._old_end)
            self._old, self._young, self._old_end = self._young, {}, last

    def _look_up(self, key: int) -> int | None:
        if self._indexed() < self._floor_end:
            raise Transient("the index is behind: whether this timestamp is free is not known", where={"ts": key})
        pointer = self._index.find_pointer(key)
        if pointer is None:
            return None
        try:
            payload = self._log.read(pointer)
        except LostRange:
            return None  # collected
        head = parse_head(payload)
        return _identify(payload) if head.kind is _PREWRITE else head.start_ts


def _identify(payload: bytes) -> int:
    """A negative number, in all probability of this P alone. A view has no hash."""
    if len(payload) <= _HASHED_BYTES:
        return ~(hash(payload) & _MASK)
    return ~(int.from_bytes(blake2b(payload, digest_size=8).digest()) & _MASK)
