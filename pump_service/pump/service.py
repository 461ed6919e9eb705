"""What the pump answers, apart from any transport (tidb-binlog 2.8, 2.9): a transport only carries bytes and errors.

P is accepted only while the state is online, which the server sets after the registration is confirmed (S0-57); C and R
are accepted in any state. Nothing but fakes is stored when the disk is nearly full.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from enum import StrEnum

from binlake.errors import ConfigError, Transient
from binlake.wire.admin_pb2 import InfoResp
from binlake.wire.binlog_pb2 import Prewrite
from pump_service.pump.pull import Transaction, pull
from pump_service.pump.storage import Storage, parse


class State(StrEnum):
    """States of the registry (tidb-binlog 3.2); STARTING is ours and never written there."""

    STARTING = "starting"
    ONLINE = "online"
    PAUSING = "pausing"
    PAUSED = "paused"
    CLOSING = "closing"
    OFFLINE = "offline"


class Problems:
    """What stands in the way now, by topic; thread-safe. `str()` is the line that Info shows, empty = nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_topic: dict[str, str] = {}

    def set(self, topic: str, text: str) -> None:
        """Say what is wrong with `topic`; an empty text says it is well again."""
        with self._lock:
            self._by_topic.pop(topic, None)
            if text:
                self._by_topic[topic] = text

    def __str__(self) -> str:
        with self._lock:
            return "; ".join(f"{topic}: {text}" for topic, text in self._by_topic.items())


class PumpService:
    """WriteBinlog, PullBinlogs and Info over a Storage. `free_bytes_needed`: the guard of 2.8."""

    def __init__(self, storage: Storage, cluster_id: int, *, free_bytes_needed: int) -> None:
        self._storage = storage
        self._cluster_id = cluster_id
        self._free_bytes_needed = free_bytes_needed
        self.node_id = ""
        self.state = State.STARTING
        self.problems = Problems()
        self.status_queries: Callable[[], int] = int
        self._serving = True

    def write(self, cluster_id: int, payload: bytes) -> Future[None] | None:
        """Store a binlog; wait for the future, if there is one, before the answer.

        Raises ConfigError for another cluster, Transient when the state, the disk or the load forbids it, WireError for
        bytes that are no binlog.
        """
        self._check_cluster(cluster_id)
        if self.state is not State.ONLINE and (not payload or parse(payload).tp == Prewrite):
            raise Transient(f"the pump is {self.state}: it takes no prewrite", where={"pump": self.node_id})
        if self.disk_full():
            raise Transient("no space left for binlogs (stop-write-at-available-space)", where={"pump": self.node_id})
        return self._storage.append(payload) if payload else None

    def pull(self, cluster_id: int, after_ts: int, alive: Callable[[], bool]) -> Iterator[Transaction]:
        """Transactions after `after_ts`, until not `alive()` or the pump stops. Raises as pull(), and ConfigError."""
        self._check_cluster(cluster_id)
        if after_ts < 0:
            raise ConfigError("startFrom.offset is negative", where={"offset": after_ts})
        return pull(self._storage, after_ts, lambda: not (self._serving and alive()))

    def wake(self) -> None:
        """Let the pull streams look whether their caller is still there."""
        self._storage.wake()

    def end_pulls(self) -> None:
        """End every pull stream."""
        self._serving = False
        self._storage.wake()

    @property
    def serving(self) -> bool:
        """False once pulls were told to end."""
        return self._serving

    def disk_full(self) -> bool:
        """Whether only fakes may be stored now; remembers it as a problem."""
        available = self._storage.directory.available_bytes()
        full = available <= self._free_bytes_needed
        text = f"{available} bytes available, {self._free_bytes_needed} needed: no writes are taken" if full else ""
        self.problems.set("disk", text)
        return full

    def info(self) -> InfoResp:
        """Who this pump is and how far it is complete."""
        self.problems.set("storage", self._storage.error)
        count, oldest = self._storage.unmatched()
        counters = self._storage.counters
        return InfoResp(
            cluster_id=self._cluster_id,
            node_id=self.node_id,
            store_uuid=self._storage.directory.store_uuid,
            state=self.state.value,
            max_commit_ts=self._storage.watermark,
            gc_ts=self._storage.index.gc_ts,
            unmatched_prewrites=count,
            oldest_unmatched_start_ts=oldest,
            last_error=str(self.problems),
            late_commits=counters.late_commits,
            early_commits=counters.early_commits,
            status_queries=self.status_queries(),
        )

    def _check_cluster(self, cluster_id: int) -> None:
        if cluster_id != self._cluster_id:
            raise ConfigError(
                f"mismatched cluster id: the call has {cluster_id}, this pump belongs to {self._cluster_id}",
                where={"pump": self.node_id},
            )
