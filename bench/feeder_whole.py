"""The whole feeder: from a server's binary log to commits on a pump, with placement driver and pump as processes."""

from __future__ import annotations

import bisect
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from binlake.pump_service.feeder.service import STATUS_PATH, Feeder
from binlake.pump_service.feeder.settings import FeederFile
from deploy.local.mariadb import MariaDb
from deploy.local.ports import HOST, free_ports
from deploy.local.process import Child

_START_S = 60.0
_WAIT_S = 600.0
_SAMPLE_S = 0.1
_WRITER = Path(__file__).with_name("paced_writer.py")


@dataclass(frozen=True)
class Whole:
    """Cost of the feeder's process: CPU seconds and wall-clock seconds."""

    cpu_s: float
    wall_s: float


def publish_all(server: MariaDb, write: Callable[[], None]) -> Whole:
    """Let `write` commit at `server`, then measure a feeder that reads the log from before these commits to the end."""
    with _run_cluster(server) as settings:
        with run_feeder(settings, lambda source: source["state"] == "reading"):
            pass
        write()
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT @@GLOBAL.gtid_binlog_pos")
            (end,) = cursor.fetchone()
        cpu, wall = time.process_time(), time.perf_counter()
        with run_feeder(settings, lambda source: source.get("gtids") == end):
            return Whole(time.process_time() - cpu, time.perf_counter() - wall)


def measure_lags_of_paced_load(server: MariaDb, rate: int, seconds: float) -> list[float]:
    """Sample the feeder's lag while `rate` transactions per second are committed at `server`.

    A lag is the age in seconds of the oldest transaction that was sent to `server` and is not yet on a pump.
    """
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL sync_binlog = 0, innodb_flush_log_at_trx_commit = 0")
        cursor.execute("CREATE DATABASE paced")
        cursor.execute("CREATE TABLE paced.t (id INT PRIMARY KEY, n INT, v VARCHAR(20))")
    with _run_cluster(server) as settings, run_feeder(settings, lambda source: source["state"] == "reading") as feeder:
        words = [sys.executable, str(_WRITER), server.host, str(server.port), str(rate), str(seconds)]
        samples: list[tuple[float, int]] = []
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
            while writer.poll() is None:
                samples.append((time.time(), feeder.workers[0].counts.transactions))
                time.sleep(_SAMPLE_S)
            assert writer.stdout is not None
            sent = [(int(number), float(at)) for number, at in map(str.split, writer.stdout)]
    numbers = [number for number, _ in sent]
    lags = []
    for at, published in samples:
        chunk = bisect.bisect_right(numbers, published)  # the first chunk that is not completely published
        if chunk < len(sent):
            lags.append(max(0.0, at - sent[chunk][1]))
    assert numbers[-1] >= rate * seconds
    return lags


@contextmanager
def _run_cluster(server: MariaDb) -> Iterator[FeederFile]:
    """Run a placement driver and a pump; yield settings of a feeder that reads `server`, starting at the present."""
    with tempfile.TemporaryDirectory(prefix="binlake-bench-feeder-") as name, ExitStack() as stack:
        folder = Path(name)
        pd, pump, status = (f"{HOST}:{port}" for port in free_ports(3))
        for child, words, mark in (
            ("pd", ("pd", "--addr", pd, "--data-dir", str(folder / "pd")), "serving http"),
            (
                "pump",
                ("pump", "--addr", pump, "--pd-urls", f"http://{pd}", "--data-dir", str(folder / "pump"),
                 "--status-url", f"http://{status}"), " listens at ",
            ),
        ):  # fmt: skip
            stack.callback(_start_child(folder, child, words, mark).stop)
        yield FeederFile.model_validate({
            "pd-urls": [f"http://{pd}"], "data-dir": str(folder / "feeder"), "status-addr": status,
            "tracker": {"host": server.host, "port": server.port},
            "source": [{"name": "s1", "host": server.host, "port": server.port, "start": {"mode": "now"}}],
        })  # fmt: skip


@contextmanager
def run_feeder(settings: FeederFile, reached: Callable[[dict[str, object]], bool]) -> Iterator[Feeder]:
    """Run a feeder; the body starts when `reached` is true for its source's status."""
    feeder = Feeder(settings)
    thread = threading.Thread(target=feeder.run)
    thread.start()
    deadline = time.monotonic() + _WAIT_S
    while not any(map(reached, _read_sources(settings))):
        assert time.monotonic() < deadline, f"the feeder did not reach the expected status within {_WAIT_S:.0f} s"
        time.sleep(0.05)
    yield feeder
    feeder.stop()
    thread.join()


def _read_sources(settings: FeederFile) -> list[dict[str, object]]:
    try:
        # Without verify=False each call reads the system's certificates, which takes 20 ms of CPU.
        answer = httpx.get(f"http://{settings.status_addr}{STATUS_PATH}", trust_env=False, verify=False)
    except httpx.HTTPError:
        return []
    sources: list[dict[str, object]] = answer.json()["sources"]
    return sources


def _start_child(folder: Path, name: str, words: tuple[str, ...], mark: str) -> Child:
    child = Child(name, (sys.executable, "-m", "binlake.cli", *words), folder)
    return child.start().wait_until(lambda: mark in child.log.read_text(encoding="utf-8"), _START_S)
