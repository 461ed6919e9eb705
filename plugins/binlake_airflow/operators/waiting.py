"""Waiting without a worker: a task that has to wait for a pump, a lease or a lock sleeps in the triggerer.

The trigger only checks; the resumed task decides, and may have to wait again (hazards R-02, R-35).
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from binlake.config import load_replication
from binlake.errors import BinlakeError
from binlake_airflow.operators.connections import fetch_connections

# Not zero: if a task returned before the scheduler noticed that it was deferred, it would be failed as lost.
_LOOK_S = 5.0


class FreeTrigger(BaseTrigger):
    """Fires when the task need not wait any longer, or at `until` (Unix seconds).

    It waits until these are free: `locks` of the lake; the target's `lease`; and until plan finds a window after `lo`
    (decimal string) that reaches `stop_ts` if given, or what blocks it is no longer `cause`: pages show what the last
    plan found, so another plan must find the new cause. The event is `{"until": …, "held_by": …}`; an empty `held_by`
    means that all are free.
    """

    def __init__(
        self,
        *,
        replication_file: str,
        until: float,
        locks: list[str] | None = None,
        lease: bool = False,
        lo: str | None = None,
        stop_ts: str | None = None,
        cause: str = "",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.replication_file = replication_file
        self.until = until
        self.locks = locks or []
        self.lease = lease
        self.lo = lo
        self.stop_ts = stop_ts
        self.cause = cause
        self.secrets: Mapping[str, str] = {}
        """The connections that the file names, by variable; not serialized."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The arguments, without secrets: the trigger reads the replication file again where it runs."""
        names = ("replication_file", "until", "locks", "lease", "lo", "stop_ts", "cause")
        return f"{type(self).__module__}.{type(self).__qualname__}", {name: getattr(self, name) for name in names}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check every 5 s."""
        obstacle = "not checked yet"
        self.secrets = await self._fetch_secrets()
        while obstacle and (left := self.until - time.time()) > 0:
            await asyncio.sleep(min(_LOOK_S, left))
            # Sockets and files block, so they must not be used in the triggerer's loop.
            obstacle = await asyncio.to_thread(self.find_obstacle)
        yield TriggerEvent({"until": self.until, "held_by": obstacle})

    async def _fetch_secrets(self) -> Mapping[str, str]:
        # Asked here: Airflow's connections belong to the triggerer's loop.
        try:
            replication = load_replication(self.replication_file, secrets=False)
            wanted = self.lease or replication.lake.storage.credentials
            return await fetch_connections(replication) if wanted else {}
        except BinlakeError:
            return {}  # `find_obstacle` reads the file again, and says it

    def find_obstacle(self) -> str:
        """What the task has to wait for; empty = nothing, or an error that the task itself will report better."""
        try:
            return self._look()
        except BinlakeError as error:
            self.log.info("wait_check_failed", error=str(error))
            return ""

    def _look(self) -> str:
        # Imported late: grpc and delta-rs must not be loaded by a process that only parses DAG files or forks.
        from binlake.lake.holdups import find_blocking_reason
        from binlake.lake.lock import lock_holder
        from binlake.lake.paths import LakePaths
        from binlake.target.claim.fence import describe_holder

        replication = load_replication(
            self.replication_file, secrets=self.lease, environ={**os.environ, **self.secrets}
        )
        holder = lock_holder(LakePaths.of(replication), self.locks)
        if not holder and self.lease and replication.target is not None:
            holder = describe_holder(replication.target, replication.name)
        if not holder and self.lo is not None:
            holder = find_blocking_reason(
                replication, int(self.lo), None if self.stop_ts is None else int(self.stop_ts)
            )
            if self.cause and _strip_positions(holder) != _strip_positions(self.cause):
                return ""
        return holder


def _strip_positions(reason: str) -> str:
    """A reason without its watermarks and times, which change while the cause stays; a pump's name is part of it."""
    return re.sub(r"(\S+ since )|\d+", r"\1", reason)
