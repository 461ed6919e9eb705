"""The source cluster as a stage sees it: PD, the registry, the pumps' own answers, and the DDL history."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from binlake.config import Replication
from binlake.errors import WireError
from binlake.placement import EtcdClient, PdClient, Registry
from binlake.pumpclient import PumpReader
from binlake.source import TidbSource
from binlake.window.membership import Probe


@dataclass(frozen=True)
class Cluster:
    """Open connections to the source cluster; `cluster_id` is PD's, checked against the configuration."""

    cluster_id: int
    pd: PdClient
    registry: Registry
    source: TidbSource
    timeout_s: float

    def probe(self, host: str) -> Probe:
        """What the pump at `host` says of itself. Raises SourceUnavailable."""
        try:
            info = PumpReader(host, self.cluster_id, timeout_s=self.timeout_s).info()
        except WireError:
            # An original pump has no Info service: the registry's word and the proof in the pull must do.
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
        )


@contextmanager
def open_cluster(replication: Replication) -> Iterator[Cluster]:
    """Connect to the source of `replication`. Raises SourceUnavailable, or Permanent for another cluster."""
    source = replication.source
    expected = int(source.cluster_id) if source.cluster_id else None
    pd = PdClient(source.pd_urls, timeout_s=source.timeout_s, cluster_id=expected)
    etcd = EtcdClient(source.pd_urls, timeout_s=source.timeout_s)
    try:
        yield Cluster(pd.cluster_id(), pd, Registry(etcd), TidbSource(pd, source.status_url), source.timeout_s)
    finally:
        etcd.close()
        pd.close()
