"""Who answers now: PD with the registry's pumps and drainers, the sources, and the servers of target, Spark and feeds.

Each is asked shortly; what does not answer is shown at once, and is not asked again for some seconds, so that not every
page waits for a dead address. Of servers only a TCP connection is opened, in parallel: pages have no passwords.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import structlog

from binlake import tso
from binlake.cluster.control.nodes import is_stale
from binlake.cluster.placement import EtcdClient, NodeRegistry, NodeStatus, PdClient
from binlake.cluster.source.hearing import HeardSource, Hearing, combine, listen
from binlake.common.reachability import is_listening, parse_address
from binlake.config import Replication
from binlake.config.feed import FeedSection
from binlake.errors import BinlakeError, SourceUnavailable
from binlake.health.values import build_age_view, build_ts_view, format_utc
from binlake.pipeline import name_feed_sink
from binlake.rpc import Tls

log = structlog.get_logger(__name__)

Address = tuple[str, int]
FindAddresses = Callable[[], Sequence[Address]]

TIMEOUT_S = 1.0
_HEARTBEAT_S = 2.0
_TOPOLOGY = b"/topology/tidb/"
"""TiDB writes SERVER/ttl here: Unix nanoseconds, every 30 s, under a lease of 45 s."""
_PD_REST_S = 15.0
"""Seconds for which a PD that did not answer is not asked again, and its clock not measured again, so that not every
page waits for it."""
_SOURCE_REST_S = 5.0
"""Seconds for which a status port that did not answer is not asked again, so that not every page waits for it."""
_KEEP_S = {True: 5.0, False: 15.0}
"""Seconds for which the positive or negative answer of a server is cached."""
_LOAD = ("state", "rows", "rows_estimated", "bytes", "rows_per_second", "seconds_left", "tables_done", "tables")
_KAFKA_PORT = 9092
_REGISTRY_PORTS = {"http": 80, "https": 443}
_MOST_THREADS = 16

_silent_pds: dict[tuple[object, ...], float] = {}
_skews: dict[tuple[object, ...], tuple[float, int]] = {}
_silent_sources: dict[tuple[object, ...], float] = {}
_known: dict[Address, tuple[float, bool]] = {}
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
        rests = time.monotonic() < _silent_pds.get(cache_key, 0.0)
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
            _silent_pds[cache_key] = time.monotonic() + _PD_REST_S
        return _build_unreachable_view(f"PD did not answer within {TIMEOUT_S:g} s")
    except BinlakeError as error:
        log.warning("registry_not_readable", replication=replication.name, error=str(error))
        return _build_unreachable_view("the registry cannot be read: see the API server's log")


def _build_unreachable_view(why: str) -> dict[str, Any]:
    return {"reachable": False, "why": why, "nodes": [], "tidb": {}, "skew_ms": 0}


def _measure_skew_ms(urls: Sequence[str], tls: Tls | None, cache_key: tuple[object, ...]) -> int:
    """PD's clock minus this machine's, measured every _PD_REST_S: opening the stream of timestamps takes 0.2 s.

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
        _skews[cache_key] = time.monotonic() + _PD_REST_S, skew_ms
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


def hear_sources(replication: Replication, heartbeats: Mapping[str, float]) -> Hearing:
    """What the status ports of `replication` say now; `heartbeats`: as `listen`."""
    source = replication.source
    files = source.security.list_files()
    urls = [url.strip().rstrip("/") for url in source.status_url.split(",")]
    with _lock:
        now = time.monotonic()
        resting = [url for url in urls if now < _silent_sources.get((url, files), 0.0)]
    asked = [url for url in urls if url not in resting]
    heard = listen(asked, TIMEOUT_S, Tls.of(*files)) if asked else Hearing()
    with _lock:
        _silent_sources.update({(url, files): time.monotonic() + _SOURCE_REST_S for url in heard.silent})
    alive = combine([], heartbeats)
    return replace(heard, sources=(*heard.sources, *alive.sources), silent=(*heard.silent, *resting))


def build_sources_view(hearing: Hearing, now_ms: int) -> dict[str, Any]:
    """Whether the sources are heard, their lag, how many status ports are silent, and each source."""
    return {
        "heard": hearing.is_heard,
        "lag_seconds": hearing.lag_s,
        # Readers must not see addresses of the configuration.
        "silent": len(hearing.silent),
        "sources": [_build_source_row(source, now_ms) for source in hearing.sources],
    }


def _build_source_row(source: HeardSource, now_ms: int) -> dict[str, Any]:
    last = int(source.last_commit_ts or 0)
    load = source.load or {}
    return {
        "name": source.name, "kind": source.kind, "state": source.state, "heard": source.is_heard,
        "server": source.server, "position": source.position, "trouble": source.trouble,
        "lag_seconds": source.lag_s,
        "heard_at": None if source.heard_s is None else format_utc(now_ms - int(source.heard_s * 1000)),
        "last": build_ts_view(last) if tso.extract_physical(last) else None,
        "load": {name: load.get(name, 0) for name in _LOAD} if load else None,
    }  # fmt: skip


@dataclass(frozen=True)
class FeedServer:
    """One server of a feed, or several of which one is enough: `key` in answers, `what` it is, its addresses."""

    key: str
    what: str
    addresses: tuple[Address, ...]

    @property
    def where(self) -> str:
        """The addresses, for people."""
        return ", ".join(f"{host}:{port}" for host, port in self.addresses)


def build_reach_view(replication: Replication, find_spark: FindAddresses) -> dict[str, bool | None]:
    """For target, Spark and the servers of feeds: whether a server listens there; None if there is no address."""
    checks: dict[str, FindAddresses] = {
        "target": lambda: _find_target_address(replication),
        "spark": find_spark,
    }
    servers = [server for feed in replication.feed for server in list_servers_of_feed(feed)]
    checks |= {server.key: partial(getattr, server, "addresses") for server in servers}
    with ThreadPoolExecutor(min(len(checks), _MOST_THREADS), "binlake-reach") as pool:
        answers = {name: pool.submit(_check_addresses, addresses) for name, addresses in checks.items()}
    return {name: answer.result() for name, answer in answers.items()}


def list_servers_of_feed(feed: FeedSection) -> list[FeedServer]:
    """The brokers and the registry that a feed needs."""
    servers, sink = [], name_feed_sink(feed.name)
    if feed.sink.kafka is not None:
        servers.append(
            FeedServer(f"{sink} brokers", "the brokers", _parse_addresses(feed.sink.kafka.brokers, _KAFKA_PORT))
        )
    if feed.schema_registry:
        port = _REGISTRY_PORTS.get(urlsplit(feed.schema_registry).scheme, _REGISTRY_PORTS["http"])
        servers.append(
            FeedServer(f"{sink} registry", "the schema registry", _parse_addresses([feed.schema_registry], port))
        )
    return servers


def _parse_addresses(urls: Sequence[str], default_port: int) -> tuple[Address, ...]:
    """The addresses of `urls`; invalid ones are left out."""
    addresses: list[Address] = []
    for url in urls:
        with suppress(ValueError):
            addresses.append(parse_address(url, default_port))
    return tuple(address for address in addresses if address[0])


def _check_addresses(addresses: FindAddresses) -> bool | None:
    """Whether one of the addresses answers; None if there are no addresses."""
    known = addresses()
    return any(_check_address(server) for server in known) if known else None


def _check_address(server: Address) -> bool:
    with _lock:
        until, answer = _known.get(server, (0.0, False))
    if time.monotonic() < until:
        return answer
    answer = is_listening(*server, TIMEOUT_S)
    with _lock:
        _known[server] = (time.monotonic() + _KEEP_S[answer], answer)
    return answer


def _find_target_address(replication: Replication) -> Sequence[Address]:
    target = replication.target
    return () if target is None else ((target.host, target.port),)
