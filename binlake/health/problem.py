"""The problems of a replication and of its sources, the states that they cause, and the commands that mend them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlake.cluster.source.hearing import HeardSource, Hearing
from binlake.common.terminal import format_duration
from binlake.health.values import format_utc
from binlake.pipeline import label_sink, parse_feed_sink

STATES = ("paused", "failing", "blocked", "unreachable", "standing", "behind", "attention")
"""The states of a replication besides `empty` and `running`; if several apply, the first one counts."""
FILE, PD = "FILE", "PD-URLS"
"""What a remedy says for the replication's file and for `source.pd-urls`: a page must not show them, a command does."""
CHECK_SCHEDULER = "airflow jobs check --job-type SchedulerJob"
DIAGNOSE = f"binlake doctor {FILE}"
LIST_PUMPS = f"binlake pumps --pd-urls {PD}"
LIST_WINDOWS = f"binlake window list --replication {FILE} --limit 20"
SHOW_CHECKPOINT = f"binlake checkpoint show --replication {FILE}"
FIX_TARGET = f"binlake verify --replication {FILE} --fix"
FEEDER_CHECK = "binlake feeder check --config feeder.toml"
FEEDER_STATUS = "binlake feeder status --config feeder.toml"


def fill_in(remedy: str, file: Path, pd_urls: Sequence[str]) -> str:
    """The remedy as it can be run."""
    known = {FILE: str(file), PD: ",".join(pd_urls)}
    return " ".join(known.get(word, word) for word in remedy.split(" "))


@dataclass(frozen=True)
class Problem:
    """A problem: the `state` of STATES that it causes, and a text; its start (Unix ms) and run, if known; `remedy`: the
    command to run next, empty = only to wait for."""

    state: str
    text: str
    since_ms: int | None = None
    run_id: str = ""
    remedy: str = ""

    def to_dict(self) -> dict[str, Any]:
        """For pages and JSON."""
        since = None if self.since_ms is None else format_utc(self.since_ms)
        return {"state": self.state, "text": self.text, "since": since, "run_id": self.run_id, "remedy": self.remedy}


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
