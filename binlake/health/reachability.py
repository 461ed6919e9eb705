"""Whether a server listens at the addresses of a replication's target, Spark and feeds: parallel TCP connections, 1 s.

No login is tried, because pages have no passwords. Results are cached for some seconds, so that not every page waits
for a dead address. PD and pumps are checked in `binlake.health.nodes`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from binlake.base.reachability import is_listening, parse_address
from binlake.config import Replication
from binlake.config.feed import FeedSection
from binlake.pipeline import name_feed_sink

TIMEOUT_S = 1.0
_KEEP_S = {True: 5.0, False: 15.0}
"""Seconds for which a positive or negative answer is cached."""
_KAFKA_PORT = 9092
_MOST_THREADS = 16

_REGISTRY_PORTS = {"http": 80, "https": 443}
Address = tuple[str, int]
FindAddresses = Callable[[], Sequence[Address]]


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


_known: dict[Address, tuple[float, bool]] = {}
_lock = threading.Lock()


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
