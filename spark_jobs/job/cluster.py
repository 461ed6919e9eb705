"""The source cluster as a stage sees it: PD, the registry, the pumps' own answers, and the DDL history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from binlake.cluster.placement import NodeRegistry, PdClient, open_placement
from binlake.cluster.source import SqlHistory, TidbSource
from binlake.cluster.source.catalogs import check_catalogs
from binlake.config import Replication
from binlake.rpc import Tls
from binlake.window.membership import Probe
from binlake.window.probing import ask_pump


@dataclass(frozen=True)
class Cluster:
    """Open connections to the source cluster; `cluster_id` is PD's, checked against the configuration."""

    cluster_id: int
    pd: PdClient
    registry: NodeRegistry
    source: TidbSource
    timeout_s: float
    tls: Tls | None = None

    def probe(self, host: str) -> Probe:
        """The state that the pump at `host` reports. Raises SourceUnavailable."""
        return ask_pump(host, self.cluster_id, self.timeout_s, self.tls)


@contextmanager
def open_cluster(replication: Replication) -> Iterator[Cluster]:
    """Connect to the source of `replication`. Raises SourceUnavailable, or Permanent for another cluster or feeder."""
    source = replication.source
    with open_placement(source) as placement:
        pd, tls = placement.pd, placement.tls
        history = SqlHistory(source.sql, source.timeout_s, source.sql_security) if source.sql is not None else None
        with closing(TidbSource(pd, source.status_url, source.timeout_s, tls=tls, history=history)) as tidb:
            cluster_id = pd.fetch_cluster_id()
            check_catalogs(tidb.port, placement.registry, cluster_id)
            yield Cluster(cluster_id, pd, placement.registry, tidb, source.timeout_s, tls)
