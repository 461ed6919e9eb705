"""Pulls everything from the pumps by the planning rules, and checks what windows must guarantee (DESIGN 3.3)."""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from binlake.cluster.placement import NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpInfo, PumpReader
from binlake.errors import SourceUnavailable
from binlake.window.membership import Probe, RememberedMember, gather_members
from binlake.window.plan import Member, WindowPlan, propose_window
from binlake.wire import binlog_pb2 as pb


def digest(binlog: pb.Binlog) -> int:
    """A hash of the content that must not change on its way."""
    return zlib.crc32(binlog.prewrite_value + binlog.ddl_query)


@dataclass
class Ledger:
    """What the workload wrote, recorded as the runner's journal."""

    acked: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)

    def record_binlog(self, binlog: pb.Binlog) -> None:
        if binlog.tp == pb.Prewrite:
            self.acked[binlog.start_ts] = digest(binlog)
        elif binlog.tp == pb.Commit:
            self.committed[binlog.start_ts] = binlog.commit_ts

    def record_job(self, job: dict[str, Any]) -> None:
        """Nothing: its binlog was recorded."""

    def record_orphan(self, start_ts: int, commit_ts: int) -> None:
        if commit_ts:
            self.committed[start_ts] = commit_ts


class Checker:
    """Lands windows one after another; `taken`: start_ts -> (commit_ts, digest), `landed`: the position reached."""

    def __init__(self, pd: PdClient, registry: NodeRegistry) -> None:
        self._pd = pd
        self._registry = registry
        self._known: dict[str, RememberedMember] = {}
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.taken: dict[int, tuple[int, int]] = {}
        self.landed = 0
        self._told = 0
        self.windows = 0
        self.blocked = ""

    def start(self) -> None:
        self._thread.start()

    def finish(self, seconds: float) -> None:
        """Land everything committed by now, then stop. Fails when that takes more than `seconds`."""
        goal, until = self._pd.fetch_ts(), time.monotonic() + seconds
        while self.landed < goal and self._failure is None:
            if time.monotonic() > until:
                pump_infos = "\n".join(map(str, self.infos()))
                raise AssertionError(f"landed {self.landed} of {goal}: {self.blocked}\n{pump_infos}")
            time.sleep(0.05)
        self.stop()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop after the current window."""
        self._stopped.set()
        self._thread.join()

    def infos(self) -> list[PumpInfo]:
        """The Info of each pump that is not offline."""
        pumps = [pump for pump in self._registry.list_pumps() if pump.state != "offline"]
        return [PumpReader(pump.host, self._pd.fetch_cluster_id()).read_info() for pump in pumps]

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    if not self._land():
                        self._stopped.wait(0.1)
                except SourceUnavailable as error:
                    self.blocked = str(error)
                    self._stopped.wait(0.2)
        except BaseException as error:  # noqa: BLE001 - finish() raises it
            self._failure = error

    def _land(self) -> bool:
        self._tell_landed()
        now = self._pd.fetch_ts()
        members = gather_members(self._registry.list_pumps(), self._known, self.landed, self._probe)
        plan = propose_window(lo=self.landed, tso=now, members=members)
        self.blocked = plan.reason
        if plan.state != "ready":
            return False
        pulled: dict[int, tuple[int, int]] = {}
        for member in members:
            if not member.is_drained(plan.lo):
                self._pull(member, plan, pulled)
        self._keep(plan, pulled)
        self._known = {
            m.node_id: RememberedMember(m.node_id, m.store_uuid, m.state, m.watermark, plan.hi) for m in members
        }
        return True

    def _tell_landed(self) -> None:
        # Like plan: a closing pump waits for this, and PD may be unreachable when the window is landed.
        if self._told < self.landed:
            self._registry.publish_drainer("soak", self.landed)
            self._told = self.landed

    def _pull(self, member: Member, plan: WindowPlan, pulled: dict[int, tuple[int, int]]) -> None:
        last = plan.lo
        for commit_ts, start_ts, payload in PumpReader(member.host, self._pd.fetch_cluster_id()).pull(plan.lo, plan.hi):
            assert commit_ts > last, f"{member.node_id} gave {commit_ts} after {last}"
            last = commit_ts
            if commit_ts > plan.hi or commit_ts == start_ts:
                continue
            one = (start_ts, digest(pb.Binlog.FromString(payload)))
            twin = pulled.setdefault(commit_ts, one)
            assert twin == one, f"two pumps differ at {commit_ts}: {twin} and {one}"
        assert last >= plan.hi, f"{member.node_id} proved {last} only, of {plan.hi}"

    def _keep(self, plan: WindowPlan, pulled: dict[int, tuple[int, int]]) -> None:
        for commit_ts, (start_ts, value) in sorted(pulled.items()):
            assert plan.lo < commit_ts <= plan.hi
            assert start_ts not in self.taken, f"transaction {start_ts} came at {self.taken[start_ts]} and {commit_ts}"
            self.taken[start_ts] = (commit_ts, value)
        self.landed = plan.hi
        self.windows += 1

    def _probe(self, host: str) -> Probe:
        info = PumpReader(host, self._pd.fetch_cluster_id(), timeout_s=2).read_info()
        return Probe(info.store_uuid, info.max_commit_ts, info.gc_ts, info.last_error, info.node_id)


def until(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for `condition`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def verify(ledger: Ledger, taken: dict[int, tuple[int, int]]) -> None:
    """Check that every committed transaction was pulled, at its commit_ts and unchanged, and nothing else."""
    pulled = {start_ts: commit_ts for start_ts, (commit_ts, _) in taken.items()}
    lost, invented = ledger.committed.items() - pulled.items(), pulled.items() - ledger.committed.items()
    assert not lost, f"{len(lost)} lost, the first {min(lost, key=lambda one: one[1])}"
    assert not invented, f"{len(invented)} were not committed, the first {min(invented, key=lambda one: one[1])}"
    changed = [start_ts for start_ts, (_, value) in taken.items() if ledger.acked[start_ts] != value]
    assert not changed, f"{len(changed)} changed on their way: {changed[:5]}"
