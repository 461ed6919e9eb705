"""The sources of a replication now: one short request to each status port; a silent one is shown at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from binlake import tso
from binlake.cluster.source.hearing import HeardSource, Hearing, combine, listen
from binlake.config import Replication
from binlake.health.values import build_ts_view, format_utc
from binlake.rpc import Tls

TIMEOUT_S = 1.0
_REST_S = 5.0
"""Seconds for which a status port that did not answer is not asked again, so that not every page waits for it."""

_silent: dict[tuple[object, ...], float] = {}
_lock = threading.Lock()


def hear_sources(replication: Replication, heartbeats: Mapping[str, float]) -> Hearing:
    """What the status ports of `replication` say now; `heartbeats`: as `listen`."""
    source = replication.source
    files = source.security.list_files()
    urls = [url.strip().rstrip("/") for url in source.status_url.split(",")]
    with _lock:
        now = time.monotonic()
        resting = [url for url in urls if now < _silent.get((url, files), 0.0)]
    asked = [url for url in urls if url not in resting]
    heard = listen(asked, TIMEOUT_S, Tls.of(*files)) if asked else Hearing()
    with _lock:
        _silent.update({(url, files): time.monotonic() + _REST_S for url in heard.silent})
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


_LOAD = ("state", "rows", "rows_estimated", "bytes", "rows_per_second", "seconds_left", "tables_done", "tables")


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
