"""A cluster for fault injection: the placement driver on a clock that jumps, and pumps as processes."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from binlake.pump_service.pd import PlacementDriver
from deploy.local.ports import free_port

HOST = "127.0.0.1"


@dataclass
class Clock:
    """Unix milliseconds that can jump."""

    offset_ms: int = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.offset_ms


@dataclass
class Pump:
    """One pump's process and directory."""

    name: str
    folder: Path
    addr: str
    options: tuple[str, ...]
    process: subprocess.Popen[str] | None = None
    serves: threading.Event = field(default_factory=threading.Event)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        """Start it; its output goes to `log`."""
        command = [sys.executable, "-m", "binlake.cli", "pump", "--addr", self.addr, "--node-id", self.name,
                   "--data-dir", str(self.folder), *self.options]  # fmt: skip
        self.serves.clear()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._listen, args=(self.process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        # Through a pipe: a full disk (`limit_files`) must not affect the log.
        assert process.stdout is not None
        with self.log.open("a") as log, process.stdout:
            for line in process.stdout:
                log.write(line)
                log.flush()
                if f"pump {self.name} listens" in line:
                    self.serves.set()

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".log")

    def end(self, number: signal.Signals) -> None:
        """Send a signal that ends it, and wait."""
        if self.runs:
            self.process.send_signal(number)  # type: ignore[union-attr]
        if self.process is not None:
            self.process.wait(60)

    def limit_files(self, size: int | None) -> None:
        """Limit each of its files to `size` bytes (None: no limit); writes beyond that fail, as on a full disk."""
        limit = psutil.RLIM_INFINITY if size is None else size
        psutil.Process(self.pid).rlimit(psutil.RLIMIT_FSIZE, (limit, psutil.RLIM_INFINITY))

    def last_segment(self) -> Path | None:
        """The value log's current file."""
        return max((self.folder / "value").glob("*.vlog"), default=None)


@dataclass
class Cluster:
    """Placement driver and pumps under `folder`; use as a context manager."""

    folder: Path
    status_url: str
    clock: Clock = field(default_factory=Clock)
    pumps: dict[str, Pump] = field(default_factory=dict)
    over: bool = False

    def __post_init__(self) -> None:
        self._port = free_port()
        self._numbers = itertools.count(1)
        self.driver = self._new_driver().start()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        # A fault in progress must not restart a pump.
        self.over = True
        for pump in self.pumps.values():
            if pump.runs:
                os.kill(pump.pid, signal.SIGCONT)
            pump.end(signal.SIGKILL)
        self.driver.stop()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}"

    def restart_driver(self, away_s: float) -> None:
        """Stop the placement driver and start it on the same files."""
        self.driver.stop()
        time.sleep(away_s)
        self.driver = self._new_driver().start()

    def add_pump(self) -> Pump:
        """Add a new pump and start it."""
        name = f"pump{next(self._numbers)}"
        options = ("--pd-urls", self.url, "--status-url", self.status_url, "--gen-binlog-interval", "0.3",
                   "--heartbeat-interval", "0.5", "--stop-write-at-available-space", "1 mib")  # fmt: skip
        pump = self.pumps[name] = Pump(name, self.folder / name, f"{HOST}:{free_port()}", options)
        pump.start()
        return pump

    def _new_driver(self) -> PlacementDriver:
        return PlacementDriver(self.folder / "pd", HOST, self._port, now_ms=self.clock)


@dataclass
class Later:
    """Runs actions after a delay, on threads that `join` waits for; records what they raised."""

    threads: list[threading.Thread] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def run(self, action: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - shown by the test
                self.errors.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self) -> None:
        for thread in self.threads:
            thread.join(120)
