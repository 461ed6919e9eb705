"""TiKV of the simulated cluster: two stores and regions (support/fake_tikv.py) on separate machines.

It stores the locks and records of the ledger's transactions, and rolls back transactions at the pumps' request; the
client of such a transaction learns that when it commits.
"""

from __future__ import annotations

from collections.abc import Callable

from support.fake_tikv import ROLLBACK, FakeTikv, Lock, Write

from binlake.pump_service.pump import lean_server
from simulator.scheduler import Process, Scheduler

_TTL_MS = 3000
STORES = {1: "tikv-1:20160", 2: "tikv-2:20160"}


class SimulatedTikv:
    """The simulated TiKV; see the module."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.fake = FakeTikv(addresses=dict(STORES))
        for store, address in STORES.items():
            machine = address.partition(":")[0]
            scheduler.spawn(lambda store=store: self._serve(store), machine, Process(machine, machine))

    def lock(self, start_ts: int, key: bytes) -> None:
        """The transaction acquires its locks."""
        self.fake.locks[key] = Lock(start_ts, _TTL_MS)

    def commit(self, start_ts: int, key: bytes, commit_ts: int) -> bool:
        """The transaction commits; False when its locks are gone."""
        if self.fake.locks.pop(key, None) is None:
            return False
        self.fake.writes.setdefault(key, []).append(Write(start_ts, commit_ts))
        return True

    def roll_back(self, start_ts: int, key: bytes, *, protected: bool) -> None:
        """The transaction's own client rolls it back."""
        if self.fake.locks.pop(key, None) is not None and protected:
            self.fake.writes.setdefault(key, []).append(Write(start_ts, start_ts, ROLLBACK))

    def pd_methods(self) -> dict[str, Callable[[bytes], bytes]]:
        """The methods of PD that TiKV's clients need."""
        return self.fake.pd_methods()

    def _serve(self, store: int) -> None:
        server = lean_server.RpcServer(name=f"tikv-{store}")
        for path, work in self.fake.store_methods(store).items():
            server.add_blocking(path, work)
        server.listen(STORES[store])
        server.start()
