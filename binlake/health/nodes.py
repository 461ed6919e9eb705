"""The registry's pumps and drainers now: one short request; if PD is unreachable, the answer says so at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import structlog

from binlake import tso
from binlake.cluster.control.nodes import is_stale
from binlake.cluster.placement import EtcdClient, NodeStatus, Registry
from binlake.config import Replication
from binlake.errors import BinlakeError, SourceUnavailable
from binlake.health.values import build_age_view
from binlake.rpc import Tls

log = structlog.get_logger(__name__)

TIMEOUT_S = 1.0
_HEARTBEAT_S = 2.0
_TOPOLOGY = b"/topology/tidb/"
"""TiDB writes SERVER/ttl here: Unix nanoseconds, every 30 s, under a lease of 45 s."""
_REST_S = 15.0
"""Seconds for which a PD that did not answer is not asked again, so that not every page waits for it."""

_silent: dict[tuple[object, ...], float] = {}
_lock = threading.Lock()


def build_nodes_view(replication: Replication) -> dict[str, Any]:
    """`reachable`, or `why` not; the nodes: id, kind, host, state, position with age, last heartbeat, staleness.

    `tidb`: the ages of the heartbeats of TiDB servers, by server.
    """
    source = replication.source
    urls, files = tuple(source.pd_urls), source.security.list_files()
    # A PD that does not answer with one set of certificates may answer with another.
    cache_key = (urls, files)
    with _lock:
        rests = time.monotonic() < _silent.get(cache_key, 0.0)
    if rests:
        return _build_unreachable_view("PD did not answer a moment ago")
    # Fixed texts: readers must not see URLs and file names of the configuration.
    try:
        with contextlib.closing(EtcdClient(urls, timeout_s=TIMEOUT_S, tls=Tls.of(*files))) as etcd:
            registry = Registry(etcd)
            return {
                "reachable": True,
                "why": "",
                "nodes": _build_node_rows(registry.list_pumps(), registry.list_drainers()),
                "tidb": read_tidb_heartbeats(etcd),
            }
    except SourceUnavailable:
        with _lock:
            _silent[cache_key] = time.monotonic() + _REST_S
        return _build_unreachable_view(f"PD did not answer within {TIMEOUT_S:g} s")
    except BinlakeError as error:
        log.warning("registry_not_readable", replication=replication.name, error=str(error))
        return _build_unreachable_view("the registry cannot be read: see the API server's log")


def _build_unreachable_view(why: str) -> dict[str, Any]:
    return {"reachable": False, "why": why, "nodes": [], "tidb": {}}


def read_tidb_heartbeats(etcd: EtcdClient) -> dict[str, float]:
    """The age in seconds of the entry that each TiDB server renews in PD; empty for other sources."""
    entries, _ = etcd.read_prefix(_TOPOLOGY)
    now, ages = time.time(), {}
    for entry in entries:
        server, _, kind = entry.key.removeprefix(_TOPOLOGY).decode(errors="backslashreplace").rpartition("/")
        if kind == "ttl" and entry.value.isdigit():
            ages[server] = max(0.0, now - int(entry.value) / 1e9)
    return ages


def _build_node_rows(pumps: Sequence[NodeStatus], drainers: Sequence[NodeStatus]) -> list[dict[str, Any]]:
    now = time.time_ns() // 1_000_000
    kinds = [*(("pump", node) for node in pumps), *(("drainer", node) for node in drainers)]
    return [
        {
            "kind": kind,
            "id": node.node_id,
            "host": node.host,
            "state": node.state,
            # Measured with this machine's clock, so that the page needs no timestamp from PD.
            "stale": kind == "pump" and is_stale(node, tso.compose(now), _HEARTBEAT_S),
            "position": build_age_view(node.max_commit_ts or None, now),
            "heartbeat": build_age_view(node.update_ts or None, now),
        }
        for kind, node in kinds
    ]
