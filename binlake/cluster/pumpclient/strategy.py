"""Chooses the pump for a prewrite among the pumps that are usable now (tidb-binlog 4, MISSION S0-41 to S0-45).

`range` takes pumps in turn, `hash` chooses by start_ts, `score` in proportion to the scores that pumps publish. A label
limits the pumps before the strategy is applied.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import structlog

log = structlog.get_logger()


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
