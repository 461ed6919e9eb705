"""The pumps that the client knows, and the choice of one for a prewrite (tidb-binlog 4, MISSION S0-41 to S0-45).

They follow the registry: one listing before the first write, then every change as it happens (MISSION S0-27, S0-36).
While the registry is unavailable the known pumps stay in use. A pump that is not online accepts no prewrites. A pump
that failed more than ten writes in a row is avoided until a probe, or a write in the last round, succeeds. For commits
and rollbacks any pump is found by its node id, whatever its state.

Strategies: `range` takes pumps in turn, `hash` chooses by start_ts, `score` in proportion to the scores that pumps
publish. A label limits the pumps before the strategy is applied.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from binlake.cluster.node import NodeStatus
from binlake.cluster.pumpclient.transport import Connect, PumpConnection
from binlake.errors import BinlakeError

log = structlog.get_logger()

MAX_ERRORS = 10
ONLINE = "online"
_RETRY_S = 1.0


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


class Candidate(Protocol):
    """The facts about a pump that a strategy uses."""

    @property
    def node_id(self) -> str:
        """The pump's node id."""

    @property
    def score(self) -> int:
        """The capacity that the pump publishes, relative to other pumps; 0 = none published."""


class Strategy(Protocol):
    """Thread-safe. `pick` is called once per try."""

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """The index of the pump for try `tries` (from 0) of the prewrite `start_ts`; `failed`: tried in this round.

        `pumps` is not empty and sorted by node id.
        """


def pick_by_turn(offset: int, count: int) -> int:
    """`range`: the pump at an offset that increases with each choice."""
    return offset % count


def pick_by_hash(start_ts: int, tries: int, count: int) -> int:
    """`hash`: the start_ts determines the pump; each retry takes the next pump."""
    return (start_ts + tries) % count


def compute_weights(scores: Sequence[int]) -> list[int]:
    """A weight for each score: a pump that publishes none (0) gets the average of those that do.

    So pumps without scores get equal shares, and an original pump among Binlake's still gets prewrites.
    """
    published = [score for score in scores if score > 0]
    average = max(1, round(sum(published) / len(published))) if published else 1
    return [score if score > 0 else average for score in scores]


def pick_by_weight(weight: Mapping[str, int], credit: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """Smooth weighted round robin: the chosen name, and the credit to pass to the next call.

    Each pump earns its weight; the one with the highest credit is chosen and pays the sum of all weights. Over any
    sum(weight) choices each pump is chosen `weight` times, evenly spread.
    """
    earned = {name: credit.get(name, 0) + share for name, share in weight.items()}
    chosen = max(sorted(earned), key=earned.__getitem__)
    earned[chosen] -= sum(weight.values())
    return chosen, earned


def matches_label(label: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether a pump with `label` has each pair of `wanted`."""
    return all(label.get(name) == value for name, value in wanted.items())


class RoundRobin:
    """Round robin; the offset increases with each call and retry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset = 0

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """The next pump."""
        del start_ts, tries, failed
        with self._lock:
            self._offset += 1
            return pick_by_turn(self._offset - 1, len(pumps))


class Hash:
    """The start_ts determines the pump."""

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """(start_ts + tries) mod n."""
        del failed
        return pick_by_hash(start_ts, tries, len(pumps))


class Score:
    """In proportion to the current scores; a retry first goes to pumps that have not failed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._credit: dict[str, int] = {}

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """The pump with the highest credit."""
        del start_ts, tries
        left = [n for n, pump in enumerate(pumps) if pump.node_id not in failed] or range(len(pumps))
        shares = compute_weights([pumps[n].score for n in left])
        with self._lock:
            # A pump that cannot be chosen now keeps its credit: it only misses this turn.
            chosen, credit = pick_by_weight(
                {pumps[n].node_id: w for n, w in zip(left, shares, strict=True)}, self._credit
            )
            known = {pump.node_id for pump in pumps}
            self._credit = {name: value for name, value in (self._credit | credit).items() if name in known}
        return next(n for n in left if pumps[n].node_id == chosen)


_STRATEGIES: dict[str, type[Strategy]] = {"range": RoundRobin, "hash": Hash, "score": Score}


def build_strategy(name: str) -> Strategy:
    """The strategy `name`; `range`, with a warning, for an unknown name (as the original does)."""
    if name not in _STRATEGIES:
        log.warning("unknown_pump_strategy", strategy=name, used="range")
    return _STRATEGIES.get(name, RoundRobin)()
