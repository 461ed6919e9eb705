"""A consumer: plans windows by the product's rules, pulls them by its reader, and compares with the truth."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from binlake.cluster.placement import NodeRegistry
from binlake.cluster.pumpclient import PumpReader
from binlake.cluster.pumpclient.reader import Pulled
from binlake.errors import BinlakeError
from binlake.lake.holdups import LandedState, plan_next_window
from binlake.window.membership import FORGOTTEN, RememberedMember
from binlake.window.plan import Member, WindowPlan
from binlake.window.sourcecluster import ask_pump
from simulator.placement import CLUSTER, SimulatedEtcd, SimulatedPd
from simulator.scheduler import Scheduler
from simulator.truth import Truth, Wrong

_AGAIN_S = 0.5
_RULES: Any = SimpleNamespace(list_stop_points=lambda: (), window=SimpleNamespace(max_seconds=3600))


class Consumer:
    """Lands one window after another; `taken`: start_ts -> commit_ts; `blocked`: why it waits.

    `takes_blocks`: it pulls many binlogs in one message. `to_forget`: pumps that an operator gave up (`binlake pump
    forget`), until that is done.
    """

    def __init__(self, name: str, scheduler: Scheduler, truth: Truth, *, takes_blocks: bool) -> None:
        self._takes_blocks = takes_blocks
        self.name = name
        self._scheduler = scheduler
        self._truth = truth
        self._known: dict[str, RememberedMember] = {}
        self._told = -1
        self.taken: dict[int, int] = {}
        self.landed = 0
        self.windows = 0
        self.blocked = ""
        self.rests = False
        self.to_forget: list[str] = []
        self.stopping = False

    def run(self) -> None:
        """Land windows until `stopping`."""
        pd = SimulatedPd()
        with closing(SimulatedEtcd()) as etcd:
            registry = NodeRegistry(etcd)
            while not self.stopping:
                self._forget()
                try:
                    if not self.rests and self._land(pd, registry):
                        continue
                except BinlakeError as error:
                    self.blocked = str(error)
                self._scheduler.sleep(_AGAIN_S)

    def _forget(self) -> None:
        for node_id in self.to_forget:
            known = self._known.get(node_id)
            if known is not None:
                self._known[node_id] = replace(known, state=FORGOTTEN)
        self.to_forget.clear()

    def _land(self, pd: SimulatedPd, registry: NodeRegistry) -> bool:
        if self._told < self.landed:
            registry.publish_drainer(self.name, self.landed)
            self._told = self.landed
        known = LandedState(self.landed, self._known, None)
        plan = plan_next_window(_RULES, known, pd, registry, lambda host: ask_pump(host, CLUSTER, 2.0), stop_ts=None)
        self.blocked = plan.reason
        if plan.state != "ready":
            return False
        pulled: dict[int, int] = {}
        for member in plan.members:
            if not member.is_drained(plan.lo):
                self._pull(member, plan, pulled)
        self._keep(plan, pulled)
        return True

    def _pull(self, member: Member, plan: WindowPlan, pulled: dict[int, int]) -> None:
        last = plan.lo
        reader = PumpReader(member.host, CLUSTER)
        pull = _pull_blocks if self._takes_blocks else PumpReader.pull
        for commit_ts, start_ts, payload in pull(reader, plan.lo, plan.hi):
            if commit_ts <= last:
                raise Wrong(f"{member.node_id} gave {commit_ts} after {last}")
            last = commit_ts
            if commit_ts <= plan.hi and commit_ts != start_ts:
                self._truth.check_pulled(member.node_id, commit_ts, start_ts, payload)
                pulled[commit_ts] = start_ts
        if last < plan.hi:
            raise Wrong(f"{member.node_id} proved {last} only, of {plan.hi}")

    def _keep(self, plan: WindowPlan, pulled: dict[int, int]) -> None:
        for commit_ts, start_ts in sorted(pulled.items()):
            if start_ts in self.taken:
                raise Wrong(f"transaction {start_ts} came at {self.taken[start_ts]} and {commit_ts}")
            self.taken[start_ts] = commit_ts
        self.landed = plan.hi
        self.windows += 1
        self._known = {
            m.node_id: RememberedMember(m.node_id, m.store_uuid, m.state, m.watermark, plan.hi) for m in plan.members
        }
        self.check()

    def check(self) -> None:
        """Check that every transaction committed at or below the landed ts was pulled (DESIGN 3.3)."""
        lost = [
            (start_ts, commit_ts)
            for start_ts, commit_ts in self._truth.committed().items()
            if commit_ts <= self.landed and start_ts not in self.taken and start_ts not in self._truth.excused
        ]
        if lost:
            raise Wrong(f"{self.name}: {len(lost)} are missing up to {self.landed}, the first {min(lost)}")


def _pull_blocks(reader: PumpReader, after_ts: int, until_ts: int) -> Iterator[Pulled]:
    for block in reader.pull_blocks(after_ts, until_ts):
        begin = 0
        for commit_ts, start_ts, end in zip(block.commit_ts, block.start_ts, block.ends, strict=True):
            yield int(commit_ts), int(start_ts), bytes(block.data[begin:end])
            begin = end
