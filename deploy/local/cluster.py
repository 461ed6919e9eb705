"""A source cluster on this machine for one capture: a placement driver with a led clock, pumps, and the replay.

Each part is a separate process of the `binlake` command, as in a deployment; all end with the context.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.command import find_cluster_id
from deploy.local.ports import HOST, free_ports
from deploy.local.process import Child

_START_S = 180.0
_REPLAY_S = 900.0


@dataclass(frozen=True)
class CaptureCluster:
    """Addresses of a running source cluster; `replay` is the final output of `binlake capture replay`."""

    pd_url: str
    status_url: str
    cluster_id: int
    replay: dict[str, Any]


@contextlib.contextmanager
def run_capture_cluster(capture: Capture, folder: Path, *, pumps: int = 2) -> Iterator[CaptureCluster]:
    """Start everything below `folder`, replay `capture`, keep serving. Raises ProcessError with the end of the log."""
    number = find_cluster_id(capture) or 1
    pd, status, *addresses = (f"{HOST}:{port}" for port in free_ports(2 + pumps))
    pd_urls = ("--pd-urls", f"http://{pd}")
    with contextlib.ExitStack() as stack:
        driver = ("pd", "--data-dir", str(folder / "pd"), "--addr", pd, "--cluster-id", str(number), "--led")
        _start(stack, folder, "pd", driver, "serving http")
        for n, address in enumerate(addresses, 1):
            own = ("--addr", address, "--data-dir", str(folder / f"pump-{n}"), "--node-id", f"pump-{n}")
            # A window waits for the watermark of a quiet pump, which moves with the next fake binlog.
            quick = ("--gen-binlog-interval", "0.2", "--heartbeat-interval", "1", "--status-url", f"http://{status}")
            disk = ("--stop-write-at-available-space", "1 gib")
            _start(stack, folder, f"pump-{n}", ("pump", *own, *pd_urls, *quick, *disk), " listens at ")
        replay = ("capture", "replay", str(capture.path), *pd_urls, "--status-addr", status, "--keep-serving")
        child = _start(stack, folder, "replay", (*replay, "--output", "json"), '\n{"capture"', _REPLAY_S)
        yield CaptureCluster(f"http://{pd}", f"http://{status}", number, _read_printed(child))


def _start(
    stack: contextlib.ExitStack, folder: Path, name: str, words: tuple[str, ...], mark: str, limit_s: float = _START_S
) -> Child:
    child = Child(name, (sys.executable, "-m", "binlake.cli", *words), folder)
    stack.callback(child.stop)
    return child.start().wait_until(lambda: mark in f"\n{child.log.read_text(encoding='utf-8')}", limit_s)


def _read_printed(child: Child) -> dict[str, Any]:
    lines = child.log.read_text(encoding="utf-8").splitlines()
    printed: dict[str, Any] = json.loads(next(line for line in lines if line.startswith('{"capture"')))
    return printed
