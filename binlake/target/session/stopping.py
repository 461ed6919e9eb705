"""Stops a process's work on a target: SIGTERM requests it, and slow statements are killed (S4-35, R-60).

Between two batches the transaction is rolled back and the lease released. A statement may wait for a lock, or alter a
table, for longer than the requester waits. If it is killed, the server rolls its transaction back at once, and no
session with an open transaction outlives the process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import closing
from types import FrameType

import structlog

from binlake.config.servers import TargetSection
from binlake.errors import BinlakeError, Transient
from binlake.target.session.session import TargetSession

log = structlog.get_logger()

_LOOK_S = 0.2


class StopFlag:
    """Set by SIGTERM while the context is open (in a main thread), or by `set` from anywhere."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self._installed = False
        self._before: object = None

    def __enter__(self) -> StopFlag:
        # Python accepts signal handlers only in the main thread.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_signal)
            self._installed = True
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)  # type: ignore[arg-type]
            self._installed = False

    def set(self) -> None:
        """Ask to stop."""
        self._asked.set()

    def is_set(self) -> bool:
        """Whether a stop was requested."""
        return self._asked.is_set()

    def check(self) -> None:
        """Raises Transient when a stop was requested."""
        if self._asked.is_set():
            raise Transient(
                "stopped on request: the open transaction is rolled back",
                hint="run finalize again, it continues from the checkpoint",
            )

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._asked.set()


class StatementKiller:
    """Watches `stop` while the context is open. After the grace time it kills the sessions of `connections` (ids)."""

    def __init__(self, target: TargetSection, stop: StopFlag, connections: Callable[[], list[int]]) -> None:
        self._target = target
        self._stop = stop
        self._connections = connections
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="statement-killer", daemon=True)

    def __enter__(self) -> StatementKiller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=self._target.connect_timeout_s)

    def _run(self) -> None:
        # Poll instead of being notified: a signal handler must not take the locks that starting threads uses.
        while not self._ended.wait(_LOOK_S):
            if self._stop.is_set():
                if not self._ended.wait(self._target.graceful_stop_timeout_s):
                    self._kill()
                return

    def _kill(self) -> None:
        log.warning("statements_killed", after_s=self._target.graceful_stop_timeout_s)
        try:
            with closing(TargetSession(self._target)) as session:
                for connection in self._connections():
                    session.kill(connection)
        except BinlakeError as error:
            log.warning("statements_not_killed", error=str(error))
