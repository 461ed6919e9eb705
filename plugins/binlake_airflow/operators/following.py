"""A stage's task that follows: another task's process runs the stage, and this one ends as it ended there.

The trigger occupies no worker, and only looks: the other task tells the results of stages in an XCom. A task that
is cleared after that process has ended runs its stage itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import BaseTrigger, TaskFailedEvent, TaskSkippedEvent, TaskSuccessEvent, TriggerEvent

from binlake_airflow.jobs import TOLD
from binlake_airflow.operators.links import build_link_xcoms

_LOOK_S = 1.0
# The process has told nothing yet, and Airflow logs an error for an XCom that does not exist.
_NOT_BEGUN = (None, "scheduled", "queued")
_WITHOUT_STAGE = ("success", "skipped", "removed")
_FAILED = ("failed", "upstream_failed")


class StageTrigger(BaseTrigger):
    """Ends its task when the stage has ended in the process of the task `process` of the same run: with its result.

    If that task ends without the stage, this one is skipped; if it fails, this one fails.
    """

    def __init__(self, *, process: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.process = process

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Its path and arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"process": self.process}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look once a second."""
        task: Any = self.task_instance
        if task.try_number > 1 and await self._find_state(task) in (*_WITHOUT_STAGE, *_FAILED):
            yield TriggerEvent({"try_number": task.try_number})
            return
        while (event := await self._find_end(task)) is None:
            await asyncio.sleep(_LOOK_S)
        yield event

    async def _find_end(self, task: Any) -> TriggerEvent | None:
        # The state first: all that the process told is there when its task has ended.
        state = await self._find_state(task)
        if state in _NOT_BEGUN:
            return None
        told = await BaseXCom.aget_one(key=TOLD, dag_id=task.dag_id, task_id=self.process, run_id=task.run_id) or {}
        if task.task_id in told:
            result = told[task.task_id]
            return TaskSuccessEvent(
                xcoms={"return_value": result, **build_link_xcoms(task.dag_id, task.run_id, result)}
            )
        if state in _FAILED:
            return TaskFailedEvent()
        return TaskSkippedEvent() if state in _WITHOUT_STAGE else None

    async def _find_state(self, task: Any) -> str | None:
        # Asked in a thread: this call has no form for the triggerer's loop.
        found = await asyncio.to_thread(
            RuntimeTaskInstance.get_task_states, task.dag_id, task_ids=[self.process], run_ids=[task.run_id]
        )
        state = found.get(task.run_id, {}).get(self.process)
        return None if state is None else str(state)
