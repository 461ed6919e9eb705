"""The trigger of waiting tasks: what it contains, and when it fires. test_e2e_airflow.py uses a real triggerer."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from support.replication_files import write_replication

from binlake.config import load_replication
from binlake.errors import TargetUnavailable
from binlake.lake.lock import hold_lake_lock
from binlake.lake.paths import LakePaths
from binlake_airflow.operators import waiting
from binlake_airflow.operators.waiting import FreeTrigger


def fire(trigger: FreeTrigger) -> dict[str, Any]:
    async def first() -> dict[str, Any]:
        async for event in trigger.run():
            return dict(event.payload)
        raise AssertionError("the trigger ended without an event")

    return asyncio.run(first())


def test_trigger_is_serialised_completely_and_contains_no_secret(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BINLAKE_TEST_UNSET_PASSWORD", "s3cret")
    path = str(write_replication(folder, "orders"))
    given = {"replication_file": path, "until": 5.0, "locks": ["sql"], "lease": True, "lo": "470583292723200001",
             "stop_ts": None, "cause": "pump-2 since 5 (unreachable)"}  # fmt: skip
    name, kwargs = FreeTrigger(**given).serialize()
    assert (name, kwargs) == ("binlake_airflow.operators.waiting.FreeTrigger", given)
    assert FreeTrigger(**kwargs).serialize() == (name, kwargs)
    assert "s3cret" not in str(kwargs)


def test_trigger_fires_when_the_lock_is_free_or_its_time_is_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_LOOK_S", 0.1)
    path = write_replication(folder, "orders")
    paths = LakePaths.of(load_replication(path, secrets=False))
    with hold_lake_lock(paths, "sql", wait_s=0):
        until = time.time() + 0.2
        vain = fire(FreeTrigger(replication_file=str(path), until=until, locks=["sql"]))
    assert (vain["until"], vain["held_by"][:8]) == (until, "sql: pid")
    assert fire(FreeTrigger(replication_file=str(path), until=until, locks=["sql"]))["held_by"] != ""
    free = fire(FreeTrigger(replication_file=str(path), until=time.time() + 600, locks=["sql"]))
    assert free["held_by"] == ""


@pytest.mark.parametrize(
    ("now", "obstacle"),
    [
        ("pump-2 since 9 (unreachable, watermark 77)", "pump-2 since 9 (unreachable, watermark 77)"),
        ("pump-2 since 9 (it has another data directory)", ""),
        ("pump-1 since 9 (unreachable, watermark 77)", ""),
        ("", ""),
    ],
    ids=["same cause, later", "another cause", "another pump", "none"],
)
def test_trigger_lets_the_task_record_another_cause(
    folder: Path, monkeypatch: pytest.MonkeyPatch, now: str, obstacle: str
) -> None:
    path = write_replication(folder, "orders")
    monkeypatch.setattr("binlake.lake.holdups.find_blocking_reason", lambda *_: now)
    cause = "pump-2 since 5 (unreachable, watermark 3)"
    trigger = FreeTrigger(replication_file=str(path), until=time.time() + 600, lo="5", cause=cause)
    assert trigger.find_obstacle() == obstacle


def test_error_while_checking_is_left_to_the_task(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_replication(folder, "orders")

    def nobody_there(*_: object) -> str:
        raise TargetUnavailable("no server")

    monkeypatch.setattr("binlake.target.claim.fence.describe_holder", nobody_there)
    monkeypatch.setenv("BINLAKE_TEST_UNSET_PASSWORD", "x")
    trigger = FreeTrigger(replication_file=str(path), until=time.time() + 600, lease=True)
    assert trigger.find_obstacle() == ""
