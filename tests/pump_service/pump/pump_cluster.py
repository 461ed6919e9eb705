"""An in-memory cluster for faults that a real PD cannot be asked to have: outages, delays, clock steps, other ids."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

from binlake import tso
from binlake.errors import SourceUnavailable
from binlake.placement import NodeStatus

CLUSTER_ID = 7710533641674055416


@dataclass
class MemoryCluster:
    """Oracle and registry in one. `down`: nothing answers; `delay_s`: how long a registry write takes."""

    id: int = CLUSTER_ID
    down: bool = False
    delay_s: float = 0.0
    clock_ms: int = 0
    nodes: dict[str, NodeStatus] = field(default_factory=dict)
    consumers: list[NodeStatus] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    _last: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cluster_id(self) -> int:
        self._check()
        return self.id

    def tso(self, count: int = 1) -> int:
        self._check()
        with self._lock:
            now = tso.compose(self.clock_ms or int(time.time() * 1000))
            self._last = max(self._last, now) + count
            return self._last

    def pumps(self) -> list[NodeStatus]:
        self._check()
        return list(self.nodes.values())

    def drainers(self) -> list[NodeStatus]:
        self._check()
        return self.consumers

    def put_pump(self, status: NodeStatus) -> None:
        time.sleep(self.delay_s)
        self._check()
        self.nodes[status.node_id] = status
        self.history.append(status.state)

    def close(self) -> None:
        """Nothing is open."""

    def _check(self) -> None:
        if self.down:
            raise SourceUnavailable("PD does not answer", where={"urls": "memory"})
