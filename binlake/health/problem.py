"""One problem of a replication, the states that problems cause, and the commands that show more or mend it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlake.health.values import format_utc

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
