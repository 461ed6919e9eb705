"""A source cluster on this machine: `binlake pd`, pumps, and a writer: a capture replay, a workload, or a feeder.

Each part is a separate process of the `binlake` command, as in a deployment.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx

from binlake.testkit.captures.capture import Capture
from binlake.testkit.replay.command import find_cluster_id
from deploy.local.ports import HOST, free_ports, is_open
from deploy.local.process import Child

START_S = 180.0


class LocalSource:
    """pd and `pumps` pumps below `folder`. `options`: of `binlake pd`. Subclasses define what writes to the pumps."""

    def __init__(self, folder: Path, cluster_id: int, pumps: int = 2, options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.cluster_id = cluster_id
        self._pd_port, self._status_port, *self._pump_ports = free_ports(2 + pumps)
        own: list[str | Path] = ["--data-dir", folder / "pd", "--addr", f"{HOST}:{self._pd_port}"]
        self._pd = self._build_child("pd", "pd", *own, "--cluster-id", str(self.cluster_id), *options)
        self._pumps = [self._build_pump(number, port) for number, port in enumerate(self._pump_ports, 1)]
        self._writer: Child | None = None

    @property
    def pd_url(self) -> str:
        """The URL of the placement driver: timestamps and registry."""
        return f"http://{HOST}:{self._pd_port}"

    @property
    def status_url(self) -> str:
        """The URL of the DDL history and of transactions' outcomes, as at a TiDB; it is served while `feed` runs."""
        return f"http://{HOST}:{self._status_port}"

    @property
    def parts(self) -> list[Child]:
        """All parts that have been started."""
        return [self._pd, *self._pumps, *([self._writer] if self._writer else [])]

    def start(self) -> Self:
        """Start pd and the pumps; return when they serve. Raises ProcessError."""
        self._pd.start().wait_until(lambda: is_open(self._pd_port), START_S)
        for pump in self._pumps:
            pump.start()
        for pump, port in zip(self._pumps, self._pump_ports, strict=True):
            pump.wait_until(partial(is_open, port), START_S)
        return self

    def stop(self) -> None:
        """End all parts in parallel."""
        with ThreadPoolExecutor(len(self.parts)) as pool:
            list(pool.map(Child.stop, self.parts))

    def _write(self, name: str, *words: str) -> None:
        address = ["--pd-urls", self.pd_url, "--status-addr", f"{HOST}:{self._status_port}"]
        self._writer = self._build_child(name, *words, *address, "--keep-serving", "--output", "json")
        self._writer.start().wait_until(lambda: is_open(self._status_port), START_S)

    def _read_last_printed(self, begin: str) -> dict[str, Any] | None:
        if self._writer is None:
            return None
        lines = self._writer.log.read_text(encoding="utf-8", errors="replace").splitlines()
        printed = [line for line in lines if line.startswith(begin)]
        return dict(json.loads(printed[-1])) if printed else None

    def _build_pump(self, number: int, port: int) -> Child:
        name = f"pump-{number}"
        return self._build_child(
            name,
            "pump",
            *("--addr", f"{HOST}:{port}", "--data-dir", self.folder / name, "--node-id", name),
            *("--pd-urls", self.pd_url, "--status-url", self.status_url),
            *("--gen-binlog-interval", "0.2", "--heartbeat-interval", "1"),
            *("--stop-write-at-available-space", "1 gib"),
        )

    def _build_child(self, name: str, *words: str | Path) -> Child:
        return Child(name, [sys.executable, "-m", "binlake.cli", *words], self.folder, cwd=self.folder)


class CaptureSource(LocalSource):
    """A source whose clock is led by the capture; `feed` replays the capture into the pumps."""

    def __init__(self, capture: Capture, folder: Path, pumps: int = 2) -> None:
        super().__init__(folder, find_cluster_id(capture) or 1, pumps, ("--led",))
        self._capture = capture

    def feed(self, rate: float | None = None) -> None:
        """Start the replay: `rate` binlogs a second, or as fast as the pumps take them. Raises ProcessError."""
        speed = ["--rate", f"{rate:g}"] if rate else []
        self._write("replay", "capture", "replay", str(self._capture.path), *speed)

    def read_result(self) -> dict[str, Any] | None:
        """The replay's final output (binlogs, transactions, seconds, ...); None while it runs."""
        return self._read_last_printed('{"capture"')


class WorkloadSource(LocalSource):
    """A source with the machine's clock; `feed` generates transactions."""

    def __init__(self, folder: Path, pumps: int = 2) -> None:
        super().__init__(folder, 1, pumps)

    def feed(self, rate: float, seconds: float) -> None:
        """Start the workload: `rate` transactions a second of 1 to 5 rows, for `seconds`. Raises ProcessError."""
        self._write("workload", "workload", "--rate", f"{rate:g}", "--seconds", f"{seconds:g}", "--writers", "4")

    def read_result(self) -> dict[str, Any] | None:
        """The workload's final output (committed, rows, last_commit_ts, ...); None while it runs."""
        return self._read_last_printed("{")


class FeederSource(LocalSource):
    """A source with the machine's clock; `feed` starts a feeder that reads MySQL or MariaDB servers."""

    def __init__(self, folder: Path, pumps: int = 2) -> None:
        super().__init__(folder, 1, pumps)
        self._config = folder / "feeder.toml"

    def feed(self, sections: str) -> None:
        """Start the feeder; `sections`: `[tracker]` and `[[source]]` of its configuration. Raises ProcessError."""
        head = {
            "pd-urls": self.pd_url, "data-dir": str(self.folder / "feeder"),
            "status-addr": f"{HOST}:{self._status_port}",
        }  # fmt: skip
        lines = [f"{name} = {json.dumps(value)}" for name, value in head.items()]
        self._config.write_text("\n".join(lines) + f"\n{sections}", encoding="utf-8")
        self._writer = self._build_child("feeder", "feeder", "run", "--config", self._config)
        self._writer.start().wait_until(lambda: is_open(self._status_port), START_S)

    def fetch_feeder_status(self) -> dict[str, Any]:
        """The feeder's status of its sources. Raises httpx.HTTPError."""
        answer = httpx.get(f"{self.status_url}/feeder", trust_env=False, timeout=START_S)
        status: dict[str, Any] = answer.raise_for_status().json()
        return status
