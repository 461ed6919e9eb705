"""Renews a lease from a thread with a session of its own, so that a long statement does not let it run out (R-29)."""

from __future__ import annotations

import threading
from typing import Any

import structlog
from pymysql.connections import Connection

from binlake.downstream.connection import close, connect
from binlake.downstream.fence import Fence
from binlake.errors import BinlakeError

_log = structlog.get_logger(__name__)


class LeaseKeeper:
    """Renews every third of `target.lease_s` between `start` and `stop`.

    `lost` is set when another process has the lease. A renewal that fails is tried again with a new session: the
    fence, not the lease, keeps writes apart.
    """

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._ended = threading.Event()
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"lease-{fence.task}", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; waits for a renewal that is under way."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=self._fence.target.connect_timeout_s)

    def _run(self) -> None:
        connection: Connection[Any] | None = None
        while not self._ended.wait(self._fence.target.lease_s / 3) and not self.lost.is_set():
            try:
                connection = connection or connect(self._fence.target)
                if not self._fence.renew(connection):
                    self.lost.set()
            except BinlakeError as error:
                _log.warning("lease_not_renewed", task=self._fence.task, error=str(error))
                connection = _dropped(connection)
        _dropped(connection)


def _dropped(connection: Connection[Any] | None) -> None:
    if connection is not None:
        close(connection)
