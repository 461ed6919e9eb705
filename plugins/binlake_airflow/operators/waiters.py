"""Why a run with several windows should end: it must not keep others waiting longer than a run with one window."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from binlake_airflow.actions.action import ACT

log = structlog.get_logger(__name__)
_QUIET_S = 3.0
WRITING = ("bootstrap", "backfill", "restore", "recover", "verify", "maintain", ACT)
"""The side DAGs whose runs may wait for the locks of a window: `audit` only reads."""


class Waiters:
    """Asks Airflow, every 3 s at most, whether anybody waits for the end of this run."""

    def __init__(self, context: Mapping[str, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._ti, self._dag_id = context["ti"], context["ti"].dag_id
        self._clock = clock
        self._next = 0.0

    def find_reason_to_end(self) -> str:
        """Empty if nobody waits, or if it was asked a moment ago."""
        if self._clock() < self._next:
            return ""
        self._next = self._clock() + _QUIET_S
        try:
            return self._ask()
        except Exception:  # the windows are done, and stay so
            log.warning("waiters_not_known", exc_info=True)
            return "Airflow did not say who waits"

    def _ask(self) -> str:
        if self._ti.get_dag(self._dag_id).is_paused:
            return "the DAG is paused"
        if self._ti.get_dr_count(self._dag_id, states=["queued"]):
            return "another run of the DAG waits"
        # They wait for locks and leases, which these windows would take again at once.
        running = (kind for kind in WRITING if self._ti.get_dr_count(f"{self._dag_id}.{kind}", states=["running"]))
        kind = next(running, "")
        return f"{self._dag_id}.{kind} is running" if kind else ""
