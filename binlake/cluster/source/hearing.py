"""Whether the sources of a replication are heard now, and how far behind each of them the pumps are.

A MySQL or MariaDB server is heard while its feeder reads its log (`/feeder` on the feeder's status port). A TiDB is
heard if a status port of it answers, or a server of it has renewed its entry in PD. The watermarks of pumps prove
nothing here: they advance without any source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import httpx

from binlake.rpc import Tls

FEEDER_PATH = "/feeder"
_TIDB_PATH = "/status"
HEARTBEAT_LIMIT_S = 90.0
"""A TiDB server renews its entry in PD every 30 s, and PD removes it after 45 s."""
_MOST_THREADS = 8


@dataclass(frozen=True)
class HeardSource:
    """One source as its feeder, or the TiDB itself, describes it.

    `lag_s`: the age of its oldest commit that is not on the pumps, None = unknown; `heard_s`: seconds since it last
    sent anything, None = unknown; `trouble`: why it makes no progress; `load`: its full load, empty = none.
    """

    name: str
    kind: Literal["feeder", "tidb"]
    state: str
    is_heard: bool
    server: str = ""
    position: str = ""
    lag_s: float | None = None
    heard_s: float | None = None
    last_commit_ts: str = ""
    trouble: str = ""
    load: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Hearing:
    """The sources that were asked for; `silent`: the addresses at which nobody answered."""

    sources: tuple[HeardSource, ...] = ()
    silent: tuple[str, ...] = ()

    @property
    def is_heard(self) -> bool:
        """Whether every source is heard. Of a TiDB one server is enough, a feeder has sources that no other has."""
        feeders = [source for source in self.sources if source.kind == "feeder"]
        servers = [source for source in self.sources if source.kind == "tidb"]
        if servers:
            return any(server.is_heard for server in servers) and all(source.is_heard for source in feeders)
        return bool(feeders) and not self.silent and all(source.is_heard for source in feeders)

    @property
    def lag_s(self) -> float | None:
        """The greatest lag of a source; None if one of them is not heard, since it may have commits of any age."""
        if not self.is_heard:
            return None
        return max((source.lag_s or 0.0 for source in self.sources), default=0.0)

    def measure_lag_s(self, position_ms: int, now_ms: int) -> float | None:
        """Seconds that a reader at `position_ms` (Unix ms of its commit_ts) is behind the sources; None = unknown.

        commit_ts is the pumps' clock: a commit that waits at the source has none yet, so its age counts too.
        """
        lag_s = self.lag_s
        return None if lag_s is None else max(lag_s, (now_ms - position_ms) / 1000, 0.0)


def listen(
    urls: Sequence[str], timeout_s: float, tls: Tls | None = None, heartbeats: Mapping[str, float] | None = None
) -> Hearing:
    """What the status ports at `urls` say; `heartbeats`: age in seconds of each TiDB server's entry in PD."""
    verify = tls.build_http_context() if tls is not None else any(url.lower().startswith("https:") for url in urls)
    with (
        httpx.Client(timeout=timeout_s, trust_env=False, verify=verify) as client,
        ThreadPoolExecutor(max(1, min(len(urls), _MOST_THREADS)), "binlake-sources") as pool,
    ):
        answers = list(pool.map(partial(_ask, client), urls))
    return combine(list(zip(urls, answers, strict=True)), heartbeats or {})


def combine(answers: Sequence[tuple[str, Sequence[HeardSource] | None]], heartbeats: Mapping[str, float]) -> Hearing:
    """The hearing from what each address answered (None = nothing) and the ages of heartbeats in PD."""
    silent = tuple(url for url, answer in answers if answer is None)
    sources = [source for _, answer in answers if answer is not None for source in answer]
    alive = [
        HeardSource(f"TiDB {server}", "tidb", "running", True, server=server, heard_s=age)
        for server, age in sorted(heartbeats.items())
        if age <= HEARTBEAT_LIMIT_S
    ]
    return Hearing((*sources, *alive), silent)


def parse_feeder(body: Mapping[str, Any]) -> list[HeardSource]:
    """The sources in the JSON of a feeder's page."""
    return [_parse_source(source) for source in body["sources"]]


def _parse_source(source: Mapping[str, Any]) -> HeardSource:
    state, trouble = str(source["state"]), str(source.get("trouble", ""))
    # A feeder that does not say whether it hears its source is an older one.
    heard = bool(source.get("heard", not trouble)) and state == "reading"
    position = source.get("gtids") or (f"{source['file']}:{source['offset']}" if source.get("file") else "")
    return HeardSource(
        str(source["source"]), "feeder", state, heard,
        server=str(source.get("server", "")), position=str(position), trouble=trouble,
        lag_s=float(source["lag_s"]) if heard and "lag_s" in source else None,
        heard_s=None if source.get("heard_s") is None else float(source["heard_s"]),
        last_commit_ts=str(source.get("last_commit_ts", "")), load=source.get("load"),
    )  # fmt: skip


def _ask(client: httpx.Client, url: str) -> list[HeardSource] | None:
    """The sources at one status port; None if nobody answers there as a feeder or a TiDB does."""
    try:
        page = client.get(url + FEEDER_PATH)
        sources = _find_sources(page)
        if sources is not None:
            return sources
        client.get(url + _TIDB_PATH).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return None
    return [HeardSource(f"TiDB {httpx.URL(url).netloc.decode()}", "tidb", "running", True, lag_s=0.0, heard_s=0.0)]


def _find_sources(page: httpx.Response) -> list[HeardSource] | None:
    """The sources on a feeder's page; None if it is none, as a TiDB has no such page."""
    if page.status_code != httpx.codes.OK:
        return None
    try:
        return parse_feeder(page.json())
    except (ValueError, TypeError, KeyError):
        return None
