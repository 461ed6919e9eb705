"""The clients of a pump, and how it asks TiDB and TiKV for outcomes of transactions (tidb-binlog 2.6, hazards R-07).

The configuration determines each client that the caller does not pass in: PD for time, the registry for members, TiDB
and TiKV for outcomes. If an oracle is passed in, the pump does not look for TiKV.

TiKV is asked first, if the cluster has it. About a young P, TiKV only reads the records. If the P is beyond the
transaction timeout, or if a writer reports a rollback, TiKV is asked to end the transaction. If the lock expired long
ago, TiKV rolls it back even before the timeout: its holder is gone, and any reader would roll it back. The status port
is asked about the P for which TiKV gives no answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from binlake import tso
from binlake.cluster.placement import EtcdClaim, EtcdClient, NodeRegistry, PdClient
from binlake.cluster.source import Status, TidbSource, Unknown, Unreachable
from binlake.cluster.source.catalogs import check_catalogs
from binlake.cluster.source.regions import RegionClient
from binlake.cluster.source.tikv import How, Question, TikvStatus, is_expired
from binlake.errors import Permanent, SourceUnavailable
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.membership import Claim, ClusterClock, Members
from binlake.pump_service.pump.sorter import SorterEntry

_THREADS = 8
_GONE_MS = 30_000  # after a lock expired: live writers extend theirs every few seconds
_HOLD_S = 60.0  # between two calls to PD about GC
# A node id is free again after this many seconds without a heartbeat from its holder, or after this many heartbeat
# intervals, whichever is longer.
_CLAIM_S = 10
_CLAIM_BEATS = 3
_CHECK_S = 60.0  # between two checks of whose status ports these are


class Clients:
    """The clients of one pump. `tikv`: None until `ask_tikv`."""

    def __init__(
        self,
        config: PumpConfig,
        *,
        oracle: ClusterClock | None,
        members: Members | None,
        source: StatusSource | None,
    ) -> None:
        self._config = config
        tls, urls = config.tls.to_tls(), config.status_urls
        self.oracle: ClusterClock = oracle or PdClient(config.pd_urls, tls=tls)
        self._etcd = EtcdClient(config.pd_urls, tls=tls)
        self.members: Members = members or NodeRegistry(self._etcd)
        self._claims = members is None
        self.source = source or NoStatusSource()
        if source is None and urls:
            asked = TidbSource(self.oracle, urls, tls=tls)
            self.source = asked if members is not None else OwnSource(asked, NodeRegistry(self._etcd), self.oracle)
        self._looks_for_tikv = config.ask_tikv and oracle is None
        self.tikv: TikvStatus | None = None

    def find_regions(self) -> RegionClient | None:
        """The regions of the cluster; None where PD knows none, such as the embedded PD. Raises SourceUnavailable."""
        if not self._looks_for_tikv:
            return None
        regions = RegionClient(self._config.pd_urls, tls=self._config.tls.to_tls())
        if regions.has_tikv():
            return regions
        regions.close()
        return None

    def ask_tikv(self, regions: RegionClient, store_uuid: str) -> None:
        """From now on, ask TiKV for outcomes, using these regions."""
        self.tikv = TikvStatus(regions, f"binlake-pump-{store_uuid}", tls=self._config.tls.to_tls())

    def claim(self, node_id: str, store_uuid: str, host: str) -> Claim | None:
        """The claim that keeps a second pump of this name out; None with a passed-in registry, which has no etcd."""
        if not self._claims:
            return None
        ttl_s = max(_CLAIM_S, round(_CLAIM_BEATS * self._config.heartbeat_interval_s))
        return EtcdClaim(self._etcd, node_id, store_uuid, host, ttl_s=ttl_s)

    def close(self) -> None:
        """Close all connections."""
        self.oracle.close()
        self._etcd.close()
        if self.tikv is not None:
            self.tikv.close()


class OwnSource:
    """The status ports of `source`, if they are of the cluster of this PD: another cluster knows nothing of a
    transaction, and "nothing is there" can be a proof."""

    def __init__(self, source: TidbSource, registry: NodeRegistry, clock: ClusterClock) -> None:
        self._source, self._registry, self._clock = source, registry, clock
        self._lock = threading.Lock()
        self._checked_at = -_CHECK_S

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """As of a StatusSource. Raises SourceUnavailable also for status ports that do not belong together."""
        with self._lock:
            if time.monotonic() - self._checked_at >= _CHECK_S:
                self._check()
                self._checked_at = time.monotonic()
        return self._source.fetch_transaction_status(start_ts, key)

    def _check(self) -> None:
        try:
            check_catalogs(self._source.port, self._registry, self._clock.fetch_cluster_id())
        except Permanent as error:
            raise SourceUnavailable(error.message, where=error.where, hint=error.hint) from error


class StatusSource(Protocol):
    """The part of binlake.cluster.source.Source that a pump needs: the outcome of a transaction."""

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """The status of transaction `start_ts` with primary key `key`. Raises SourceUnavailable."""


class NoStatusSource:
    """No source to ask: each orphan prewrite blocks until its commit or rollback arrives."""

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """Always Unknown."""
        del start_ts, key
        return Unknown("no status source is configured (--status-url)")


class StatusQueries:
    """Asks about many transactions at once; thread-safe. `clock`: a fresh TSO; without one TiKV is not asked."""

    def __init__(
        self,
        source: StatusSource,
        tikv: TikvStatus | None = None,
        *,
        clock: Callable[[], int] | None = None,
        timeout_s: float,
    ) -> None:
        self._source = source
        self._tikv = tikv if clock is not None else None
        self._clock = clock
        self._timeout_ms = timeout_s * 1000
        self._holding = threading.Lock()
        self._held_at = -_HOLD_S
        self._pool: ThreadPoolExecutor | None = None
        self._stopped = threading.Event()

    def ask(self, entries: Sequence[SorterEntry], doubted: Collection[int]) -> list[Status]:
        """The outcome of each P; `doubted`: the start_ts of the P whose writer reported a rollback."""
        statuses = self._ask_tikv(entries, doubted) if self._tikv is not None else []
        if not statuses:
            return self._ask_source(entries)
        if not isinstance(self._source, NoStatusSource):
            again = [place for place, status in enumerate(statuses) if isinstance(status, Unreachable)]
            for place, status in zip(again, self._ask_source([entries[place] for place in again]), strict=True):
                statuses[place] = status
        return statuses

    def fetch_transaction_status(self, start_ts: int, key: bytes) -> Status:
        """The known outcome of one transaction, as of a StatusSource; changes nothing. Raises SourceUnavailable."""
        if self._tikv is not None and self._clock is not None:
            status = self._tikv.ask([Question(start_ts, key, How.LOOK)], self._clock())[0]
            if not isinstance(status, Unreachable):
                return status
        return self._source.fetch_transaction_status(start_ts, key)

    def hold_gc(self, oldest: int) -> None:
        """Keep GC from removing the records of the transaction `oldest` and later ones; 0 = no transaction waits.

        PD is called once a minute, and at once when `oldest` is not covered. After a failed call absence proves
        nothing.
        """
        if self._tikv is None:
            return
        with self._holding:
            due = time.monotonic() - self._held_at > _HOLD_S
            if not due and (not oldest or self._tikv.protects(oldest)):
                return
            self._held_at = time.monotonic()
            try:
                self._tikv.protect(oldest)
            except SourceUnavailable:
                # Until PD has accepted the request, absence proves nothing, so the next call tries again.
                self._held_at -= _HOLD_S

    def stop(self) -> None:
        """Stop asking; calls in flight end soon."""
        self._stopped.set()
        if self._tikv is not None:
            self._tikv.stop()

    def close(self) -> None:
        """Stop, then end the threads and connections."""
        self.stop()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._tikv is not None:
            self._tikv.close()

    def _ask_tikv(self, entries: Sequence[SorterEntry], doubted: Collection[int]) -> list[Status]:
        assert self._tikv is not None
        assert self._clock is not None
        try:
            now_ts = self._clock()
        except SourceUnavailable as error:
            return [Unreachable(str(error))] * len(entries)
        questions = [self._build_question(entry, now_ts, entry.start_ts in doubted) for entry in entries]
        statuses = self._tikv.ask(questions, now_ts)
        expired = [
            place
            for place, (question, status) in enumerate(zip(questions, statuses, strict=True))
            if question.how is How.LOOK and is_expired(status, question.start_ts, now_ts, _GONE_MS)
        ]
        stronger = [Question(questions[place].start_ts, questions[place].key, How.EXPIRE) for place in expired]
        for place, status in zip(expired, self._tikv.ask(stronger, now_ts), strict=True):
            statuses[place] = status
        return statuses

    def _build_question(self, entry: SorterEntry, now_ts: int, doubted: bool) -> Question:
        old = tso.extract_physical(now_ts) - tso.extract_physical(entry.start_ts) > self._timeout_ms
        return Question(entry.start_ts, entry.key, How.END if old or doubted else How.LOOK)

    def _ask_source(self, entries: Sequence[SorterEntry]) -> list[Status]:
        if len(entries) < 2:
            return [self._ask_one(entry) for entry in entries]
        self._pool = self._pool or ThreadPoolExecutor(_THREADS, "pump-status")
        return list(self._pool.map(self._ask_one, entries))

    def _ask_one(self, entry: SorterEntry) -> Status:
        if self._stopped.is_set():
            return Unreachable("the pump is stopping")
        try:
            return self._source.fetch_transaction_status(entry.start_ts, entry.key)
        except SourceUnavailable as error:
            return Unreachable(str(error))
