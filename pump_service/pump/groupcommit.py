"""Group commit: calls that arrive together share one write and one fdatasync, and are answered after it.

Batch limits are the original's (tidb-binlog 2.4): 1 MiB, or the first item + 128 KiB when that is small; a batch also
ends when nothing more waits and where a file of the value log reaches its limit.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from binlake.errors import BinlakeError, Transient
from pump_service.pump.record import HEADER, Pointer
from pump_service.pump.sorter import Entry, Kind
from pump_service.pump.vlog import ValueLog

BATCH_BYTES = 1 << 20
SMALL_BYTES = 128 << 10
_OVERHEAD_BYTES = 256  # what an item costs in memory beside its payload


@dataclass(slots=True)
class Item:
    """A binlog on its way to the log; `stored` gets None once it is durable, or the error."""

    payload: bytes
    kind: Kind
    start_ts: int
    commit_ts: int
    key: bytes
    stored: Future[None] = field(default_factory=Future)

    @property
    def size(self) -> int:
        """Bytes of its record."""
        return HEADER.size + len(self.payload)

    @property
    def memory(self) -> int:
        """Bytes it may hold until it is indexed."""
        return _OVERHEAD_BYTES + len(self.payload) + len(self.key)

    def placed(self, pointer: Pointer) -> Entry:
        """What the index and the sorter need to know of it."""
        return Entry(self.kind, self.start_ts, self.commit_ts, pointer, self.key)


class Budget:
    """Bytes in flight, bounded: who wants more than is left waits, and is refused after `patience_s`."""

    def __init__(self, limit: int, patience_s: float) -> None:
        self._limit = limit
        self._patience_s = patience_s
        self._used = 0
        self._changed = threading.Condition()

    def take(self, size: int) -> None:
        """Reserve `size` bytes; something larger than the limit is let in alone. Raises Transient."""
        with self._changed:
            fits = self._changed.wait_for(lambda: not self._used or self._used + size <= self._limit, self._patience_s)
            if not fits:
                raise Transient("the pump is behind: too many bytes wait to be stored", where={"bytes": self._used})
            self._used += size

    def give_back(self, size: int) -> None:
        """Free `size` bytes."""
        with self._changed:
            self._used -= size
            self._changed.notify_all()


class GroupCommit:
    """One thread that writes items in batches.

    `durable(entries, bytes)` is called in log order before their writers are answered, so nothing acked can be missing
    from what follows the log; `dropped(bytes)` tells the memory of items that could not be written.
    """

    def __init__(
        self, log: ValueLog, durable: Callable[[list[Entry], int], None], dropped: Callable[[int], None]
    ) -> None:
        self._log = log
        self._durable = durable
        self._dropped = dropped
        self._items: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._held: list[Item | None] = []
        self._gate = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pump-value-log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, item: Item) -> None:
        """Hand over an item; its future tells the outcome. Raises Transient after `close`."""
        with self._gate:
            if self._closed:
                raise Transient("the pump is stopping")
            item.stored.set_running_or_notify_cancel()
            self._items.put(item)

    def close(self) -> None:
        """Write what was handed over, then end."""
        with self._gate:
            self._closed = True
            self._items.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._held.pop() if self._held else self._items.get()) is not None:
            self._commit(self._gather(first))

    def _gather(self, first: Item) -> list[Item]:
        batch, size = [first], first.size
        limit = min(size + SMALL_BYTES if size <= SMALL_BYTES else BATCH_BYTES, self._log.room())
        while True:
            try:
                item = self._items.get_nowait()
            except queue.Empty:
                return batch
            if item is None or size + item.size > limit:
                self._held.append(item)
                return batch
            batch.append(item)
            size += item.size

    def _commit(self, batch: list[Item]) -> None:
        memory = sum(item.memory for item in batch)
        max_ts = max(max(item.start_ts, item.commit_ts) for item in batch)
        try:
            pointers = self._log.append([item.payload for item in batch], max_ts)
        except BinlakeError as error:
            self._dropped(memory)
            for item in batch:
                item.stored.set_exception(error)
            return
        self._durable([item.placed(pointer) for item, pointer in zip(batch, pointers, strict=True)], memory)
        for item in batch:
            item.stored.set_result(None)
