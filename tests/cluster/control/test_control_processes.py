"""`binlake pump` and the operator's commands as processes, with pages and RPCs on one port."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.certificates import certificate

from binlake.cluster.placement import EtcdClient, NodeRegistry
from binlake.cluster.pumpclient import PumpReader
from binlake.pump_service.pd import PlacementDriver

pytestmark = pytest.mark.process


@pytest.fixture
def pd(tmp_path: Path) -> Iterator[PlacementDriver]:
    with PlacementDriver(tmp_path / "pd") as driver:
        yield driver


def binlake(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "binlake.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@contextlib.contextmanager
def pump(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A running pump, which has printed its first line."""
    command = [sys.executable, "-m", "binlake.cli", "pump", "--stop-write-at-available-space", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert any(" listens at " in line for line in process.stdout), "it ended before it listened"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_pump_process_is_configured_queried_and_paused(tmp_path: Path, short_path: Path, pd: PlacementDriver) -> None:
    # S0-29, S0-75
    file, socket = tmp_path / "pump.toml", short_path / "pump.sock"
    file.write_text(f"""
addr = "127.0.0.1:0"
node-id = "p1"
data-dir = "{tmp_path / "data"}"
pd-urls = "{pd.url}"
log-file = "{tmp_path / "pump.log"}"
metrics-addr = "gateway:9091"
heartbeat-interval = 0.2
socket = "{socket}"
""")
    with pump("--config", str(file)) as process, contextlib.closing(EtcdClient([pd.url])) as etcd:
        entry = NodeRegistry(etcd).find_pump("p1")
        assert entry is not None
        host = entry.status.host
        assert "p1" in httpx.get(f"http://{host}/status", timeout=60).json()["status"]
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), timeout=60) as local:
            assert "binlog_pump_storage_max_commit_ts" in local.get("http://pump/metrics").text
        assert PumpReader(host, pd.cluster_id).read_info().node_id == "p1"
        listed = binlake("pumps", f"-pd-urls={pd.url}")
        assert listed.stdout.splitlines()[1].split()[:3] == ["p1", host, "online"]
        done = binlake("pause-pump", "-pd-urls", pd.url, "-node-id", "p1")
        assert (done.returncode, done.stderr) == (0, "")
        assert process.wait(120) == 0
        assert NodeRegistry(etcd).list_pumps()[0].state == "paused"
    log = (tmp_path / "pump.log").read_text()
    assert "setting_ignored" in log
    assert "metrics-addr" in log
    unknown = binlake("offline-pump", "-pd-urls", pd.url, "-node-id", "nosuch")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("error: key /tidb-binlog/v1/pumps/nosuch in etcd not found")
    assert unknown.stderr.count("\n") == 1


def test_cluster_with_tls_requires_a_certificate(tmp_path: Path) -> None:
    tls = certificate(tmp_path)
    files = (f"-ssl-ca={tls.ca}", f"-ssl-cert={tls.cert}", f"-ssl-key={tls.key}")
    with PlacementDriver(tmp_path / "pd", tls=tls) as pd:
        assert pd.url.startswith("https://")
        where = ("--addr", "127.0.0.1:0", "--node-id", "p1", "--data-dir", str(tmp_path / "data"), "--pd-urls", pd.url)
        with pump(*where, *files, "-cert-allowed-cn", "binlake") as process:
            done = binlake("pause-pump", "-pd-urls", pd.url, "-node-id", "p1", *files)
            assert (done.returncode, done.stderr) == (0, "")
            assert process.wait(120) == 0


def test_certificate_with_a_plain_pd_address_is_refused(tmp_path: Path, pd: PlacementDriver) -> None:
    tls = certificate(tmp_path)
    files = (f"-ssl-ca={tls.ca}", f"-ssl-cert={tls.cert}", f"-ssl-key={tls.key}")
    for command in (("pump", "--data-dir", str(tmp_path / "data"), "--pd-urls", pd.url), ("pumps", "-pd-urls", pd.url)):
        refused = binlake(*command, *files)
        assert refused.returncode == 1
        assert "error: TLS is configured, but an address of PD is http://" in refused.stderr
