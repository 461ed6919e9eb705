"""A process asked to stop lets started statements end, for a limited time; then they are killed (S4-35, hazards R-60).

A statement may wait for a lock, or alter a table, for longer than the requester waits. Killed, its transaction
rolls back at the server at once, and no session with an open transaction outlives the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import structlog

from binlake.config.model import Target
from binlake.errors import BinlakeError
from binlake.target.claim.fence import kill_session
from binlake.target.session.session import Session
from binlake.target.session.stopping import StopFlag

log = structlog.get_logger()

_LOOK_S = 0.2


class Grace:
    """Watches `stop` while the context is open; kills the sessions of `connections` (ids) when their time is over."""

    def __init__(self, target: Target, stop: StopFlag, connections: Callable[[], list[int]]) -> None:
        self._target = target
        self._stop = stop
        self._connections = connections
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="grace", daemon=True)

    def __enter__(self) -> Grace:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._target.connect_timeout_s)

    def _run(self) -> None:
        # Looks instead of being told: a signal handler must not touch the locks that a start of threads takes.
        while not self._ended.wait(_LOOK_S):
            if self._stop.is_set():
                if not self._ended.wait(self._target.graceful_stop_timeout_s):
                    self._kill()
                return

    def _kill(self) -> None:
        log.warning("statements_killed", after_s=self._target.graceful_stop_timeout_s)
        try:
            with closing(Session(self._target)) as session:
                for connection in self._connections():
                    kill_session(session, connection)
        except BinlakeError as error:
            log.warning("statements_not_killed", error=str(error))
