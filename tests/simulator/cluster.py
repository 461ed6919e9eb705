"""Machines, the placement driver and the pumps that run on them, and the supervisors that restart them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from binlake.errors import BinlakeError, Fenced, SourceUnavailable
from binlake.pump_service.pd.server import LEASE_CHECK_S
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.service import State
from simulator.disk import Disk
from simulator.network import Network
from simulator.placement import PlacementNode, WallClock
from simulator.scheduler import Process, Scheduler
from simulator.truth import Truth, Wrong

_RESTART_S = 1.0


class Home:
    """A machine with one service that a supervisor keeps running. `wanted`: the service must run."""

    def __init__(self, name: str, disk: Disk, scheduler: Scheduler, say: Callable[[str], None]) -> None:
        self.name = name
        self.disk = disk
        self.wanted = True
        self.process = Process(name, name)
        self.process.dead = True
        self.lives = 0
        self.crashes: list[str] = []
        self._scheduler = scheduler
        self._say = say
        scheduler.spawn(self._supervise, f"{name}-supervisor")

    @property
    def runs(self) -> bool:
        """Whether a process of the service runs."""
        return not self.process.dead

    def kill(self) -> None:
        """kill -9."""
        self.process.kill("kill")

    def lose_power(self) -> None:
        """The machine's power fails."""
        self.process.kill("power")
        self.disk.lose_power(self._scheduler.random)

    def crashed(self, error: BaseException) -> None:
        """A thread of the process died, and the process ends with it, as in the product."""
        self._say(f"{self.name} crashes: {error}")
        self.crashes.append(str(error))
        self.process.kill("crash")

    def _supervise(self) -> None:
        while True:
            if self.wanted:
                self.process = Process(self.name, self.name)
                self.lives += 1
                done = self._scheduler.spawn(self._run_process, f"{self.name}-main", self.process)
                while not done.done and not self.process.dead:
                    self._scheduler.sleep(0.1)
                self.process.kill("exit")
                self._on_end()
            self._scheduler.sleep(_RESTART_S * (0.2 + self._scheduler.random.random()))

    def _run_process(self) -> None:
        """Run one process from start to end. Overridden."""

    def _on_end(self) -> None:
        """The process has ended."""


class PdHome(Home):
    """The placement driver. `refuses`: why it does not start. `more`: what it also serves for TiKV, by path."""

    def __init__(self, disk: Disk, scheduler: Scheduler, truth: Truth, clock: WallClock,
                 say: Callable[[str], None], more: Mapping[str, Callable[[bytes], bytes]]) -> None:  # fmt: skip
        self._more = more
        self._truth = truth
        self.clock = clock
        self.node: PlacementNode | None = None
        self.refuses = ""
        self.damaged = False
        self.acked_revision = 0
        super().__init__("pd", disk, scheduler, say)

    def _run_process(self) -> None:
        folder = self.disk.root / "data"
        folder.mkdir(exist_ok=True)
        try:
            self.node = PlacementNode(folder, self.clock, self._truth.give, self._more)
        except (BinlakeError, OSError) as error:
            self.refuses = str(error)
            self._say(f"pd refuses: {error}")
            return
        self.refuses = ""
        if self.node.store.revision < self.acked_revision:
            raise Wrong(f"PD answered revision {self.acked_revision} and knows {self.node.store.revision} now")
        self._watch_revision(self.node)
        while True:
            self._scheduler.sleep(LEASE_CHECK_S)
            try:
                self.node.store.expire()
            except OSError as error:
                self._say(f"pd: a lease cannot be ended: {error}")

    def _watch_revision(self, node: PlacementNode) -> None:
        publish = node.store._mvcc.publish

        def published(revision: int, events: Any) -> None:
            publish(revision, events)
            self.acked_revision = max(self.acked_revision, revision)

        node.store._mvcc.publish = published  # type: ignore[method-assign]


class PumpHome(Home):
    """A pump. `store`: the name of its data directory in the ledger; `refusals`: why starts failed."""

    def __init__(self, name: str, config: PumpConfig, disk: Disk, scheduler: Scheduler, truth: Truth,
                 say: Callable[[str], None]) -> None:  # fmt: skip
        self.config = replace(config, data_dir=disk.root / "data")
        self.server: PumpServer | None = None
        self.asked_after_s: float | None = None  # seconds after which its next start is asked to stop
        self.refusals: list[BinlakeError] = []
        self.left = ""
        self.fenced = False
        self.superfluous = False  # this pump exists to be refused
        self.seen = 0
        self._truth = truth
        super().__init__(name, disk, scheduler, say)

    @property
    def online(self) -> bool:
        """Whether it accepts P."""
        return self.runs and self.server is not None and self.server.service.state is State.ONLINE

    def storage(self) -> Any:
        """The storage of its present process; None when it does not run."""
        return getattr(self.server, "_storage", None) if self.runs else None

    def _run_process(self) -> None:
        server = PumpServer(self.config, source=None if self.config.ask_tikv else self._truth)
        try:
            if self.asked_after_s is not None:
                self._scheduler.spawn(partial(self._ask, server, self.asked_after_s), f"{self.name}-ask", self.process)
                self.asked_after_s = None
            if not server.start():
                self._say(f"{self.name} was asked to end while it started")
                return
        except BinlakeError as error:
            self.refusals.append(error)
            self._say(f"{self.name} does not start: {error}")
            return
        self.refusals.clear()  # the reason of earlier failed starts no longer applies
        self.server = server
        self._truth.check_acked(self.name, server._storage)
        self._say(f"{self.name} serves, watermark {server._storage.watermark}")
        try:
            self.left = server.serve().value
            self.wanted = self.left != "offline"
        except Fenced as error:
            self._say(f"{self.name} is fenced: {error}")
            self.fenced, self.wanted = True, False

    def _ask(self, server: PumpServer, after_s: float) -> None:
        self._scheduler.sleep(after_s)
        server.request_leave("pause")

    def _on_end(self) -> None:
        self.server = None

    def hopeless(self) -> BinlakeError | None:
        """The last refusal, if waiting does not help."""
        last = self.refusals[-1] if self.refusals and not self.online else None
        return None if last is None or isinstance(last, SourceUnavailable) else last


def new_disk(root: Path, machine: str) -> Disk:
    """The disk of the pump's machine."""
    return Disk(root / machine)


def two_of_one(homes: list[PumpHome]) -> str:
    """The identity under which two pumps serve at the same time; empty = none."""
    serving: dict[str, str] = {}
    for home in homes:
        if home.online and home.server is not None:
            other = serving.setdefault(home.server.node_id, home.name)
            if other != home.name:
                return f"{home.server.node_id}: {other} and {home.name} both take P"
    return ""


def link(network: Network, here: str, there: str) -> None:
    """Cut the link from one machine to another."""
    network.cut.add((here, there))
