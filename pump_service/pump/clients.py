"""The clients of a pump: PD for time, the registry for members, TiDB and TiKV for the outcomes of transactions.

The configuration determines each client that the caller does not pass in. If an oracle is passed in, the pump does not
look for TiKV.
"""

from __future__ import annotations

import threading
import time

from binlake.cluster.placement import EtcdClaim, EtcdClient, NodeRegistry, PdClient
from binlake.cluster.source import Status, TidbSource
from binlake.cluster.source.catalogs import check_catalogs
from binlake.cluster.source.regions import RegionClient
from binlake.cluster.source.tikv import TikvStatus
from binlake.errors import Permanent, SourceUnavailable
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.membership import Claim, ClusterClock, Members
from binlake.pump_service.pump.resolver import NoStatusSource, StatusSource

# A node id is free again after this many seconds without a heartbeat from its holder, or after this many heartbeat
# intervals, whichever is longer.
_CLAIM_S = 10
_CLAIM_BEATS = 3
_CHECK_S = 60.0  # between two checks of whose status ports these are


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
