"""Blocked must not look like idle: how long the plan has been blocked, and when that fails the run (hazards R-35)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from binlake.errors import IncompleteWindow


def blocked_since_ms(events: Iterable[Mapping[str, Any]]) -> int | None:
    """Unix ms of the first of the plan's latest blocked answers in a row; None when it is not blocked.

    `events` are rows of the table `window` in order of time.
    """
    since: int | None = None
    for event in events:
        if event["stage"] != "plan":
            continue
        blocked = event["state"] == "blocked"
        since = (int(event["at_ms"]) if since is None else since) if blocked else None
    return since


def refuse_long_block(replication_file: str, blocked_by: str) -> None:
    """Raise IncompleteWindow when the plan of this replication is blocked longer than `window.blocked-alert-s`."""
    # At call time: delta-rs must be loaded neither by a DAG file that is parsed nor by the scheduler that forks tasks.
    from binlake.config import load_replication
    from binlake.lake.paths import LakePaths
    from binlake.lake.windowlog import WindowLog

    replication = load_replication(replication_file, secrets=False)
    since = blocked_since_ms(WindowLog(LakePaths.of(replication)).events())
    seconds = 0 if since is None else time.time() - since / 1000
    if seconds > replication.window.blocked_alert_s:
        raise IncompleteWindow(
            f"blocked for {seconds:.0f} s by {blocked_by}",
            where={"replication": replication.name, "blocked_alert_s": replication.window.blocked_alert_s},
            hint="start the pump it names, or take it out of the cluster by an offline request",
        )
