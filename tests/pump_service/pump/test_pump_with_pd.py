"""The pump as operators run it: `binlake pump` with the embedded placement driver, through the pump client."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pump_helpers import VALUE, prewrite, until

from binlake.cluster.placement import EtcdClient, NodeRegistry, PdClient
from binlake.cluster.pumpclient import PumpClient, PumpReader
from binlake.pump_service.pd import PlacementDriver
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog

pytestmark = pytest.mark.process

Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[PlacementDriver]:
    driver = PlacementDriver(tmp_path / "pd")
    driver.start()
    yield driver
    driver.stop()


@pytest.fixture
def oracle(pd: PlacementDriver) -> Iterator[PdClient]:
    with contextlib.closing(PdClient([pd.url])) as client:
        yield client


@pytest.fixture
def registry(pd: PlacementDriver) -> Iterator[NodeRegistry]:
    with contextlib.closing(EtcdClient([pd.url])) as client:
        yield NodeRegistry(client)


@pytest.fixture
def run(tmp_path: Path, pd: PlacementDriver) -> Iterator[Run]:
    """Starts `binlake pump`, waits until it listens, and kills remaining processes at the end."""
    running: list[subprocess.Popen[str]] = []

    def start(name: str, *options: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "binlake.cli", "pump", "--addr", "127.0.0.1:0", "--node-id", name]
        command += ["--data-dir", str(tmp_path / name), "--pd-urls", pd.url, "--gen-binlog-interval", "0.1"]
        command += ["--heartbeat-interval", "0.1", "--stop-write-at-available-space", "0", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
        running.append(process)
        assert process.stdout is not None
        assert any(f"pump {name} listens at" in line for line in process.stdout), "the pump ended before it listened"
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def states(registry: NodeRegistry) -> dict[str, str]:
    return {pump.node_id: pump.state for pump in registry.list_pumps()}


def write(client: PumpClient, oracle: PdClient, count: int) -> dict[int, str]:
    """Write committed transactions; return commit_ts -> pump."""
    written = {}
    for _ in range(count):
        binlog = prewrite(oracle.fetch_ts())
        client.write_prewrite(binlog)
        commit_ts = oracle.fetch_ts()
        written[commit_ts] = client.write_commit(build.build_commit(binlog, commit_ts))
    return written


def everything(registry: NodeRegistry, cluster_id: int, upto: int) -> dict[int, str]:
    """Everything that the pumps hold up to `upto`: commit_ts -> pump; each is read until it is proved complete."""
    pulled = {}
    for pump in registry.list_pumps():
        for commit_ts, start_ts, payload in PumpReader(pump.host, cluster_id).pull(0, upto):
            if commit_ts <= upto and commit_ts != start_ts:
                assert Binlog.FromString(payload).prewrite_value == VALUE
                pulled[commit_ts] = pump.node_id
    return pulled


def test_two_pumps_hold_everything_and_an_idle_one_does_not_delay_the_other(
    run: Run, oracle: PdClient, registry: NodeRegistry
) -> None:
    # S0-59: the second pump gets nothing for a while, but its watermark still moves.
    run("pump1")
    cluster_id = oracle.fetch_cluster_id()
    with PumpClient(registry, cluster_id) as client:
        alone = write(client, oracle, 5)
    run("pump2")
    upto = oracle.fetch_ts()
    assert everything(registry, cluster_id, upto) == alone
    with PumpClient(registry, cluster_id) as client:
        both = write(client, oracle, 10)
    assert set(both.values()) == {"pump1", "pump2"}
    assert everything(registry, cluster_id, oracle.fetch_ts()) == alone | both


def test_a_killed_pump_restarts_with_its_data_and_takes_over_its_entry(
    run: Run, oracle: PdClient, registry: NodeRegistry
) -> None:
    process = run("pump1")
    with PumpClient(registry, oracle.fetch_cluster_id()) as client:
        placed = write(client, oracle, 20)
        process.kill()
        process.wait()
        assert states(registry) == {"pump1": "online"}  # its entry does not expire
        run("pump1")
        placed |= write(client, oracle, 5)
    assert everything(registry, oracle.fetch_cluster_id(), oracle.fetch_ts()) == placed


def test_sigterm_leaves_it_paused(run: Run, oracle: PdClient, registry: NodeRegistry) -> None:
    process = run("pump1")
    before = oracle.fetch_ts()
    until(lambda: registry.list_pumps()[0].max_commit_ts > before, "a heartbeat")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert states(registry) == {"pump1": "paused"}


def test_a_failed_start_prints_one_line_on_stderr(tmp_path: Path) -> None:
    begun = time.monotonic()
    command = [sys.executable, "-m", "binlake.cli", "pump", "--data-dir", str(tmp_path / "p"), "--addr", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: addr must be HOST:PORT")
    assert done.stderr.count("\n") == 1
    assert time.monotonic() - begun < 120
