"""The source cluster as a window sees it: PD, the registry, the pumps' own answers, and the DDL history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from binlake.cluster.placement import NodeRegistry, PdClient, open_placement
from binlake.cluster.pumpclient import PumpReader
from binlake.cluster.source import SqlHistory, TidbSource
from binlake.cluster.source.catalogs import check_catalogs
from binlake.common.localfiles import DiskUse
from binlake.config import Replication
from binlake.errors import WireError
from binlake.rpc import Tls
from binlake.window.membership import Probe


def ask_pump(host: str, cluster_id: int, timeout_s: float, tls: Tls | None = None) -> Probe:
    """The state that the pump at `host` (HOST:PORT) reports. Raises SourceUnavailable."""
    try:
        info = PumpReader(host, cluster_id, timeout_s=timeout_s, tls=tls).read_info()
    except WireError:
        # An original pump has no Info service. The registry's entry and the proof in the pull must suffice.
        return Probe()
    return Probe(
        store_uuid=info.store_uuid,
        max_commit_ts=info.max_commit_ts,
        gc_ts=info.gc_ts,
        last_error=info.last_error,
        node_id=info.node_id,
        late_commits=info.late_commits,
        early_commits=info.early_commits,
        status_queries=info.status_queries,
        lost_commit_ts=info.lost_commit_ts,
        unmatched=info.unmatched_prewrites,
        oldest_start_ts=info.oldest_unmatched_start_ts,
        disk=DiskUse(info.disk_stored, info.disk_free, info.disk_size),
    )


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
