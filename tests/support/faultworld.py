"""A replication whose every part a test can kill and start again: the parts are real, the pump and feeders processes.

A feeder reads a MariaDB as two sources; the first through a `TcpLink`. A window's stages run in the test's process.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from support.children import start_child, wait_for_exit
from support.mariadb import MariaDb, execute
from support.tcplink import TcpLink

from binlake.cli import run
from binlake.common.tomlfile import to_toml_sections
from binlake.pump_service.pd import PlacementDriver
from deploy.local.ports import free_port

WAIT_S = 120.0
# Each look at a page or a window takes tens of milliseconds of CPU.
_LOOK_S = 0.5
_OWN = {"one": "faults.*", "two": "nothing.*", "odd": "odd.*", "late": "late.*"}
"""The only database that each source reads."""


class Process:
    """A function in a process of its own that a test kills as a failing machine does."""

    def __init__(self, work: Callable[..., object], *arguments: object) -> None:
        self._work, self._arguments, self._pid = work, arguments, 0

    def start(self) -> None:
        """Start it again with the same arguments."""
        self._pid = start_child(self._work, *self._arguments)

    def kill9(self) -> None:
        """SIGKILL; does nothing if it has ended already."""
        pid, self._pid = self._pid, 0
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            wait_for_exit(pid)

    def wait_for_failure(self) -> None:
        """Wait until it has ended by itself, with an error of Binlake."""
        pid, self._pid = self._pid, 0
        assert wait_for_exit(pid) == 1


def serve_pump(folder: Path, pd_url: str, addr: str, status_url: str) -> None:
    """A pump that serves until it is killed."""
    from binlake.pump_service.pump.config import PumpConfig
    from binlake.pump_service.pump.server import PumpServer

    _log_to(folder / "pump.log")
    pump = PumpServer(PumpConfig(
        pd_urls=(pd_url,), addr=addr, data_dir=folder / "pump1", node_id="pump1", status_urls=(status_url,),
        gen_binlog_interval_s=0.2, heartbeat_interval_s=0.5, resolve_interval_s=0.1,
        stop_write_at_available_space=1 << 20,
    ))  # fmt: skip
    pump.start()
    pump.serve()


def serve_feeder(settings: Path) -> None:
    """A feeder that waits one second for a lock, not ten, and serves until it is killed."""
    from binlake.pump_service.feeder.service import Feeder
    from binlake.pump_service.feeder.settings import read_settings
    from binlake.pump_service.feeder.snapshot import opening, structures

    _log_to(settings.with_suffix(".log"))
    for module in (opening, structures):
        vars(module)["LOCK_WAIT_S"] = 1
    Feeder(read_settings(settings)).run()


def _log_to(path: Path) -> None:
    for stream in (1, 2):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)


class FaultWorld:
    """Use as a context manager. `source` and `target`: running servers; `folder`: for everything else."""

    def __init__(self, folder: Path, source: MariaDb, target: MariaDb) -> None:
        self.folder, self.source, self.target = folder, source, target
        self.link = TcpLink(source.host, source.port)
        self._pd_port, pump = free_port(), f"127.0.0.1:{free_port()}"
        self.driver = PlacementDriver(folder / "pd", port=self._pd_port)
        self.pd_url = f"http://127.0.0.1:{self._pd_port}"
        self._status_addr = f"127.0.0.1:{free_port()}"
        self._status_url = f"http://{self._status_addr}"
        self.pump = Process(serve_pump, folder, self.pd_url, pump, self._status_url)
        self._settings = folder / "feeder.toml"
        self.feeder = Process(serve_feeder, self._settings)
        self._client = httpx.Client(trust_env=False, headers={"Connection": "close"})
        self.file = folder / "faults.toml"

    def __enter__(self) -> FaultWorld:
        with ExitStack() as stack:
            self._start(stack)
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def _start(self, stack: ExitStack) -> None:
        stack.callback(self._client.close)
        self.driver.start()
        stack.callback(lambda: self.driver.stop())
        stack.enter_context(self.link)
        for process in (self.pump, self.feeder):
            stack.callback(process.kill9)
        self.pump.start()
        self.write_feeder([self.describe_source(name) for name in ("one", "two")])
        self.feeder.start()
        self.until_feeder(lambda sources: all(one["heard"] for one in sources))
        execute(self.source, "CREATE DATABASE faults", "CREATE TABLE faults.t (id INT PRIMARY KEY)")

    def describe_source(self, name: str, **more: Any) -> dict[str, Any]:
        """The section of feeder.toml for the source `name`, which reads one database only. `more` replaces keys."""
        server = self.link if name in ("one", "late") else self.source
        others = [pattern for other, pattern in _OWN.items() if other != name]
        return {"name": name, "host": server.host, "port": server.port, "heartbeat": 0.5, "read-timeout": 3.0,
                "ignore-tables": others, "start": {"mode": "now"}, **more}  # fmt: skip

    def write_feeder(self, sources: Sequence[dict[str, Any]]) -> None:
        """Write the settings of the feeder, which take effect at its next start."""
        tracker = {"host": self.source.host, "port": self.source.port}
        settings = {"pd-urls": [self.pd_url], "data-dir": str(self.folder / "feeder"),
                    "status-addr": self._status_addr, "tracker": tracker, "source": list(sources)}  # fmt: skip
        self._settings.write_text(to_toml_sections(settings), encoding="utf-8")

    def restart_driver(self) -> None:
        """Start the placement driver again after it was stopped."""
        self.driver = PlacementDriver(self.folder / "pd", port=self._pd_port).start()

    def write_replication(self, folder: Path, **window: int) -> Path:
        """Write the replication `faults` into `folder`; `window`: keys of its section, with underscores."""
        self.file = folder / "faults.toml"
        target = self.target
        sections = {
            "name": "faults", "initial-commit-ts": "0",
            "source": {"pd-urls": [self.pd_url], "status-url": self._status_url, "timeout-s": 5},
            "lake": {"path": str(self.folder / "lake")},
            "target": {"db-type": "mariadb", "host": target.host, "port": target.port, "user": target.user},
            "mirror": {"enabled": False}, "airflow": {"schedule": "", "engine": "connect", "spark-conn-id": "faults"},
            "window": {key.replace("_", "-"): value for key, value in window.items()},
        }  # fmt: skip
        self.file.write_text(to_toml_sections(sections), encoding="utf-8")
        return self.file

    def insert(self, key: int) -> None:
        """Commit one row at the source."""
        execute(self.source, f"INSERT INTO faults.t VALUES ({key})")

    def run_window(self) -> tuple[int, str]:
        """(exit status, output) of `binlake window run`."""
        return _run("window", "run", "--replication", str(self.file), "--without-spark")

    def ask_feeder(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit status of `binlake feeder status`, and the sources on the page of the feeder; none if it is dead."""
        status, _ = _run("feeder", "status", "--config", str(self._settings))
        return status, self._read_sources()

    def until_feeder(self, reached: Callable[[list[dict[str, Any]]], bool]) -> list[dict[str, Any]]:
        """Wait until the sources on the feeder's page are as wanted, and return them."""

        def look() -> list[dict[str, Any]]:
            sources = self._read_sources()
            return sources if sources and reached(sources) else []

        found: list[dict[str, Any]] = until("the feeder", look)
        return found

    def _read_sources(self) -> list[dict[str, Any]]:
        try:
            return list(self._client.get(f"{self._status_url}/feeder").json()["sources"])
        except httpx.HTTPError:
            return []


def until(what: str, found: Callable[[], Any]) -> Any:
    """The first true answer of `found`; fails after WAIT_S."""
    deadline = time.monotonic() + WAIT_S
    while not (answer := found()):
        assert time.monotonic() < deadline, f"not within {WAIT_S:.0f} s: {what}"
        time.sleep(_LOOK_S)
    return answer


def _run(*words: str) -> tuple[int, str]:
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
        status = run(words)
    return status, told.getvalue()


@contextlib.contextmanager
def revived(*servers: MariaDb) -> Iterator[None]:
    """Start what the body has left dead: other tests use the servers too."""
    try:
        yield
    finally:
        for server in servers:
            if server.pid is None:
                server.start()
