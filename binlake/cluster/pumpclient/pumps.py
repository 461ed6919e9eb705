"""The pumps that the client knows, with their state: online, avoided, added or removed.

A pump that is not online accepts no prewrites. A pump that failed more than ten writes in a row is avoided until a
probe, or a write in the last round, succeeds (tidb-binlog 4). For commits and rollbacks any pump is found by its node
id, whatever its state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from binlake.cluster.node import NodeStatus
from binlake.cluster.pumpclient.strategy import matches_label
from binlake.cluster.pumpclient.transport import Connect, PumpConnection

MAX_ERRORS = 10
ONLINE = "online"


@dataclass
class PumpState:
    """One pump; `errors`: failed writes in a row. Fields change under the lock of `Pumps`."""

    node_id: str
    host: str
    connection: PumpConnection
    state: str = ONLINE
    score: int = 0
    label: Mapping[str, Any] = field(default_factory=dict)
    errors: int = 0

    @property
    def usable(self) -> bool:
        """Whether the pump may get prewrites."""
        return self.state == ONLINE and self.errors <= MAX_ERRORS

    @property
    def is_avoided(self) -> bool:
        """Whether the pump is online but has failed too often."""
        return self.state == ONLINE and self.errors > MAX_ERRORS


class Pumps:
    """All known pumps; thread-safe. `label`: only pumps with all of its pairs get prewrites."""

    def __init__(self, connect: Connect, label: Mapping[str, str], label_fallback: bool) -> None:
        self._connect = connect
        self._label = label
        self._label_fallback = label_fallback
        self._lock = threading.Lock()
        self._known: dict[str, PumpState] = {}
        self._stale: list[PumpConnection] = []

    def replace(self, listed: Iterable[NodeStatus]) -> None:
        """Replace all entries by a listing; pumps that are not in it are removed."""
        statuses = {status.node_id: status for status in listed}
        for node_id in self.list_node_ids() - statuses.keys():
            self.put(node_id, None)
        for node_id, status in statuses.items():
            self.put(node_id, status)

    def put(self, node_id: str, status: NodeStatus | None) -> None:
        """Update one entry from the registry; None = it was deleted."""
        with self._lock:
            known = self._known.get(node_id)
            if status is None or (known is not None and known.host != status.host):
                self._remove(node_id)
                known = None
            if status is None:
                return
            if known is None:
                known = self._known[node_id] = PumpState(node_id, status.host, self._connect(status.host), status.state)
            elif known.state != status.state:
                known.errors = 0  # its state has changed, so earlier refusals no longer count
            known.state, known.score, known.label = status.state, status.score, status.label or {}

    def list_node_ids(self) -> set[str]:
        """The node ids of all known pumps."""
        with self._lock:
            return set(self._known)

    def find(self, node_id: str) -> PumpState | None:
        """The pump with that node id, in any state; None if it is not registered."""
        with self._lock:
            return self._known.get(node_id)

    def list_usable(self) -> Sequence[PumpState]:
        """Pumps that may get a prewrite now, by node id; with `label_fallback`, any pump if none has the label."""
        return self._select_by_label([pump for pump in self._list_sorted() if pump.usable])

    def list_online(self) -> Sequence[PumpState]:
        """Pumps that could get a prewrite, including avoided ones, by node id."""
        return self._select_by_label([pump for pump in self._list_sorted() if pump.state == ONLINE])

    def list_avoided(self) -> Sequence[PumpState]:
        """Online pumps that have failed too often."""
        return [pump for pump in self._list_sorted() if pump.is_avoided]

    def record_success(self, pump: PumpState) -> None:
        """Record that a write or a probe reached `pump`."""
        with self._lock:
            pump.errors = 0

    def record_failure(self, pump: PumpState) -> bool:
        """Record that a write to `pump` failed; True if the pump is avoided from now on."""
        with self._lock:
            pump.errors += 1
            return pump.errors == MAX_ERRORS + 1

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            connections = [*(pump.connection for pump in self._known.values()), *self._stale]
            self._known, self._stale = {}, []
        for connection in connections:
            connection.close()

    def _list_sorted(self) -> list[PumpState]:
        with self._lock:
            return [self._known[node_id] for node_id in sorted(self._known)]

    def _select_by_label(self, pumps: list[PumpState]) -> list[PumpState]:
        matching = [pump for pump in pumps if matches_label(pump.label, self._label)]
        return matching or (pumps if self._label_fallback else [])

    def _remove(self, node_id: str) -> None:
        # The connection is not closed here: another thread may be using it.
        removed = self._known.pop(node_id, None)
        if removed is not None:
            self._stale.append(removed.connection)
