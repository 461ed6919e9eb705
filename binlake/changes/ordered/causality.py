"""Decide which changes may run in parallel: by DM's groups of linked keys, or by the drainer's flush on any known key.

Sources: data-migration 1.4, 6.4 (causality.go), tidb-binlog 5.10; S0-68, S0-69, S4-13 to S4-16, hazards R-36. DM keeps
its keys in generations, because its workers continue during a flush. Here a flush is a barrier of the plan, so it
removes all earlier keys at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Strategy = Literal["causality", "flush"]


@dataclass(frozen=True)
class GroupDecision:
    """`flush`: all changes dispatched before must be applied first. `group`: the changes of a group keep their
    order."""

    flush: bool
    group: Hashable


class Detector(Protocol):
    """Decides for one change after another, in commit order."""

    def add(self, keys: Sequence[Hashable]) -> GroupDecision:
        """The decision for a change with `keys` (at least one); from now on these keys are in flight."""

    def clear(self) -> None:
        """Forget all keys, because all added changes are applied."""


class Causality:
    """DM's rule: keys that occur in one change form a group; a change whose keys are in two groups causes a flush.

    `groups`: key -> the key that represents its group.
    """

    def __init__(self) -> None:
        self.groups: dict[Hashable, Hashable] = {}

    def add(self, keys: Sequence[Hashable]) -> GroupDecision:
        """See Detector."""
        known = [self.groups[key] for key in keys if key in self.groups]
        flush = len(set(known)) > 1
        if flush:
            self.clear()
            known = []
        group = known[-1] if known else keys[0]
        self.groups.update(dict.fromkeys(keys, group))
        return GroupDecision(flush, group)

    def clear(self) -> None:
        """See Detector."""
        self.groups.clear()


class FlushAll:
    """The drainer's rule: a change that touches any key in flight waits until all earlier changes are applied."""

    def __init__(self) -> None:
        self.keys: set[Hashable] = set()

    def add(self, keys: Sequence[Hashable]) -> GroupDecision:
        """See Detector."""
        flush = not self.keys.isdisjoint(keys)
        if flush:
            self.clear()
        self.keys.update(keys)
        return GroupDecision(flush, keys[0])

    def clear(self) -> None:
        """See Detector."""
        self.keys.clear()


def build_detector(strategy: Strategy) -> Detector:
    """The detector of `target.conflict-strategy`."""
    return Causality() if strategy == "causality" else FlushAll()
