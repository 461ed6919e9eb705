"""Small builders shared by the pump's tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

from support.pump_calls import Transaction, pull

from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.sorter import EntryKind, SorterEntry
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog, PrewriteValue

MakePump = Callable[..., PumpServer]
"""Makes a pump on the in-memory cluster: the fixture `build_pump`."""
VALUE = PrewriteValue(schema_version=23).SerializeToString()


def prewrite(start_ts: int, value: bytes = VALUE) -> Binlog:
    return build.build_prewrite(start_ts, f"k{start_ts}".encode(), value)


def commit(start_ts: int, commit_ts: int) -> Binlog:
    return build.build_commit(prewrite(start_ts), commit_ts)


def rollback(start_ts: int) -> Binlog:
    return build.build_rollback(prewrite(start_ts))


def store(storage: PumpStorage, *binlogs: Binlog) -> None:
    """Store in this order; returns when all binlogs are durable."""
    for stored in [storage.append(binlog.SerializeToString()) for binlog in binlogs]:
        stored.result(60)


def until(condition: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Wait until `condition` holds; fails with the expectation `what` on timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.01)


def reach(storage: PumpStorage, watermark: int) -> None:
    until(lambda: storage.watermark >= watermark, f"watermark {watermark}, it is {storage.watermark}")


def pulled(storage: PumpStorage, count: int, after_ts: int = 0) -> list[Transaction]:
    """The first `count` entities after `after_ts`."""
    return list(islice(pull(storage, after_ts, lambda: False), count))


def settled(storage: PumpStorage, after_ts: int = 0) -> list[Transaction]:
    """Everything that the watermark shows now, without waiting for more."""
    watermark = storage.watermark
    transactions = []
    if watermark <= after_ts:
        return transactions
    for entity in pull(storage, after_ts, lambda: False):
        transactions.append(entity)
        if entity[1] >= watermark:
            break
    return transactions


def open_storage(path: Path) -> PumpStorage:
    return PumpStorage(path)


def plain_rule(entries: Sequence[SorterEntry], *, trust_rollbacks: bool = True) -> int:
    """tidb-binlog 2.5 literally: a queue whose head P waits for its C or R anywhere later."""
    watermark = 0
    ends = (EntryKind.COMMIT, EntryKind.PROVEN_ROLLBACK, *([EntryKind.ROLLBACK] if trust_rollbacks else []))
    for place, entry in enumerate(entries):
        later = entries[place + 1 :]
        if entry.kind is EntryKind.PREWRITE:
            if not any(other.kind in ends and other.start_ts == entry.start_ts for other in later):
                return watermark
        else:
            watermark = max(watermark, entry.commit_ts)
    return watermark
