"""The faults and their times: a schedule by seed over the pumps and the placement driver."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TypeVar

from simulator.faults.kinds import Kind
from simulator.faults.tails import TAILS, leave_behind
from soak_cluster import Cluster, Later, Pump

from binlake.cluster.control.nodes import ask_node as ask
from binlake.cluster.placement import NodeRegistry, PdClient
from binlake.errors import SourceUnavailable
from binlake.testkit.workload.source import LiveTransactions
from binlake.wire import build

_MOST_PUMPS = 5
Answer = TypeVar("Answer")


class Chaos:
    """Injects faults into one component at a time, now and then into several; at least one pump is always healthy.

    `happened` counts each fault by name.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactions: LiveTransactions,
        pd: PdClient,
        registry: NodeRegistry,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._transactions = transactions
        self._pd = pd
        self._registry = registry
        self._random = Random(f"{seed}/chaos")
        self._say = say
        self._busy: set[str] = set()
        self._lock = threading.Lock()
        self._later = Later()
        self.happened: Counter[Kind] = Counter()

    def run(self, seconds: float) -> None:
        """Inject faults for `seconds`, each kind in turn in random order; then wait until all are repaired."""
        until = time.monotonic() + seconds
        faults: list[Callable[[], None]] = []
        while time.monotonic() < until:
            if not faults:
                faults = [self._kill, self._kill, self._pause, self._freeze, self._full_disk, self._jump, self._stop_pd,
                          self._join, self._leave]  # fmt: skip
                self._random.shuffle(faults)
            faults.pop()()
            time.sleep(self._random.uniform(0.2, 2.0))
            self._check_processes()
        self._later.join()
        self._check_processes()

    def _check_processes(self) -> None:
        """Check that no process ended unexpectedly, and that no fault's thread failed."""
        assert not self._later.errors, self._later.errors
        with self._lock:
            dead = [
                pump for name, pump in list(self._cluster.pumps.items()) if name not in self._busy and not pump.runs
            ]
        assert not dead, f"{dead[0].name} ended by itself: {dead[0].log.read_text()[-2000:]}"

    def _kill(self) -> None:
        kind, wait_s = self._random.choice(list(TAILS)), self._random.uniform(0.0, 1.5)
        own = Random(self._random.random())
        pump = self._reserve(Kind.KILL_TAIL, kind)
        if pump is None:
            return

        def act() -> None:
            pump.end(signal.SIGKILL)
            segment = pump.last_segment()
            if segment is not None:
                start_ts = self._roll_back_transaction()
                binlog = build.build_prewrite(start_ts, LiveTransactions.build_key(start_ts), own.randbytes(40))
                leave_behind(segment, kind, binlog, own)
            time.sleep(wait_s)
            self._restart(pump)

        self._later.run(act)

    def _pause(self) -> None:
        wait_s, pump = self._random.uniform(0.0, 1.5), self._reserve(Kind.PAUSE)
        if pump is None:
            return

        def act() -> None:
            pump.end(signal.SIGTERM)
            time.sleep(wait_s)
            self._restart(pump)

        self._later.run(act)

    def _freeze(self) -> None:
        wait_s, pump = self._random.uniform(0.5, 5.0), self._reserve(Kind.FREEZE)
        if pump is None:
            return

        def act() -> None:
            os.kill(pump.pid, signal.SIGSTOP)
            time.sleep(wait_s)
            os.kill(pump.pid, signal.SIGCONT)
            self._release(pump)

        self._later.run(act)

    def _full_disk(self) -> None:
        wait_s, whole = self._random.uniform(0.5, 3.0), self._random.random() < 0.5
        pump = self._reserve(Kind.FULL_DISK, "all files" if whole else "value log")
        if pump is None:
            return

        def act() -> None:
            segment = pump.last_segment()
            pump.limit_files(0 if whole or segment is None else segment.stat().st_size)
            time.sleep(wait_s)
            pump.limit_files(None)
            self._release(pump)

        self._later.run(act)

    def _jump(self) -> None:
        jump_ms = self._random.choice([-3_600_000, -10_000, 10_000, 60_000])
        self._note(Kind.CLOCK, f"{jump_ms} ms")
        self._cluster.clock.offset_ms += jump_ms

    def _stop_pd(self) -> None:
        wait_s = self._random.uniform(0.0, 2.0)
        self._note(Kind.PD_DOWN, f"{wait_s:.1f} s")
        self._cluster.restart_driver(wait_s)

    def _join(self) -> None:
        if len(self._cluster.pumps) < _MOST_PUMPS:
            with self._lock:
                pump = self._cluster.add_pump()
                self._busy.add(pump.name)
            self._note(Kind.JOIN, pump.name)
            self._later.run(lambda: self._await(pump))

    def _leave(self) -> None:
        if len(self._cluster.pumps) < _MOST_PUMPS - 1:
            return
        pump = self._reserve(Kind.LEAVE)
        if pump is None:
            return

        def act() -> None:
            ask("PUT", pump.addr, f"/state/{pump.name}/close")
            assert pump.process is not None
            pump.process.wait(90)
            if self._is_offline(pump):
                del self._cluster.pumps[pump.name]
                self._release(pump)
            else:
                # A write in flight was stored after its last fake, so the pump is still needed.
                self._restart(pump)

        self._later.run(act)

    def _is_offline(self, pump: Pump) -> bool:
        return any(one.node_id == pump.name and one.state == "offline" for one in patiently(self._registry.list_pumps))

    def _roll_back_transaction(self) -> int:
        """A transaction that its TiDB rolled back: its P may be in a log without ever having been acked."""
        start_ts = patiently(self._pd.fetch_ts)
        self._transactions.begin(start_ts)
        self._transactions.end(start_ts, 0)
        return start_ts

    def _reserve(self, fault: Kind, detail: str = "") -> Pump | None:
        """Reserve a healthy pump; None when too few would be left."""
        with self._lock:
            well = [pump for name, pump in list(self._cluster.pumps.items()) if name not in self._busy and pump.runs]
            if len(well) < 2:
                return None
            pump = self._random.choice(well)
            self._busy.add(pump.name)
        self._note(fault, f"{pump.name} {detail}")
        return pump

    def _restart(self, pump: Pump) -> None:
        # PD may be unreachable at this time: then the pump ends with an error, and is restarted as by a supervisor.
        self._start(pump)
        self._await(pump)

    def _start(self, pump: Pump) -> None:
        assert not self._cluster.over, "the run has ended"
        pump.start()

    def _await(self, pump: Pump) -> None:
        until = time.monotonic() + 60
        while not pump.serves.wait(0.1):
            assert time.monotonic() < until, f"{pump.name} does not start: {pump.log.read_text()[-2000:]}"
            if not pump.runs:
                time.sleep(0.5)
                self._start(pump)
        self._release(pump)

    def _release(self, pump: Pump) -> None:
        with self._lock:
            self._busy.discard(pump.name)

    def _note(self, fault: Kind, detail: str) -> None:
        self.happened[fault] += 1
        self._say(f"{fault}: {detail}")


def patiently(call: Callable[[], Answer]) -> Answer:
    """The result of `call`, repeated while another fault makes PD unreachable."""
    until = time.monotonic() + 60
    while True:
        try:
            return call()
        except SourceUnavailable:
            assert time.monotonic() < until, "PD was away for a minute"
            time.sleep(0.1)
