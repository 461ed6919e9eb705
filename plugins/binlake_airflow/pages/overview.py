"""The state of all replications: a lake that fails or hangs hides no other, and is not asked again for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from binlake.config import Replication
from binlake.errors import BinlakeError
from binlake_airflow.pages.workers import BoundedWorkers, TooBusy

log = structlog.get_logger(__name__)

LAKE_S = 4.0
"""Seconds that one lake has to answer."""
REST_S = 15.0
"""Seconds for which the list does not ask a lake again that did not answer."""
_NO_ANSWER = f"its lake did not answer within {LAKE_S:g} s"


class Overview:
    """The list of replications; remembers which lakes did not answer."""

    def __init__(self, bounded: BoundedWorkers, lake_s: float = LAKE_S, rest_s: float = REST_S) -> None:
        self._bounded = bounded
        self._lake_s, self._rest_s = lake_s, rest_s
        self._silent: dict[str, float] = {}

    async def read_all(
        self, replications: Sequence[Replication], read: Callable[[Replication], dict[str, Any]]
    ) -> dict[str, Any]:
        """What `read` returns for each replication, in their order; a row with `problem` if it did not answer."""
        rows = await asyncio.gather(*(self._read_row(replication, read) for replication in replications))
        return {"replications": list(rows)}

    async def _read_row(
        self, replication: Replication, read: Callable[[Replication], dict[str, Any]]
    ) -> dict[str, Any]:
        if time.monotonic() < self._silent.get(replication.name, 0.0):
            return _build_problem_row(replication, _NO_ANSWER)
        try:
            return await self._bounded.run(lambda: read(replication), replication.name, self._lake_s)
        except (TimeoutError, TooBusy):
            self._silent[replication.name] = time.monotonic() + self._rest_s
            return _build_problem_row(replication, _NO_ANSWER)
        except BinlakeError as error:
            return _build_problem_row(replication, error.message)
        except Exception:
            log.exception("lake_not_readable", replication=replication.name)
            return _build_problem_row(replication, "its lake cannot be read: see the API server's log")


def _build_problem_row(replication: Replication, text: str) -> dict[str, Any]:
    return {"name": replication.name, "problem": text}
