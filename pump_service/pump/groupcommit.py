"""Group commit: calls that arrive together share one write and one fdatasync, and are answered after it.

Batch limits are the original's (tidb-binlog 2.4): 1 MiB, or the first item + 128 KiB if the first item is small. A
batch also ends when no more items wait and where a file of the value log reaches its limit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial

import structlog

from binlake.errors import BinlakeError, Transient
from binlake.pump_service.pump.heads import Head
from binlake.pump_service.pump.record import RECORD, Pointer
from binlake.pump_service.pump.sorter import SorterEntry
from binlake.pump_service.pump.timestamp_claims import TimestampClaims, TsClaim
from binlake.pump_service.pump.vlog import ValueLog

log = structlog.get_logger()

BATCH_BYTES = 1 << 20
SMALL_BYTES = 128 << 10

_new_entry = partial(tuple.__new__, SorterEntry)  # same as Entry(...), without a call of Python code for each

Done = Callable[[BinlakeError | None], None]
"""Called once, on the log's thread, with the outcome of an item (None = durable); must not block."""


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


def _report(item: Item, failure: BinlakeError | None) -> None:
    try:
        item.done(failure)
    except Exception:
        # This writer gets no answer, but the log's thread must continue to serve all others.
        log.exception("outcome_not_delivered", start_ts=item.head.start_ts)
