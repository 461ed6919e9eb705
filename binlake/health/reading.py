"""Reads everything that health depends on, from the lake and its surroundings, and computes it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from binlake.config import Replication
from binlake.health.feeds import build_feeds_view
from binlake.health.nodes import build_nodes_view
from binlake.health.orchestration import DagFacts, SchedulerFacts
from binlake.health.positions import build_status_view
from binlake.health.reachability import FindAddresses, build_reach_view
from binlake.health.sources import build_sources_view, hear_sources
from binlake.health.state import Surroundings, build_health_view
from binlake.lake.windowlog import WindowLog
from binlake.pipeline import name_feed_sink


def _know_no_address() -> tuple[tuple[str, int], ...]:
    return ()


@dataclass(frozen=True)
class Orchestration:
    """What only Airflow knows: the DAGs of the replication by kind, its scheduler, and where Spark is.

    Without arguments: Airflow was not asked, so nothing of this is known and none of it counts as a problem.
    """

    dags: Mapping[str, DagFacts] = field(default_factory=dict)
    scheduler: SchedulerFacts | None = None
    find_spark: FindAddresses = _know_no_address


def read_health(
    replication: Replication, log: WindowLog, orchestration: Orchestration
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The replication's status with its health, and the registry's nodes (as `build_nodes_view`)."""
    now_ms, nodes = time.time_ns() // 1_000_000, build_nodes_view(replication)
    hearing = hear_sources(replication, nodes["tidb"])
    # How far a commit_ts is behind is a question to the clock that gave it; what Binlake recorded has this one's times.
    source_ms = now_ms + nodes["skew_ms"]
    status = build_status_view(replication, log, source_ms, hearing)
    feeds = build_feeds_view(replication, log, source_ms, hearing)
    status["sinks"] |= {name_feed_sink(feed["name"]): feed["position"] for feed in feeds}
    reach = build_reach_view(replication, orchestration.find_spark)
    around = Surroundings(orchestration.dags, reach, nodes, hearing, orchestration.scheduler)
    health = build_health_view(replication, log, status, around, now_ms, feeds)
    source = build_sources_view(hearing, now_ms)
    return {**status, **health, "source": source, "feeds": feeds, "skew_ms": nodes["skew_ms"]}, nodes
