"""The feeder whole: from a server's log to commits on a pump, with the placement driver and the pump in processes of
their own."""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from deploy.local.mariadb import MariaDb
from deploy.local.ports import HOST, free_ports
from deploy.local.process import Child
from pump_service.feeder.service import STATUS_PATH, Feeder
from pump_service.feeder.settings import FeederFile

_START_S = 60.0
_WAIT_S = 600.0


@dataclass(frozen=True)
class Whole:
    """What the feeder's process took: CPU seconds, and seconds by the clock."""

    cpu_s: float
    wall_s: float


def publish_all(server: MariaDb, write: Callable[[], None]) -> Whole:
    """Feed what `write` commits at `server`; the log is read from before it, once it is written."""
    with tempfile.TemporaryDirectory(prefix="binlake-bench-feeder-") as name:
        folder = Path(name)
        pd, pump, status = (f"{HOST}:{port}" for port in free_ports(3))
        children = [
            _child(folder, "pd", ("pd", "--addr", pd, "--data-dir", str(folder / "pd")), "serving http"),
            _child(
                folder, "pump",
                ("pump", "--addr", pump, "--pd-urls", f"http://{pd}", "--data-dir", str(folder / "pump"),
                 "--status-url", f"http://{status}"), " listens at ",
            ),
        ]  # fmt: skip
        try:
            settings = FeederFile.model_validate({
                "pd-urls": [f"http://{pd}"], "data-dir": str(folder / "feeder"), "status-addr": status,
                "tracker": {"host": server.host, "port": server.port},
                "source": [{"name": "s1", "host": server.host, "port": server.port, "start": {"mode": "now"}}],
            })  # fmt: skip
            _run(settings, lambda source: source["state"] == "reading")
            write()
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
                (end,) = cursor.fetchone()
            return _run(settings, lambda source: source.get("gtids") == end)
        finally:
            for child in reversed(children):
                child.stop()


def _run(settings: FeederFile, reached: Callable[[dict[str, object]], bool]) -> Whole:
    """Run a feeder until its source is where `reached` wants it."""
    feeder = Feeder(settings)
    thread = threading.Thread(target=feeder.run)
    cpu, wall = time.process_time(), time.perf_counter()
    thread.start()
    deadline = time.monotonic() + _WAIT_S
    while not any(map(reached, _sources(settings))):
        assert time.monotonic() < deadline, "the feeder does not get there"
        time.sleep(0.05)
    taken = Whole(time.process_time() - cpu, time.perf_counter() - wall)
    feeder.stop()
    thread.join()
    return taken


def _sources(settings: FeederFile) -> list[dict[str, object]]:
    try:
        # Without verify=False each call reads the system's certificates: 20 ms of CPU.
        answer = httpx.get(f"http://{settings.status_addr}{STATUS_PATH}", trust_env=False, verify=False)
    except httpx.HTTPError:
        return []
    found: list[dict[str, object]] = answer.json()["sources"]
    return found


def _child(folder: Path, name: str, words: tuple[str, ...], mark: str) -> Child:
    child = Child(name, (sys.executable, "-m", "binlake.cli", *words), folder)
    return child.start().wait_until(lambda: mark in child.log.read_text(encoding="utf-8"), _START_S)
