"""Pumps on the in-memory cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pump_cluster import MemoryCluster
from pump_helpers import MakePump

from binlake.cluster.placement import EtcdClient
from binlake.pump_service.pd import PlacementDriver
from binlake.pump_service.pump.config import PumpConfig
from binlake.pump_service.pump.server import PumpServer


@pytest.fixture
def cluster() -> MemoryCluster:
    return MemoryCluster()


@pytest.fixture
def rpc() -> type[PumpServer]:
    """The server layer that the pumps of a test use."""
    return PumpServer


@pytest.fixture(params=["embedded", pytest.param("etcd", marks=pytest.mark.process)])
def etcd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EtcdClient]:
    """An empty etcd: the embedded one, and a real one."""
    with contextlib.ExitStack() as stack:
        if request.param == "etcd":
            url = request.getfixturevalue("etcd_url")
        else:
            url = stack.enter_context(PlacementDriver(tmp_path / "pd")).url
        client = stack.enter_context(contextlib.closing(EtcdClient([url])))
        client.delete(b"\0", b"\0")
        yield client


@pytest.fixture
def build_pump(rpc: type[PumpServer], tmp_path: Path, cluster: MemoryCluster) -> Iterator[MakePump]:
    """Starts pumps on the in-memory cluster, and stops those that still run."""
    running: list[PumpServer] = []

    def start(name: str = "pump1", source: object = None, **changes: object) -> PumpServer:
        config = PumpConfig(
            data_dir=tmp_path / name,
            addr="127.0.0.1:0",
            node_id=name,
            gen_binlog_interval_s=0.05,
            heartbeat_interval_s=0.05,
            resolve_interval_s=0.05,
            stop_write_at_available_space=0,
        )
        pump = rpc(replace(config, **changes), oracle=cluster, members=cluster, source=source)
        pump.start()
        running.append(pump)
        return pump

    yield start
    for pump in running:
        pump.stop()
