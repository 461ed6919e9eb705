"""Pulling: complete transactions in strictly increasing commit_ts, bounded by the watermark (tidb-binlog 2.9).

A C is completed from its P: P's prewrite_value, ddl_query, ddl_job_id and ddl_schema_state win (MISSION S0-14). R is
invisible, a fake goes out as stored. Nothing is skipped: a range that may be collected is LostRange (hazards R-26),
a C without its P is an error that names it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

from binlake.errors import LostRange, WireError
from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite
from pump_service.pump.record import Pointer
from pump_service.pump.storage import Storage

_CACHE_BYTES = 16 << 20
_LOOK_S = 1.0  # how long a stream sleeps at most before it looks whether its caller is still there

Transaction = tuple[int, int, bytes]
"""(start_ts, commit_ts, payload: the complete C, or a fake as stored)."""


class _Prewrites:
    """P met on the way, kept for their C: the oldest leave when the bytes are too many."""

    def __init__(self, limit: int = _CACHE_BYTES) -> None:
        self._limit = limit
        self._bytes = 0
        self._kept: OrderedDict[int, tuple[Binlog, int]] = OrderedDict()

    def add(self, prewrite: Binlog, size: int) -> None:
        if prewrite.start_ts in self._kept:
            return
        self._kept[prewrite.start_ts] = (prewrite, size)
        self._bytes += size
        while self._bytes > self._limit:
            self._bytes -= self._kept.popitem(last=False)[1][1]

    def take(self, start_ts: int) -> Binlog | None:
        prewrite, size = self._kept.pop(start_ts, (None, 0))
        self._bytes -= size
        return prewrite


def pull(storage: Storage, after_ts: int, give_up: Callable[[], bool]) -> Iterator[Transaction]:
    """Endless: every transaction and fake with commit_ts > `after_ts`, as soon as the watermark covers it.

    Ends when `give_up()` (ask Storage.wake to make it look at once). Raises LostRange when `after_ts` is below the
    collected ts, now or later; WireError when a record is damaged or a C has no P.
    """
    prewrites = _Prewrites()
    last = after_ts
    while not give_up():
        _check_not_collected(storage, last)
        watermark = storage.watermark
        for ts, pointer in storage.index.between(last, watermark):
            found = _visible(storage, ts, pointer, prewrites)
            if found is not None:
                yield found
            if give_up():
                return
        _check_not_collected(storage, last)
        last = max(last, watermark)
        storage.wait_above(last, _LOOK_S, give_up)


def _check_not_collected(storage: Storage, after_ts: int) -> None:
    gc_ts = storage.index.gc_ts
    if after_ts < gc_ts:
        raise LostRange(
            f"the pump has collected up to {gc_ts}: the range ({after_ts}, {gc_ts}] is lost here",
            where={"start_from": after_ts, "gc_ts": gc_ts},
            hint="raise the pump's gc, or rebuild the target from a snapshot at or above gc_ts",
        )


def _visible(storage: Storage, ts: int, pointer: Pointer, prewrites: _Prewrites) -> Transaction | None:
    payload = storage.read(pointer)
    binlog = Binlog.FromString(payload)
    if binlog.start_ts == binlog.commit_ts:
        return ts, ts, payload
    if binlog.tp == Prewrite:
        prewrites.add(binlog, len(payload))
    if binlog.tp != Commit:
        return None
    prewrite = prewrites.take(binlog.start_ts) or _prewrite(storage, binlog)
    return binlog.start_ts, binlog.commit_ts, _completed(binlog, prewrite).SerializeToString()


def _prewrite(storage: Storage, commit: Binlog) -> Binlog:
    pointer = storage.index.pointer(commit.start_ts)
    prewrite = None if pointer is None else Binlog.FromString(storage.read(pointer))
    if prewrite is None or prewrite.tp != Prewrite:
        raise WireError(
            "a C has no P in this pump",
            where={"start_ts": commit.start_ts, "commit_ts": commit.commit_ts},
            hint="its transaction cannot be completed from here; another pump may hold it",
        )
    return prewrite


def _completed(commit: Binlog, prewrite: Binlog) -> Binlog:
    for name in ("prewrite_value", "ddl_query"):
        if prewrite.HasField(name):
            setattr(commit, name, getattr(prewrite, name))
        else:
            commit.ClearField(name)
    commit.ddl_job_id = prewrite.ddl_job_id
    commit.ddl_schema_state = prewrite.ddl_schema_state
    return commit
