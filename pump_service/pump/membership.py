"""A pump's registry entry with its score, and the handshake with consumers before the pump serves (S0-57).

Every write of the entry is guarded by the revision of the previous one, so a pump never overwrites the entry of another
pump that serves under its name. The protocols for registry and PD declare only what the pump needs. The score is 1 to
100: higher = more free capacity (S0-31); equal inputs give equal scores.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc
import structlog

from binlake import tso
from binlake.cluster.placement import NodeStatus, RegistryEntry
from binlake.cluster.placement.channel import open_channel
from binlake.errors import Fenced, Permanent, SourceUnavailable, Transient, WireError
from binlake.rpc import Tls
from binlake.wire.cistern_pb2 import NotifyReq, NotifyResp

log = structlog.get_logger()

_TRIES = 3  # tidb-binlog 2.11
_BUDGET_S = 10.0
_BACKOFF_S = 1.0  # doubled after each try
_RACES = 5
_SERVING = frozenset({"online", "pausing", "closing"})


class ClusterClock(tso.Clock, Protocol):
    """What a pump needs of PD: its clock, and the id of its cluster."""

    def fetch_cluster_id(self) -> int:
        """The id of the cluster. Raises SourceUnavailable."""

    def close(self) -> None:
        """Close the connections."""


class Members(Protocol):
    """The registry. Raises SourceUnavailable."""

    def list_pumps(self) -> Sequence[NodeStatus]:
        """Every registered pump."""

    def list_drainers(self) -> Sequence[NodeStatus]:
        """Every registered consumer."""

    def find_pump(self, node_id: str) -> RegistryEntry | None:
        """A pump's entry."""

    def write_pump(self, status: NodeStatus, revision: int) -> int:
        """Write a pump's entry over `revision` (0 = none yet); return the new revision, 0 if the entry was changed."""

    def set_drainer_state(self, node_id: str, state: str) -> NodeStatus:
        """Rewrite only the state in a consumer's entry; return the previous entry."""

    def pause_replication(self, node_id: str) -> NodeStatus:
        """Let no window of a replication start; return its previous entry. Raises Permanent if it is offline."""


class Claim(Protocol):
    """Exclusive use of the node id (binlake.cluster.placement.EtcdClaim). Raises SourceUnavailable."""

    def take(self) -> None:
        """Acquire it. Raises Permanent when another live process has it."""

    def renew(self) -> None:
        """Keep it. Raises Fenced when another process has taken it."""

    def release(self) -> None:
        """Release it."""


class Membership:
    """The registry entry of one pump. `claim`: exclusive use of its node id.

    `clock`: PD's time as far as it is known, also while PD does not answer. It becomes updateTS. The original's
    updateTS is a TSO from its start plus the time since (tidb-binlog 3.1), which falls behind a PD whose clock was
    moved forward.
    """

    def __init__(
        self,
        members: Members,
        node_id: str,
        host: str,
        clock: Callable[[], int],
        *,
        label: Mapping[str, str],
        score: Callable[[], int],
        claim: Claim | None = None,
    ) -> None:
        self._claim = claim
        self._members = members
        self._node_id = node_id
        self._host = host
        self._clock = clock
        self._label = dict(label) or None
        self._score = score
        self._revision = 0
        self._published = ""
        self._lost: Fenced | None = None
        self._lock = threading.Lock()

    def claim(self, node_at: Callable[[str], str]) -> str:
        """Take over the entry; return the state that the last run left, or `offline` when there is no entry.

        `node_at(host)` returns the node that serves at an address, and raises SourceUnavailable when none does. Raises
        Permanent when another live pump has this node id, or another node this address.
        """
        if self._claim is not None:
            self._claim.take()
        for other in self._list_neighbours():
            self._check_neighbour(other)
        entry = self._members.find_pump(self._node_id)
        if entry is None:
            return "offline"
        if entry.status.state in _SERVING and entry.status.host != self._host:
            self._require_rival_ended(entry.status, node_at)
        self._revision = entry.revision
        return entry.status.state

    def publish(self, state: str, max_commit_ts: int) -> str:
        """Write the entry, confirmed on return; return the state that it now has.

        That is `state`, or `offline` for a closing pump that was set offline by command. Raises Fenced when another
        pump took over the entry.
        """
        with self._lock:
            if self._lost is not None:
                raise self._lost
            self._renew()
            return self._write(state, max_commit_ts)

    def leave(self) -> None:
        """Release the node id; called after the last write."""
        if self._claim is not None:
            self._claim.release()

    def _renew(self) -> None:
        try:
            if self._claim is not None:
                self._claim.renew()
        except Fenced as error:
            self._lost = error
            raise

    def _write(self, state: str, max_commit_ts: int) -> str:
        status = NodeStatus(
            node_id=self._node_id,
            host=self._host,
            state=state,
            is_alive=False,  # the original writes false, and nobody reads it
            score=self._score(),
            label=self._label,
            max_commit_ts=max_commit_ts,
            update_ts=self._clock(),
        )
        for _ in range(_RACES):
            written = self._members.write_pump(status, self._revision)
            if written:
                self._revision, self._published = written, state
                return state
            if self._is_overruled(state):
                return "offline"
        raise Transient("other processes keep changing this pump's registry entry", where={"pump": self._node_id})

    def _is_overruled(self, state: str) -> bool:
        """Read the entry that another process wrote; True if a command has set this closing pump offline."""
        self._renew()  # the writer may be another process at the same address
        entry = self._members.find_pump(self._node_id)
        self._revision = entry.revision if entry else 0
        if entry is None:
            log.warning("registry_entry_deleted", pump=self._node_id)
            return False
        if entry.status.host != self._host:
            self._lost = Fenced(
                "another pump registered under this node id: this process must stop serving",
                where={"pump": self._node_id, "here": self._host, "there": entry.status.host},
                hint="two processes run with one node id; give each its own",
            )
            raise self._lost
        if entry.status.state not in (self._published, state):
            log.warning("state_changed_by_command", pump=self._node_id, to=entry.status.state, ours=state)
        return state == "closing" and entry.status.state == "offline"

    def _list_neighbours(self) -> list[NodeStatus]:
        try:
            return [
                pump for pump in self._members.list_pumps() if pump.node_id != self._node_id and pump.host == self._host
            ]
        except WireError as error:
            # Another node's entry is unreadable. Windows wait for that node, but this pump need not.
            log.error("registry_not_readable", error=str(error))
            return []

    def _check_neighbour(self, other: NodeStatus) -> None:
        if other.state in _SERVING:
            raise Permanent(
                "another node is registered at this address and is not known to have left",
                where={"addr": self._host, "node": other.node_id, "state": other.state},
                hint=f"start this pump with that node id and data directory, or, if that node is gone: "
                f"binlake update-pump --node-id {other.node_id} --state paused",
            )
        if other.state != "offline":
            log.warning("address_of_another_node", addr=self._host, node=other.node_id, state=other.state)

    def _require_rival_ended(self, rival: NodeStatus, node_at: Callable[[str], str]) -> None:
        try:
            serving_node = node_at(rival.host)
        except SourceUnavailable:
            log.warning("entry_taken_over", pump=self._node_id, last_addr=rival.host, last_state=rival.state)
            return
        if serving_node in ("", self._node_id):
            raise Permanent(
                "another pump serves under this node id",
                where={"pump": self._node_id, "there": rival.host, "here": self._host},
                hint="one process per node id: stop the other one, or choose another --node-id",
            )

    def notify_consumers(self, tls: Tls | None = None) -> None:
        """Tell each online consumer that this pump joins, by TLS if given: a cluster has it everywhere or nowhere.

        Raises SourceUnavailable when a consumer does not answer.
        """
        deadline = time.monotonic() + _BUDGET_S
        for drainer in self._members.list_drainers():
            if drainer.state == "online":
                _notify(drainer, deadline, tls)


def _notify(drainer: NodeStatus, deadline: float, tls: Tls | None) -> None:
    failure = "no time left"
    with open_channel(drainer.host, tls) as channel:
        call = channel.unary_unary("/binlog.Cistern/Notify", NotifyReq.SerializeToString, NotifyResp.FromString)
        for attempt in range(_TRIES):
            try:
                call(NotifyReq(), timeout=max(0.1, deadline - time.monotonic()))
            except grpc.RpcError as error:
                failure = f"{error.code().name} {error.details()}"
                log.warning("notify_failed", drainer=drainer.node_id, addr=drainer.host, error=failure)
                if attempt + 1 < _TRIES:
                    time.sleep(_BACKOFF_S * 2**attempt)
            else:
                return
    raise SourceUnavailable(
        "an online consumer did not confirm that it pulls from this pump",
        where={"drainer": drainer.node_id, "addr": drainer.host, "tries": _TRIES, "last": failure},
        hint="start it again, or set its state to paused or offline if it is gone",
    )


class Ticker:
    """Calls `action` every `interval_s` on a separate thread until stopped."""

    def __init__(self, name: str, interval_s: float, action: Callable[[], object]) -> None:
        self._interval_s = interval_s
        self._action = action
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start; the first call comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, after a running call has returned."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._action()


@dataclass(frozen=True)
class Weights:
    """How much each input counts; the unit is arbitrary, only the ratio matters."""

    load: float = 1.0
    disk: float = 1.0
    stored: float = 1.0


@dataclass(frozen=True)
class Usage:
    """Shares from 0 to 1: the machine's load, the used part of its disk, and the part used by this pump's binlogs."""

    load: float
    disk: float
    stored: float


def compute_score(usage: Usage, weights: Weights) -> int:
    """100 for an idle pump on an empty disk; never 0, which means "no score" to a writer."""
    parts = (
        (usage.load, weights.load),
        (usage.disk, weights.disk),
        (usage.stored, weights.stored),
    )
    total = sum(weight for _, weight in parts)
    used = sum(min(1.0, max(0.0, share)) * weight for share, weight in parts) / total if total else 0.0
    return max(1, round(100 * (1 - used)))


def measure_usage(data_dir: Path) -> Usage:
    """The present usage of this machine. Raises OSError."""
    stat = os.statvfs(data_dir)
    capacity = max(1, stat.f_blocks)
    stored = sum(entry.stat().st_blocks * 512 for entry in os.scandir(data_dir / "value"))
    return Usage(
        load=os.getloadavg()[0] / (os.cpu_count() or 1),
        disk=1 - stat.f_bavail / capacity,
        stored=stored / (capacity * stat.f_frsize),
    )
