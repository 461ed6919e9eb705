"""A source cluster on this machine for one capture: a placement driver with a led clock, pumps, and the replay.

Each part is its own process of the `binlake` command, as in a deployment; all are ended with the context.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlake.capture import Capture
from binlake.errors import SourceUnavailable
from pump_service.replay.command import cluster_id

_START_S = 60.0
_STOP_S = 15.0


@dataclass(frozen=True)
class CaptureCluster:
    """Addresses of a running source cluster whose capture is replayed; `replay` is what the replay printed."""

    pd_url: str
    status_url: str
    cluster_id: int
    replay: dict[str, Any]


@contextlib.contextmanager
def capture_cluster(capture: Capture, folder: Path, *, pumps: int = 2) -> Iterator[CaptureCluster]:
    """Start everything below `folder`, replay `capture`, keep serving. Raises SourceUnavailable with the log's end."""
    number = cluster_id(capture) or 1
    pd, status, *addresses = (f"127.0.0.1:{port}" for port in free_ports(2 + pumps))
    urls = ["--pd-urls", f"http://{pd}"]
    with contextlib.ExitStack() as stack:
        driver = ["pd", "--data-dir", str(folder / "pd"), "--addr", pd, "--cluster-id", str(number), "--led"]
        stack.enter_context(_process("pd", driver, folder, _listens(pd)))
        for n, address in enumerate(addresses, 1):
            own = ["--addr", address, "--data-dir", str(folder / f"pump-{n}"), "--node-id", f"pump-{n}"]
            quick = ["--gen-binlog-interval", "0.2", "--heartbeat-interval", "1", "--status-url", f"http://{status}"]
            disk = ["--stop-write-at-available-space", "1 gib"]
            stack.enter_context(_process(f"pump-{n}", ["pump", *own, *urls, *quick, *disk], folder, _printed))
        replay = ["capture", "replay", str(capture.path), *urls, "--status-addr", status, "--keep-serving"]
        process = stack.enter_context(
            _process("replay", [*replay, "--output", "json"], folder, _printed, limit_s=900.0)
        )
        yield CaptureCluster(f"http://{pd}", f"http://{status}", number, json.loads(process.first_line()))


@dataclass(frozen=True)
class _Running:
    process: subprocess.Popen[bytes]
    output: Path

    def first_line(self) -> str:
        return self.output.read_text(encoding="utf-8").partition("\n")[0]


Ready = Callable[[_Running], bool]


def _printed(running: _Running) -> bool:
    return "\n" in running.output.read_text(encoding="utf-8")


def _listens(address: str) -> Ready:
    host, _, port = address.rpartition(":")

    def ready(running: _Running) -> bool:
        del running
        with socket.socket() as client:
            client.settimeout(1.0)
            return client.connect_ex((host, int(port))) == 0

    return ready


@contextlib.contextmanager
def _process(
    name: str, arguments: list[str], folder: Path, ready: Ready, limit_s: float = _START_S
) -> Iterator[_Running]:
    folder.mkdir(parents=True, exist_ok=True)
    output, errors = folder / f"{name}.out", folder / f"{name}.log"
    with output.open("wb") as out, errors.open("wb") as err:
        process = subprocess.Popen([sys.executable, "-m", "binlake.cli", *arguments], stdout=out, stderr=err)
    running = _Running(process, output)
    try:
        _wait(name, running, errors, ready, limit_s)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(name: str, running: _Running, errors: Path, ready: Ready, limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not ready(running):
        ended = running.process.poll()
        if ended is not None or time.monotonic() > until:
            tail = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            state = "did not start in time" if ended is None else f"ended with {ended}"
            raise SourceUnavailable(f"{name} {state}: {' | '.join(tail)}", where={"log": errors})
        time.sleep(0.05)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that are free now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]
