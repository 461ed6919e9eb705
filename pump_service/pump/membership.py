"""How a pump is known to others: its registry entry, and the handshake with consumers before it serves (S0-57).

The registry's and PD's clients are known here only by what the pump asks of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc
import structlog

from binlake import tso
from binlake.errors import SourceUnavailable
from binlake.placement import NodeStatus
from binlake.wire.cistern_pb2 import NotifyReq, NotifyResp

log = structlog.get_logger()

_TRIES = 3  # tidb-binlog 2.11
_BUDGET_S = 10.0
_BACKOFF_S = 1.0  # doubled after each try


class Oracle(Protocol):
    """PD: the cluster's id and its timestamps. Raises SourceUnavailable."""

    def cluster_id(self) -> int:
        """The id of the cluster."""

    def tso(self, count: int = 1) -> int:
        """A fresh timestamp."""

    def close(self) -> None:
        """Close the connections."""


class Members(Protocol):
    """The registry. Raises SourceUnavailable."""

    def pumps(self) -> Sequence[NodeStatus]:
        """Every registered pump."""

    def drainers(self) -> Sequence[NodeStatus]:
        """Every registered consumer."""

    def put_pump(self, status: NodeStatus) -> None:
        """Create or replace a pump's entry; returns after the write is confirmed."""


class Membership:
    """One pump's entry. `started_ts`: TSO of the start; updateTS = started_ts + wall time since (tidb-binlog 3.1)."""

    def __init__(self, members: Members, node_id: str, host: str, started_ts: int) -> None:
        self._members = members
        self._node_id = node_id
        self._host = host
        self._started_ts = started_ts
        self._started = time.monotonic()

    def previous_state(self) -> str:
        """The state the last run left; `offline` when there is no entry."""
        found = [pump.state for pump in self._members.pumps() if pump.node_id == self._node_id]
        return found[0] if found else "offline"

    def publish(self, state: str, max_commit_ts: int) -> None:
        """Write the entry; confirmed when it returns."""
        elapsed_ms = int((time.monotonic() - self._started) * 1000)
        self._members.put_pump(
            NodeStatus(
                node_id=self._node_id,
                host=self._host,
                state=state,
                is_alive=False,  # written and never relied on
                score=0,
                label=None,
                max_commit_ts=max_commit_ts,
                update_ts=self._started_ts + tso.compose(elapsed_ms),
            )
        )

    def notify_consumers(self) -> None:
        """Tell each online consumer that this pump joins. Raises SourceUnavailable when one does not answer."""
        deadline = time.monotonic() + _BUDGET_S
        for drainer in self._members.drainers():
            if drainer.state == "online":
                _notify(drainer, deadline)


def _notify(drainer: NodeStatus, deadline: float) -> None:
    failure = "no time left"
    with grpc.insecure_channel(drainer.host) as channel:
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
        "an online consumer did not answer that it takes this pump",
        where={"drainer": drainer.node_id, "addr": drainer.host, "tries": _TRIES, "last": failure},
        hint="bring it back, or set its state to paused or offline if it is gone",
    )


class Ticker:
    """Calls `action` every `interval_s` on a thread of its own, until it is stopped."""

    def __init__(self, name: str, interval_s: float, action: Callable[[], None]) -> None:
        self._interval_s = interval_s
        self._action = action
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; the first call comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """End after the call that may be running."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._action()
