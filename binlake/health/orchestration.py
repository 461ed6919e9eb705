"""What health needs to know of the scheduler that runs the windows; without one, nothing is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field

SYNC = "sync"
"""The kind of the DAG that runs the windows."""


@dataclass(frozen=True)
class LastRun:
    """The last ended run of a DAG: its state (success, failed) and, if it failed, the failed tasks."""

    run_id: str
    state: str
    ended_ms: int
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class DagFacts:
    """One DAG: `due_ms`: when the scheduler should start its next run (None: only manual runs, or enough are active);
    `active`: its runs; `alive_ms`: the last sign of life of one of them (None: none is active)."""

    kind: str
    paused: bool
    due_ms: int | None = None
    last: LastRun | None = None
    active: tuple[str, ...] = field(default=())
    alive_ms: int | None = None


@dataclass(frozen=True)
class SchedulerFacts:
    """Airflow's own judgement of its scheduler, and when it last sent a heartbeat (Unix ms; None: never)."""

    healthy: bool
    heard_ms: int | None = None
