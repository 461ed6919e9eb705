"""Which pump gets a prewrite: pure choices over the pumps that are usable now (tidb-binlog 4, MISSION S0-41 to S0-45).

`range` takes them in turn, `hash` by start_ts, `score` in proportion to the scores that the pumps publish. A label
narrows the pumps before any of them.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import structlog

log = structlog.get_logger()


class Candidate(Protocol):
    """The facts about a pump that a choice uses."""

    @property
    def node_id(self) -> str:
        """Name of the pump."""

    @property
    def score(self) -> int:
        """The pump's published capacity, relative to others; 0 = none published."""


class Strategy(Protocol):
    """Thread-safe. `pick` is asked once a try."""

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """The index of the pump for try `tries` (from 0) of the prewrite `start_ts`; `failed`: tried in this round.

        `pumps` is not empty and sorted by node id.
        """


def pick_by_turn(offset: int, count: int) -> int:
    """`range`: the pump at a running offset."""
    return offset % count


def pick_by_hash(start_ts: int, tries: int, count: int) -> int:
    """`hash`: a start_ts has its pump; each retry goes one further."""
    return (start_ts + tries) % count


def compute_weights(scores: Sequence[int]) -> list[int]:
    """A weight for each score: a pump that publishes none (0) counts as the average of those that do.

    So pumps without scores get equal shares, and an original pump among Binlake's is not starved.
    """
    published = [score for score in scores if score > 0]
    average = max(1, round(sum(published) / len(published))) if published else 1
    return [score if score > 0 else average for score in scores]


def pick_by_weight(weight: Mapping[str, int], credit: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """Smooth weighted round robin: the chosen name and the credit to pass to the next call.

    Everyone earns its weight, the richest is chosen and pays the sum: over any sum(weight) choices each comes
    `weight` times, spread evenly.
    """
    earned = {name: credit.get(name, 0) + share for name, share in weight.items()}
    chosen = max(sorted(earned), key=earned.__getitem__)
    earned[chosen] -= sum(weight.values())
    return chosen, earned


def matches_label(label: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether a pump with `label` belongs to writers that want `wanted`: it has each pair."""
    return all(label.get(name) == value for name, value in wanted.items())


class Range:
    """Round robin; the offset runs on over calls and retries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offset = 0

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """The next one."""
        del start_ts, tries, failed
        with self._lock:
            self._offset += 1
            return pick_by_turn(self._offset - 1, len(pumps))


class Hash:
    """By start_ts."""

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """(start_ts + tries) mod n."""
        del failed
        return pick_by_hash(start_ts, tries, len(pumps))


class Score:
    """In proportion to the scores of now; a retry goes to the others first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._credit: dict[str, int] = {}

    def pick(self, pumps: Sequence[Candidate], start_ts: int, tries: int, failed: Collection[str]) -> int:
        """The one with the most credit."""
        del start_ts, tries
        left = [n for n, pump in enumerate(pumps) if pump.node_id not in failed] or range(len(pumps))
        shares = compute_weights([pumps[n].score for n in left])
        with self._lock:
            # A pump that is not in this choice keeps its credit: it only misses this turn.
            chosen, credit = pick_by_weight(
                {pumps[n].node_id: w for n, w in zip(left, shares, strict=True)}, self._credit
            )
            known = {pump.node_id for pump in pumps}
            self._credit = {name: value for name, value in (self._credit | credit).items() if name in known}
        return next(n for n in left if pumps[n].node_id == chosen)


_STRATEGIES: dict[str, type[Strategy]] = {"range": Range, "hash": Hash, "score": Score}


def strategy_of(name: str) -> Strategy:
    """The strategy `name`; `range`, with a warning, for an unknown name (as the original does)."""
    if name not in _STRATEGIES:
        log.warning("unknown_pump_strategy", strategy=name, used="range")
    return _STRATEGIES.get(name, Range)()
