"""Asks a pump about its state, for a window's membership and for a task that waits for a window."""

from __future__ import annotations

from binlake.base.localfiles import DiskUse
from binlake.cluster.pumpclient import PumpReader
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
