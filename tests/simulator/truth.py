"""What really happened, and the invariants on it: the ledger of all timestamps, transactions and acks.

It also plays TiKV: the outcome of a transaction is decided here before anyone learns it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Any, Protocol

from binlake.cluster.source import Absent, Committed, Locked, RolledBack, Status
from binlake.errors import BinlakeError, SourceUnavailable
from binlake.wire import binlog_pb2 as pb
from binlake.wire.pump_pb2 import WriteBinlogReq
from simulator.scheduler import Scheduler

_OPEN, _COMMITTED, _ROLLED_BACK = "open", "committed", "rolled back"


class Wrong(AssertionError):
    """An invariant does not hold."""


@dataclass
class Transaction:
    """`commit_ts`: set once fetched, committed or not. `protected`: its rollback leaves a record in TiKV."""

    start_ts: int
    value: int
    key: bytes
    state: str = _OPEN
    commit_ts: int = 0
    protected: bool = True
    left_at: float = 0.0


@dataclass
class Store:
    """What one data directory has acked: P by start_ts, C by commit_ts, and the P whose outcome is not acked."""

    prewrites: dict[int, int] = field(default_factory=dict)
    commits: dict[int, int] = field(default_factory=dict)
    waiting: set[int] = field(default_factory=set)
    watermark: int = 0
    damaged: bool = False


def digest(binlog: pb.Binlog) -> int:
    """A hash of the content that must not change on its way."""
    return zlib.crc32(binlog.prewrite_value + binlog.ddl_query)


class Keeper(Protocol):
    """A simulated TiKV that stores locks and records of the transactions, and may roll some back by itself."""

    def lock(self, start_ts: int, key: bytes) -> None:
        """The transaction acquires its locks."""

    def commit(self, start_ts: int, key: bytes, commit_ts: int) -> bool:
        """The transaction commits; False when its locks are gone."""

    def roll_back(self, start_ts: int, key: bytes, *, protected: bool) -> None:
        """The transaction's own client rolls it back."""


class Truth:
    """The ledger; raises Wrong.

    `excused`: start_ts whose binlogs were lost with a replaced disk. `tikv`: the TiKV that decides together with the
    ledger.
    """

    def __init__(self, scheduler: Scheduler, lock_s: float = 3.0) -> None:
        self._scheduler = scheduler
        self._lock_s = lock_s
        self.given = 0
        self.transactions: dict[int, Transaction] = {}
        self.stores: dict[str, Store] = {}
        self.hostile: set[bytes] = set()
        self.excused: set[int] = set()
        self.tikv: Keeper | None = None
        self.pulled: dict[int, tuple[int, int]] = {}
        self.source_away = False
        self.acks = 0

    # timestamps

    def give(self, last: int, count: int) -> None:
        """PD gives a batch of timestamps."""
        first = last - count + 1
        if first <= self.given:
            raise Wrong(f"TSO repeats: {first} was given, or one above it ({self.given})")
        self.given = last

    # transactions

    def begin(self, start_ts: int, binlog: pb.Binlog) -> Transaction:
        """The transaction acquires its locks."""
        transaction = self.transactions[start_ts] = Transaction(start_ts, digest(binlog), binlog.prewrite_key)
        if self.tikv is not None:
            self.tikv.lock(start_ts, transaction.key)
        return transaction

    def leave(self, transaction: Transaction) -> None:
        """The transaction's TiDB died: whoever finds the lock rolls it back."""
        transaction.left_at = self._scheduler.now

    def undecided(self) -> list[int]:
        """start_ts of the transactions that hold their locks."""
        return [one.start_ts for one in self.transactions.values() if one.state == _OPEN]

    def commit(self, transaction: Transaction) -> bool:
        """TiKV commits the transaction, unless it was rolled back meanwhile."""
        if transaction.state == _OPEN:
            one = transaction
            has_locks = self.tikv is None or self.tikv.commit(one.start_ts, one.key, one.commit_ts)
            transaction.state = _COMMITTED if has_locks else _ROLLED_BACK
        return transaction.state == _COMMITTED

    def roll_back(self, transaction: Transaction, *, protected: bool) -> None:
        """TiKV rolls the transaction back."""
        if transaction.state == _OPEN:
            transaction.state, transaction.protected = _ROLLED_BACK, protected
            if self.tikv is not None:
                self.tikv.roll_back(transaction.start_ts, transaction.key, protected=protected)

    def committed(self) -> dict[int, int]:
        """start_ts -> commit_ts."""
        return {one.start_ts: one.commit_ts for one in self.transactions.values() if one.state == _COMMITTED}

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """TiKV's answer. Raises SourceUnavailable."""
        del key
        self._scheduler.sleep(self._scheduler.random.random() * 0.01)
        if self.source_away:
            raise SourceUnavailable("TiKV cannot be reached")
        transaction = self.transactions.get(start_ts)
        if transaction is None:
            return Absent()
        if transaction.state == _OPEN:
            if not transaction.left_at or self._scheduler.now - transaction.left_at < self._lock_s:
                return Locked(int(self._lock_s * 1000))
            self.roll_back(transaction, protected=True)
        if transaction.state == _COMMITTED:
            return Committed(transaction.commit_ts)
        return RolledBack() if transaction.protected else Absent()

    # acks

    def store(self, name: str) -> Store:
        """The acks of a data directory."""
        return self.stores.setdefault(name, Store())

    def lose_store(self, name: str) -> None:
        """A data directory is lost forever, with everything it acked."""
        lost = self.stores.pop(name, Store())
        self.excused |= lost.prewrites.keys()

    def observe(self, store: str, message: bytes, call: Any) -> None:
        """Observe a WriteBinlog: if its answer is an ack, record it."""
        payload = WriteBinlogReq.FromString(message).payload
        if payload and payload not in self.hostile:
            call.on_reply = lambda: self._acked(self.store(store), pb.Binlog.FromString(payload))

    def _acked(self, store: Store, binlog: pb.Binlog) -> None:
        self.acks += 1
        if binlog.tp == pb.Prewrite:
            store.prewrites[binlog.start_ts] = digest(binlog)
            transaction = self.transactions.get(binlog.start_ts)
            if transaction is not None and not transaction.commit_ts and transaction.state == _OPEN:
                store.waiting.add(binlog.start_ts)
        elif binlog.tp == pb.Commit:
            store.commits[binlog.commit_ts] = binlog.start_ts
            store.waiting.discard(binlog.start_ts)

    def check_acked(self, name: str, storage: Any) -> None:
        """Check that everything `name` ever acked is in its storage, unchanged (DESIGN 3.1)."""
        store, gc_ts = self.store(name), storage.index.gc_ts
        if store.damaged:
            return
        for start_ts, value in store.prewrites.items():
            if start_ts > gc_ts and digest(_stored(storage, start_ts, f"acked P {start_ts}", name)) != value:
                raise Wrong(f"{name}: another binlog replaced the acked P {start_ts}")
        for commit_ts, start_ts in store.commits.items():
            if commit_ts > gc_ts:
                stored = _stored(storage, commit_ts, f"acked C {commit_ts}", name)
                if stored.start_ts != start_ts or stored.tp != pb.Commit:
                    raise Wrong(f"{name}: another binlog replaced the acked C {commit_ts} of {start_ts}")

    # watermarks

    def check_watermark(self, name: str, storage: Any) -> None:
        """Check the invariant; called when a watermark may have moved (DESIGN 3.2)."""
        store, watermark = self.store(name), storage.watermark
        if watermark <= store.watermark:
            return
        store.watermark = watermark
        if watermark > self.given:
            raise Wrong(f"{name}: watermark {watermark} is above every timestamp given ({self.given})")
        for start_ts in store.waiting:
            transaction = self.transactions[start_ts]
            late = transaction.state == _COMMITTED and storage.index.gc_ts < transaction.commit_ts <= watermark
            if late and storage.index.find_pointer(transaction.commit_ts) is None and not store.damaged:
                raise Wrong(
                    f"{name}: watermark {watermark} passed the open P {start_ts}, committed at {transaction.commit_ts}"
                )

    # pulls

    def check_pulled(self, name: str, commit_ts: int, start_ts: int, payload: bytes) -> None:
        """Check that a pulled binlog was committed, at that commit_ts, with those bytes, and is equal in every pull."""
        binlog = pb.Binlog.FromString(payload)
        transaction = self.transactions.get(start_ts)
        if transaction is None or transaction.state != _COMMITTED or transaction.commit_ts != commit_ts:
            raise Wrong(f"{name} released {start_ts} at {commit_ts}, which was not committed so: {transaction}")
        if transaction.value != digest(binlog):
            raise Wrong(f"{name} released {start_ts} at {commit_ts} with other bytes")
        one = (start_ts, digest(binlog))
        if self.pulled.setdefault(commit_ts, one) != one:
            raise Wrong(f"two pulls differ at {commit_ts}: {self.pulled[commit_ts]} and {one}")


def _stored(storage: Any, ts: int, what: str, name: str) -> pb.Binlog:
    pointer = storage.index.find_pointer(ts)
    if pointer is None:
        raise Wrong(f"{name}: {what} is lost")
    try:
        return pb.Binlog.FromString(storage.read(pointer))
    except BinlakeError as error:
        raise Wrong(f"{name}: {what} cannot be read: {error}") from None
