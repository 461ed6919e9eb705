"""A source cluster on this machine: `binlake pd` with a led clock, pumps, and a recorded capture that is fed to them.

Each part is its own process of the `binlake` command, as in a deployment.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from binlake.capture import Capture
from deploy.local.ports import HOST, free_ports, is_open
from deploy.local.process import Child
from pump_service.replay.command import cluster_id

START_S = 60.0


class CaptureSource:
    """pd and `pumps` pumps below `folder`; `feed` then replays `capture` into them and serves its status port."""

    def __init__(self, capture: Capture, folder: Path, pumps: int = 2) -> None:
        self.folder = folder
        self.cluster_id = cluster_id(capture) or 1
        self._pd_port, self._status_port, *self._pump_ports = free_ports(2 + pumps)
        own = ["--data-dir", folder / "pd", "--addr", f"{HOST}:{self._pd_port}"]
        self._pd = self._child("pd", "pd", *own, "--cluster-id", str(self.cluster_id), "--led")
        self._pumps = [self._pump(number, port) for number, port in enumerate(self._pump_ports, 1)]
        self._capture = capture
        self._feed: Child | None = None

    @property
    def pd_url(self) -> str:
        """Of the placement driver: timestamps and registry."""
        return f"http://{HOST}:{self._pd_port}"

    @property
    def status_url(self) -> str:
        """Where DDL history and the outcome of transactions are asked, as of a TiDB; served while `feed` runs."""
        return f"http://{HOST}:{self._status_port}"

    @property
    def parts(self) -> list[Child]:
        """All that has been started."""
        return [self._pd, *self._pumps, *([self._feed] if self._feed else [])]

    def start(self) -> CaptureSource:
        """Start pd and the pumps; return when they serve. Raises ProcessError."""
        self._pd.start().wait_until(lambda: is_open(self._pd_port), START_S)
        for pump in self._pumps:
            pump.start()
        for pump, port in zip(self._pumps, self._pump_ports, strict=True):
            pump.wait_until(lambda port=port: is_open(port), START_S)
        return self

    def feed(self, rate: float | None = None) -> None:
        """Start the replay: `rate` binlogs a second, or as fast as the pumps take them. Raises ProcessError."""
        speed = ["--rate", f"{rate:g}"] if rate else []
        address = ["--pd-urls", self.pd_url, "--status-addr", f"{HOST}:{self._status_port}"]
        words = ["replay", str(self._capture.path), *address, *speed, "--keep-serving", "--output", "json"]
        self._feed = self._child("replay", "capture", *words)
        self._feed.start().wait_until(lambda: is_open(self._status_port), START_S)

    def fed(self) -> dict[str, Any] | None:
        """What the replay told at its end (binlogs, transactions, seconds, ...); None while it goes on."""
        if self._feed is None:
            return None
        lines = self._feed.log.read_text(encoding="utf-8", errors="replace").splitlines()
        told = [line for line in lines if line.startswith('{"capture"')]
        return dict(json.loads(told[-1])) if told else None

    def stop(self) -> None:
        """End all parts side by side."""
        with ThreadPoolExecutor(len(self.parts)) as pool:
            list(pool.map(Child.stop, self.parts))

    def _pump(self, number: int, port: int) -> Child:
        name = f"pump-{number}"
        return self._child(
            name,
            "pump",
            *("--addr", f"{HOST}:{port}", "--data-dir", self.folder / name, "--node-id", name),
            *("--pd-urls", self.pd_url, "--status-url", self.status_url),
            *("--gen-binlog-interval", "0.2", "--heartbeat-interval", "1"),
            *("--stop-write-at-available-space", "1 gib"),
        )

    def _child(self, name: str, *words: str | Path) -> Child:
        return Child(name, [sys.executable, "-m", "binlake.cli", *words], self.folder, cwd=self.folder)
