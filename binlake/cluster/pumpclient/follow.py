"""Follows the registry: one listing before the first write, then every change as it happens (MISSION S0-27, S0-36).

While the registry is unavailable the known pumps stay in use.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Protocol

import structlog

from binlake.cluster.node import NodeStatus
from binlake.cluster.pumpclient.pumps import Pumps
from binlake.errors import BinlakeError

log = structlog.get_logger()

_RETRY_S = 1.0


class PumpWatch(Protocol):
    """A listing of pumps, and the changes after it."""

    @property
    def pumps(self) -> Sequence[NodeStatus]:
        """Every pump at the time of the listing."""

    def __iter__(self) -> Iterator[tuple[str, NodeStatus | None]]:
        """(node id, its entry or None if it was deleted), until `close`. Raises BinlakeError."""

    def close(self) -> None:
        """End the watch, from any thread."""


class PumpList(Protocol):
    """The interface that lists pumps: the registry's."""

    def watch_pumps(self) -> PumpWatch:
        """List and watch. Raises BinlakeError."""


class PumpListFollower:
    """Keeps `pumps` up to date from `start` to `stop`."""

    def __init__(self, registry: PumpList, pumps: Pumps) -> None:
        self._registry = registry
        self._pumps = pumps
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._watch: PumpWatch | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """List, then follow in a thread; does nothing if it already runs. Raises what the registry raises."""
        if self._thread is not None:
            return
        with self._lock:
            if self._thread is None and not self._stopped.is_set():
                self._list()
                self._thread = threading.Thread(target=self._run, name="pumpclient-list", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        with self._lock:
            watch, thread = self._watch, self._thread
        if watch is not None:
            watch.close()
        if thread is not None:
            thread.join()

    def _list(self) -> PumpWatch:
        self._watch = self._registry.watch_pumps()
        self._pumps.replace(self._watch.pumps)
        return self._watch

    def _run(self) -> None:
        watch = self._watch
        while not self._stopped.is_set():
            try:
                with closing(watch or self._list()) as watch:
                    if self._stopped.is_set():
                        return
                    for node_id, status in watch:
                        self._pumps.put(node_id, status)
            except BinlakeError as error:
                log.warning("pumps_not_listed", error=str(error))
            watch = None
            self._stopped.wait(_RETRY_S)
