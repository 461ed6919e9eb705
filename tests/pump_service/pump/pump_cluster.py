"""An in-memory cluster for faults that a real PD cannot produce on demand: outages, delays, clock steps, other ids."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from binlake import tso
from binlake.cluster.placement import NodeStatus, RegistryEntry
from binlake.errors import SourceUnavailable

CLUSTER_ID = 7710533641674055416


@dataclass
class MemoryCluster:
    """Oracle and registry in one. `down`: nothing answers; `confirms`: registry writes are answered once it is set."""

    id: int = CLUSTER_ID
    down: bool = False
    clock_ms: int = 0
    nodes: dict[str, NodeStatus] = field(default_factory=dict)
    consumers: list[NodeStatus] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    revision: int = 0
    _revisions: dict[str, int] = field(default_factory=dict)
    _last: int = 0
    confirms: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.confirms.set()

    def fetch_cluster_id(self) -> int:
        self._check()
        return self.id

    def fetch_ts(self, count: int = 1) -> int:
        self._check()
        with self._lock:
            now = tso.compose(self.clock_ms or int(time.time() * 1000))
            self._last = max(self._last, now) + count
            return self._last

    def list_pumps(self) -> list[NodeStatus]:
        self._check()
        return list(self.nodes.values())

    def list_drainers(self) -> list[NodeStatus]:
        self._check()
        return self.consumers

    def find_pump(self, node_id: str) -> RegistryEntry | None:
        self._check()
        with self._lock:
            node = self.nodes.get(node_id)
            return None if node is None else RegistryEntry(node, self._revisions.setdefault(node_id, 1))

    def write_pump(self, status: NodeStatus, revision: int) -> int:
        assert self.confirms.wait(300)
        self._check()
        with self._lock:
            known = self._revisions.setdefault(status.node_id, 1) if status.node_id in self.nodes else 0
            return self._put(status) if known == revision else 0

    def command(self, status: NodeStatus) -> None:
        """Write an entry as an operator or another process would, whatever the present entry is."""
        with self._lock:
            self._put(status)

    def _put(self, status: NodeStatus) -> int:
        self.revision += 2
        self.nodes[status.node_id] = status
        self._revisions[status.node_id] = self.revision
        if not self.history or self.history[-1] != status.state:
            self.history.append(status.state)
        return self.revision

    def close(self) -> None:
        """Nothing to close."""

    def _check(self) -> None:
        if self.down:
            raise SourceUnavailable("PD does not answer", where={"urls": "memory"})
