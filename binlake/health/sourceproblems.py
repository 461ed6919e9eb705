"""What is wrong with the sources, and who is too far behind them.

A source that is not heard may have commits of any age, so nothing behind it is fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from binlake.base.terminal import format_duration
from binlake.cluster.source.hearing import HeardSource, Hearing
from binlake.health.problem import DIAGNOSE, FEEDER_CHECK, FEEDER_STATUS, LIST_WINDOWS, Problem
from binlake.pipeline import label_sink, parse_feed_sink


def find_source_problems(hearing: Hearing, now_ms: int) -> list[Problem]:
    """Sources that are not read, and status ports that do not answer; one TiDB server that answers is enough."""
    problems = [problem for source in hearing.sources for problem in _find_problems_of_source(source, now_ms)]
    has_tidb = any(source.kind == "tidb" for source in hearing.sources)
    if hearing.silent and not has_tidb:
        known = "a feeder" if hearing.sources else "the source"
        text = f"the status port of {known} does not answer (source.status-url): what is committed there is not known"
        problems.append(Problem("unreachable", text, remedy=DIAGNOSE))
    elif hearing.silent:
        text = f"addresses in source.status-url that are silent: {len(hearing.silent)}"
        problems.append(Problem("attention", text, remedy=DIAGNOSE))
    return problems


def _find_problems_of_source(source: HeardSource, now_ms: int) -> list[Problem]:
    if source.state == "failed":
        text = f"the feeder has stopped reading the source {source.name}: {source.trouble}"
        return [Problem("failing", text, remedy=FEEDER_CHECK)]
    since = None if source.is_heard or source.heard_s is None else now_ms - int(source.heard_s * 1000)
    if source.trouble:
        text = f"the source {source.name} makes no progress: {source.trouble}"
        return [Problem("unreachable", text, since, remedy=FEEDER_CHECK)]
    if source.is_heard:
        return []
    if source.state == "loading":
        load = source.load or {}
        rows = f"{load.get('rows', 0):,} rows, {load.get('tables_done', 0)} of {load.get('tables', 0)} tables"
        text = f"the full load of the source {source.name} has not ended: {rows}"
        return [Problem("attention", text, remedy=FEEDER_STATUS)]
    state = "silent" if source.state == "reading" else source.state
    return [Problem("unreachable", f"the source {source.name} is not read: {state}", since, remedy=FEEDER_CHECK)]


def find_lag_problems(status: Mapping[str, Any], limit_s: int) -> list[Problem]:
    """The lake and the sinks that are too far behind the sources; feeds have their own states."""
    places = {"the lake": status["landed"]} | {
        f"the {label_sink(sink)}": position for sink, position in status["sinks"].items() if not parse_feed_sink(sink)
    }
    late = [
        f"{place} ({format_duration(position['lag_seconds'])})"
        for place, position in places.items()
        if position is not None and position["lag_seconds"] is not None and position["lag_seconds"] > limit_s
    ]
    text = f"more than {limit_s:,} s behind the source: {', '.join(late)}"
    return [Problem("behind", text, remedy=LIST_WINDOWS)] if late else []
