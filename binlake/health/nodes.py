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
from binlake.cluster.placement import EtcdClient, NodeRegistry, NodeStatus, PdClient
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
"""Seconds for which a PD that did not answer is not asked again, and its clock not measured again, so that not every
page waits for it."""

_silent: dict[tuple[object, ...], float] = {}
_skews: dict[tuple[object, ...], tuple[float, int]] = {}
_lock = threading.Lock()


def build_nodes_view(replication: Replication) -> dict[str, Any]:
    """`reachable`, or `why` not; the nodes: id, kind, host, state, position with age, last heartbeat, staleness.

    `tidb`: the ages of the heartbeats of TiDB servers, by server. `skew_ms`: PD's clock minus this machine's, 0 if PD
    gave no timestamp. Ages are by PD's clock, since every commit_ts and heartbeat is.
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
            registry = NodeRegistry(etcd)
            pumps, drainers, tidb = registry.list_pumps(), registry.list_drainers(), read_tidb_heartbeats(etcd)
        skew_ms = _measure_skew_ms(urls, Tls.of(*files), cache_key)
        rows = _build_node_rows(pumps, drainers, time.time_ns() // 1_000_000 + skew_ms)
        return {"reachable": True, "why": "", "nodes": rows, "tidb": tidb, "skew_ms": skew_ms}
    except SourceUnavailable:
        with _lock:
            _silent[cache_key] = time.monotonic() + _REST_S
        return _build_unreachable_view(f"PD did not answer within {TIMEOUT_S:g} s")
    except BinlakeError as error:
        log.warning("registry_not_readable", replication=replication.name, error=str(error))
        return _build_unreachable_view("the registry cannot be read: see the API server's log")


def _build_unreachable_view(why: str) -> dict[str, Any]:
    return {"reachable": False, "why": why, "nodes": [], "tidb": {}, "skew_ms": 0}


def _measure_skew_ms(urls: Sequence[str], tls: Tls | None, cache_key: tuple[object, ...]) -> int:
    """PD's clock minus this machine's, measured every _REST_S: opening the stream of timestamps takes 0.2 s.

    0 if PD gives no timestamp in time: a clock that is led may have none left.
    """
    with _lock:
        until, skew_ms = _skews.get(cache_key, (0.0, 0))
    if time.monotonic() < until:
        return skew_ms
    began = time.time()
    try:
        with contextlib.closing(PdClient(urls, timeout_s=TIMEOUT_S, tls=tls)) as pd:
            skew_ms = tso.compute_skew_ms(pd.fetch_ts(), began, time.time())
    except BinlakeError as error:
        log.info("clock_not_readable", error=str(error))
        skew_ms = 0
    with _lock:
        _skews[cache_key] = time.monotonic() + _REST_S, skew_ms
    return skew_ms


def read_tidb_heartbeats(etcd: EtcdClient) -> dict[str, float]:
    """The age in seconds of the entry that each TiDB server renews in PD; empty for other sources."""
    entries, _ = etcd.read_prefix(_TOPOLOGY)
    now, ages = time.time(), {}
    for entry in entries:
        server, _, kind = entry.key.removeprefix(_TOPOLOGY).decode(errors="backslashreplace").rpartition("/")
        if kind == "ttl" and entry.value.isdigit():
            ages[server] = max(0.0, now - int(entry.value) / 1e9)
    return ages


def _build_node_rows(pumps: Sequence[NodeStatus], drainers: Sequence[NodeStatus], now: int) -> list[dict[str, Any]]:
    """`now`: Unix ms by PD's clock."""
    kinds = [*(("pump", node) for node in pumps), *(("drainer", node) for node in drainers)]
    return [
        {
            "kind": kind,
            "id": node.node_id,
            "host": node.host,
            "state": node.state,
            "stale": kind == "pump" and is_stale(node, tso.compose(now), _HEARTBEAT_S),
            "position": build_age_view(node.max_commit_ts or None, now),
            "heartbeat": build_age_view(node.update_ts or None, now),
        }
        for kind, node in kinds
    ]
