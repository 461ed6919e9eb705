"""How long a pump keeps binlogs for its consumers: what it collects, and when it may leave (DESIGN 3.3, hazards R-05).

The original collects by age alone and only notices consumers that lost data (tidb-binlog 2.10, hazards R-26). Here each
consumer that is not offline holds the collection back and is named; `force_after_s` overrides that, and is logged, too.
A window that starts after lo needs gcTS below lo (binlake/window/membership.py), so the binlog at a consumer's position
stays.

A closing pump goes offline once every consumer has read all it holds. Unlike the original, a pump without any
registered consumer stays, because its binlogs have not been pulled. Once no P waits, the pump writes one last fake and
no more: a consumer that works in batches can reach a fixed watermark, but not one that keeps moving. If other pumps are
closing too, this pump raises its last fake to their watermark, once for each, so that one window covers them all.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from binlake import tso
from binlake.cluster.node import NodeStatus
from binlake.errors import BinlakeError, Permanent, Transient, WireError
from binlake.pump_service.pump.membership import Members
from binlake.pump_service.pump.storage import PumpStorage, Removed

log = structlog.get_logger()

KEEP_S = 7 * 86400.0  # tidb-binlog 2.12
INTERVAL_S = 3600.0  # tidb-binlog 2.10
# tidb-binlog 2.10: files stay this much longer, because they may hold the P of a C that stays.
_SAFE = tso.compose(600 * 1000)
_SETTLE_S = 1.0


@dataclass(frozen=True)
class GcRule:
    """`keep_s`: age in seconds beyond which binlogs are removed; 0 = never.

    `force_after_s`: age beyond which they are removed even if a consumer has not read them; 0 = never.
    """

    keep_s: float = KEEP_S
    force_after_s: float = 0.0


class GcDecision(NamedTuple):
    """Everything up to `gc_ts` may be removed. `held_by`: the consumers that hold the collection back; `losing`: those
    whose next window would start in the removed range. Both as (node id, position)."""

    gc_ts: int
    held_by: tuple[tuple[str, int], ...] = ()
    losing: tuple[tuple[str, int], ...] = ()


class Collected(NamedTuple):
    """The result of a collection."""

    gc_ts: int
    removed: Removed
    problem: str


def decide(
    rule: GcRule, now: int, gc_ts: int, watermark: int, consumers: Sequence[NodeStatus], oldest: int | None = 0
) -> GcDecision:
    """How far to collect at TSO `now`; never below the present `gc_ts`, and always below the watermark. Pure.

    `oldest`: the ts of the oldest stored binlog (None: there is none). Where none is old enough, `gc_ts` stays: what
    was committed before this pump existed was never here, and is not lost here.
    """
    if rule.keep_s <= 0:
        return GcDecision(gc_ts)
    by_age = now - tso.compose(int(rule.keep_s * 1000))
    slow = [(consumer.node_id, consumer.max_commit_ts) for consumer in consumers if consumer.state != "offline"]
    slow = [(name, position) for name, position in slow if position <= by_age]
    target = by_age
    if slow:
        forced = now - tso.compose(int(rule.force_after_s * 1000)) if rule.force_after_s > 0 else 0
        target = min(by_age, max(forced, min(position for _, position in slow) - 1))
    target = max(gc_ts, min(target, watermark - 1))
    held_by = tuple((name, position) for name, position in slow if position <= target + 1 <= by_age)
    if oldest is None or oldest > target:
        return GcDecision(gc_ts, held_by)
    return GcDecision(target, held_by, tuple((name, position) for name, position in slow if position <= target > 0))


class Collector:
    """Decides and collects, one run at a time. `problem`: a consumer that blocks it or loses data; empty = none."""

    def __init__(self, storage: PumpStorage, registry: Members, clock: tso.Clock, rule: GcRule = GcRule()) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock
        self._rule = rule
        self._collecting = threading.Lock()
        self.problem = ""

    def run(self) -> Collected:
        """Collect now. Raises SourceUnavailable (nothing is removed), Transient while another run is active,
        OSError."""
        if not self._collecting.acquire(blocking=False):
            raise Transient("a garbage collection is already running")
        try:
            return self._run()
        finally:
            self._collecting.release()

    def _run(self) -> Collected:
        consumers = self._registry.list_drainers()
        before = self._storage.index.gc_ts
        oldest = self._storage.index.find_oldest_ts()
        decision = decide(self._rule, self._clock.fetch_ts(), before, self._storage.watermark, consumers, oldest)
        self.problem = _describe_problem(decision)
        if self.problem:
            log.error("gc_and_a_slow_consumer", problem=self.problem)
        removed = Removed(0, 0)
        if decision.gc_ts > 0:
            removed = self._storage.collect(decision.gc_ts, decision.gc_ts - _SAFE)
        if decision.gc_ts > before or removed.files:
            log.info("collected", gc_ts=decision.gc_ts, files=removed.files, keys=removed.keys)
        return Collected(decision.gc_ts, removed, self.problem)


def _describe_problem(decision: GcDecision) -> str:
    if decision.losing:
        behind = ", ".join(f"{name} (at {position})" for name, position in decision.losing)
        return f"binlogs up to {decision.gc_ts} were collected although {behind} still needs them"
    if decision.held_by:
        behind = ", ".join(f"{name} (at {position})" for name, position in decision.held_by)
        return f"held back by {behind}: if that consumer is gone, set it to offline"
    return ""


class FakeSource(Protocol):
    """Writes fakes (`FakeWriter`)."""

    def write(self, ts: int = 0) -> int:
        """Store one fake, at `ts` if given; its ts. Raises BinlakeError."""


class Departure:
    """Checked repeatedly while the pump is closing, until nothing is left to wait for.

    `compared_watermark`: the watermark with which the consumers were last compared.
    """

    def __init__(self, storage: PumpStorage, members: Members, fakes: FakeSource, node_id: str = "") -> None:
        self._node_id = node_id
        self._joined: set[str] = set()
        self._storage = storage
        self._members = members
        self._fakes = fakes
        self._sealed = 0
        self.compared_watermark = 0

    def find_reason_to_wait(self) -> str:
        """Why the pump must stay, in words for people; empty = it may go."""
        try:
            return self._check_unmatched() or self._check_consumers()
        except BinlakeError as error:
            return str(error)

    def _check_unmatched(self) -> str:
        count, oldest = self._storage.count_unmatched()
        if count:
            self._sealed = 0
            self._fakes.write()
            return f"{count} prewrites wait for their commit or rollback, the oldest has start_ts {oldest}"
        if not self._sealed:
            self._sealed = self._fakes.write()
            log.info("last_fake", ts=self._sealed)
        self._join_others()
        self._storage.wait_above(self._sealed - 1, _SETTLE_S, lambda: False)
        return "" if self._storage.watermark >= self._sealed else "the last fake binlog is not indexed yet"

    def _join_others(self) -> None:
        """Raise the last fake to another closing pump's watermark; no transaction can reach this pump any more."""
        try:
            others = self._members.list_pumps()
        except WireError:
            return  # `pumps` reports an unreadable entry; here it can only cost one more window
        for other in others:
            is_joined = other.node_id in (self._node_id, *self._joined)
            if not is_joined and other.state == "closing" and other.max_commit_ts > self._sealed:
                self._joined.add(other.node_id)
                self._join(other.node_id, other.max_commit_ts)

    def _join(self, node_id: str, mark: int) -> None:
        try:
            self._sealed = self._fakes.write(mark)
        except Permanent as error:
            log.warning("mark_not_joined", pump=node_id, error=str(error))
        else:
            log.info("last_fake", ts=mark, with_pump=node_id)

    def _check_consumers(self) -> str:
        self.compared_watermark = watermark = self._storage.watermark
        consumers = [one for one in self._members.list_drainers() if one.state != "offline"]
        if not consumers:
            return f"no consumer is registered: the binlogs up to {watermark} have not been pulled"
        behind = [f"{one.node_id} at {one.max_commit_ts}" for one in consumers if one.max_commit_ts < watermark]
        return f"consumers have not pulled all binlogs up to {watermark}: {', '.join(behind)}" if behind else ""
