"""One simulated run: a cluster, its clients and its faults from one seed, checked at every step."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import structlog

from binlake.cluster.placement import NodeRegistry
from binlake.errors import BinlakeError, Permanent
from binlake.pump_service.pump.config import TXN_TIMEOUT_S, PumpConfig
from binlake.pump_service.pump.retention import INTERVAL_S
from simulator.cluster import PdHome, PumpHome, two_of_one
from simulator.disk import SECTOR, SMALL_SECTOR, Disk
from simulator.ends import Server
from simulator.faults.kinds import Fault
from simulator.network import Call, Network
from simulator.placement import ADDRESS, SimulatedEtcd, WallClock
from simulator.scheduler import EPOCH_S, Process, Scheduler, Task
from simulator.seams import simulated
from simulator.tikv import SimulatedTikv
from simulator.truth import Truth, Wrong
from simulator.vthreads import Threading
from simulator.windows import Consumer
from simulator.workloads import operator, transactions

_SHARED_MEMORY = Path("/dev/shm")
_GRACE_S = 15.0  # seconds in which one of two pumps with the same identity must notice
_END_S = 120.0
_SHORT_TIMEOUT_S = 5.0

Client = Callable[["World", int], None]


@dataclass(frozen=True)
class Shape:
    """The parameters of a run. `seconds`: of virtual time with faults; `mean_s`: mean time between two faults."""

    pumps: int = 3
    writers: int = 3
    consumers: int = 2
    seconds: float = 15.0
    mean_s: float = 1.5
    rate: float = 4.0
    faults: Sequence[Fault] = ()
    clients: Sequence[Client] = (transactions.run,)
    segment_bytes: int = 8 << 10
    unprotected: float = 0.0  # share of rollbacks that leave no record
    lands: bool = True  # everything must be landed at the end; otherwise only that nothing wrong was
    gc_s: float = 0.0  # age at which pumps collect; 0 = never
    tikv: bool = False  # the pumps ask TiKV, not the ledger
    operator: bool = False  # an operator gives up what is lost forever


@dataclass
class Report:
    """The result of a run; `failure`: the broken invariant, None = all held. `folder`: holds all its disks."""

    seed: int
    folder: str
    failure: BaseException | None = None
    trace: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    steps: int = 0

    def told(self, scenario: str = "") -> str:
        """The failed invariant, and the command that replays the run."""
        which = f' SCENARIO="{scenario}"' if scenario else ""
        return f"{self.plain(repr(self.failure))}\nreplay: make simulate SEED={self.seed}{which}"

    def plain(self, text: str) -> str:
        """`text` without the name of the folder, which differs in every run of the same seed."""
        return text.replace(f"{self.folder}/", "")


class World:
    """Everything that clients and faults may use."""

    def __init__(self, seed: int, shape: Shape, folder: Path) -> None:
        self.seed, self.shape = seed, shape
        self.report = Report(seed, str(folder))
        self.scheduler = Scheduler(self.chance("scheduler"))
        self.threading = Threading(self.scheduler)
        self.network = Network(self.scheduler, self.threading)
        self.network.observe = self._observe
        self.truth = Truth(self.scheduler)
        self.tikv: SimulatedTikv
        self.writing = True
        self.rate = shape.rate
        self.pumps: dict[str, PumpHome] = {}
        self.pd: PdHome
        self._pumps: list[PumpHome] = []
        self.consumers: list[Consumer] = []
        self._folder = folder
        self._disks: dict[str, Disk] = {}
        self._failure: BaseException | None = None
        self._twins_since = 0.0
        self._active = 0
        self.scheduler.after_step = self._check
        self.scheduler.uncaught = self._uncaught

    def chance(self, name: str) -> Random:
        """A separate stream of random numbers."""
        return Random(f"{self.seed}/{name}")

    def trace(self, text: str) -> None:
        """Record a line for the analysis of a failure."""
        self.report.trace.append(f"{self.scheduler.now - EPOCH_S:9.3f} {self.report.plain(text)}")

    def pump(self, random: Random) -> PumpHome:
        """A random pump."""
        return self.pumps[random.choice(sorted(self.pumps))]

    def machines(self) -> list[str]:
        """Names of all machines."""
        stores = ["tikv-1", "tikv-2"] if self.shape.tikv else []
        return [*sorted(self.pumps), "pd", *stores, *(f"client-{n}" for n in range(self._active))]

    def disk_of(self, path: Path) -> Disk | None:
        """The disk that holds `path`; None for a path that is not simulated."""
        try:
            machine = path.relative_to(self._folder).parts[0]
        except (ValueError, IndexError):
            return None
        return self._disks.get(machine)

    def new_disk(self, machine: str, sector: int = SMALL_SECTOR) -> Disk:
        """The disk of a new machine."""
        disk = self._disks[machine] = Disk(self._folder / machine, sector)
        return disk

    def config_of(self, node_id: str, addr: str) -> PumpConfig:
        """The settings of a pump, whose data directory is on its machine's disk."""
        shape = self.shape
        return PumpConfig(
            pd_urls=(f"http://{ADDRESS}",), addr=addr, node_id=node_id, gen_binlog_interval_s=1.0,
            heartbeat_interval_s=1.0, stop_write_at_available_space=1 << 20, segment_bytes=shape.segment_bytes,
            gc_s=shape.gc_s, gc_interval_s=1.0 if shape.gc_s else INTERVAL_S, ask_tikv=shape.tikv,
            txn_timeout_s=_SHORT_TIMEOUT_S if shape.tikv else TXN_TIMEOUT_S,
        )  # fmt: skip

    def mark_offline(self, pump: PumpHome) -> bool:
        """An operator marks a stopped pump offline; False when PD could not be reached."""
        try:
            with closing(SimulatedEtcd()) as etcd:
                NodeRegistry(etcd).set_pump_state(pump.config.node_id, "offline")
        except BinlakeError as error:
            self.trace(f"{pump.name} cannot be marked offline: {error}")
            return isinstance(error, Permanent)  # the pump never registered
        return True

    def add_pump(self, name: str, config: PumpConfig | None = None) -> PumpHome:
        """Add a machine with a pump."""
        config = config or self.config_of(name, f"{name}:8250")
        pump = PumpHome(name, config, self.new_disk(name), self.scheduler, self.truth, self.trace)
        self.pumps[name] = pump
        self._pumps.append(pump)
        return pump

    def start(self, work: Callable[[], None], name: str) -> None:
        """Start a client on a separate machine."""
        process = Process(name, f"client-{self._active}")
        self._active += 1
        self.scheduler.spawn(work, name, process)

    # a run

    def run(self) -> None:
        """Execute the run. Raises the invariant that does not hold."""
        self._build()
        end = self.scheduler.now + self.shape.seconds
        self.scheduler.run(lambda: self._has_failed() or self.scheduler.now >= end)
        self._heal()
        self._settle()

    def _build(self) -> None:
        shape = self.shape
        clock = WallClock(self.scheduler)
        more = {}
        if shape.tikv:
            self.truth.tikv = self.tikv = SimulatedTikv(self.scheduler)
            more = self.tikv.pd_methods()
        self.pd = PdHome(self.new_disk("pd", SECTOR), self.scheduler, self.truth, clock, self.trace, more)
        for number in range(shape.pumps):
            self.add_pump(f"pump{number}")
        for number in range(shape.writers):
            client = shape.clients[number % len(shape.clients)]
            self.start(lambda number=number, client=client: client(self, number), f"writer-{number}")
        for number in range(shape.consumers):
            consumer = Consumer(f"consumer-{number}", self.scheduler, self.truth, takes_blocks=number % 2 == 1)
            self.consumers.append(consumer)
            self.start(consumer.run, consumer.name)
        if shape.operator:
            self.start(lambda: operator.run(self), "operator")
        if shape.faults:
            self.scheduler.spawn(self._schedule, "faults")

    def _schedule(self) -> None:
        random = self.chance("faults")
        self.scheduler.sleep(3.0)
        while self.writing:
            fault = random.choice(self.shape.faults)
            self.report.counts[fault.kind] += 1
            self.trace(f"fault: {fault.kind}")
            own = Random(random.random())
            self.scheduler.spawn(lambda fault=fault, own=own: fault(self, own), fault.kind)
            self.scheduler.sleep(random.expovariate(1 / self.shape.mean_s))

    def _heal(self) -> None:
        self.trace("all is repaired")
        self.writing = False
        self.network.heal()
        self.network.slow_share = 0.0
        self.truth.source_away = False
        for consumer in self.consumers:
            consumer.rests = False
        for home in (self.pd, *self._pumps):
            disk = home.disk
            disk.full, disk.slow_s, disk.failing_syncs, disk.torn_writes = False, 0.0, 0, 0

    def _settle(self) -> None:
        """Wait until every consumer has landed everything committed."""
        goal, until = self.truth.given + 1, self.scheduler.now + _END_S

        def over() -> bool:
            landed = all(one.landed >= goal for one in self.consumers)
            return self._has_failed() or landed or self.scheduler.now > until or self._find_hopeless() is not None

        quiet = self.scheduler.now + 7.0  # faults in progress end, and their effects are repaired
        self.scheduler.run(lambda: self._has_failed() or self.scheduler.now > quiet)
        self._heal()
        if self.pd.node is not None and self.pd.node.broken:
            self.pd.kill()  # as its error asks for
        goal = self.truth.given + 1
        if not self.shape.lands or self.pd.damaged or any(one.damaged for one in self.truth.stores.values()):
            until = self.scheduler.now + 10.0
            self.scheduler.run(lambda: self._has_failed() or self.scheduler.now > until)
            return
        self.scheduler.run(over)
        hopeless = self._find_hopeless()
        if hopeless is not None:
            raise Wrong(hopeless)
        for one in self.consumers:
            one.check()
            if one.landed < goal:
                raise Wrong(f"{one.name} landed {one.landed} of {goal}: {one.blocked}")

    def _find_hopeless(self) -> str | None:
        for pump in self.pumps.values():
            refusal = pump.hopeless()
            if refusal is not None and not pump.superfluous and not self.truth.store(pump.name).damaged:
                return f"{pump.name} refuses to start: {refusal}"
        if self.pd.refuses:
            return f"pd refuses to start: {self.pd.refuses}"
        if self.shape.operator:
            return None
        return next((f"{one.name}: {one.blocked}" for one in self.consumers if "DATA_LOSS" in one.blocked), None)

    # every step

    def _has_failed(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return False

    def _check(self) -> None:
        for pump in self._pumps:
            server = pump.server
            if server is not None and not pump.process.dead:
                watermark = server._storage._follower._watermark
                if watermark != pump.seen:
                    pump.seen = watermark
                    self.truth.check_watermark(pump.name, server._storage)
        twins = two_of_one(self._pumps) if len(self._pumps) > self.shape.pumps else ""
        if not twins or self.network.cut or not self.pd.runs:
            self._twins_since = self.scheduler.now
        elif self.scheduler.now - self._twins_since > _GRACE_S:
            raise Wrong(twins)

    def _uncaught(self, task: Task, error: BaseException) -> None:
        home = next((one for one in (self.pd, *self.pumps.values()) if one.process is task.process), None)
        if home is None or isinstance(error, AssertionError):
            self._failure = self._failure or error
        else:
            home.crashed(error)

    def _observe(self, server: Server, method: str, message: bytes, call: Call) -> None:
        if method == "/binlog.Pump/WriteBinlog":
            self.truth.observe(server.process.name, message, call)


def run(seed: int, shape: Shape) -> Report:
    """Execute one run; return its result."""
    parent = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="binlake-simulator-", dir=parent))
    world = World(seed, shape, folder)
    report = world.report
    try:
        with simulated(world.scheduler, world.threading, world.network, world.disk_of, world.chance("ids")):
            structlog.configure(processors=[_drop], logger_factory=structlog.ReturnLoggerFactory())
            try:
                world.run()
            except Exception as error:  # noqa: BLE001 - told by the report
                report.failure = error
            finally:
                world.scheduler.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report.steps = world.scheduler.steps
    report.counts["transactions"] = len(world.truth.transactions)
    report.counts["committed"] = len(world.truth.committed())
    report.counts["acks"] = world.truth.acks
    report.counts["windows"] = sum(one.windows for one in world.consumers)
    report.counts["lives"] = sum(one.lives for one in world.pumps.values())
    return report


def _drop(*_: object) -> None:
    raise structlog.DropEvent
