"""A pump with `[security]`: RPC and pages only by TLS, for allowed names; and a Unix socket in addition."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path

import grpc
import httpx
import pytest
from pump_cluster import CLUSTER_ID, MemoryCluster
from pump_helpers import MakePump
from support.certificates import Authority, trust_another

from binlake.cluster.placement import NodeStatus
from binlake.cluster.pumpclient import PumpReader
from binlake.errors import SourceUnavailable
from binlake.pump_service.pump.config import TlsFiles
from binlake.rpc import Channel
from binlake.spark_jobs.land.binlogfiles import LargeFiles
from binlake.spark_jobs.land.pump_source import pull_batches


def test_a_secure_pump_serves_only_allowed_names(
    build_pump: MakePump, cluster: MemoryCluster, tmp_path: Path, short_path: Path
) -> None:
    # tidb-binlog 1.5, 2.12
    authority = Authority(tmp_path)
    own, drainer = authority.tls("pump"), authority.tls("drainer")
    socket = short_path / "pump.sock"
    tls = TlsFiles(str(own.ca), str(own.cert), str(own.key), ("pump", "drainer"))
    pump = build_pump(addr="localhost:0", tls=tls, socket=str(socket))
    reader = PumpReader(pump.addr, CLUSTER_ID, tls=drainer)
    assert reader.read_info().node_id == "pump1"
    assert next(reader.pull(0))[0] <= cluster.fetch_ts()
    assert (
        httpx.get(f"https://{pump.addr}/status", verify=drainer.build_client_context(), timeout=60).status_code == 200
    )
    assert [batch["kind"].to_pylist() for batch in pull_batches("p", reader, 0, 1, LargeFiles(""))] == [["proof"]]
    for other in (authority.tls("stranger"), None, trust_another(drainer, tmp_path / "another")):
        with pytest.raises(SourceUnavailable):
            PumpReader(pump.addr, CLUSTER_ID, tls=other, timeout_s=3).read_info()
    with Channel(f"unix:{socket}") as channel:
        assert channel.call("/grpc.health.v1.Health/Check", b"", 10) == b"\x08\x01"
    pump.stop()
    again = build_pump(addr="localhost:0", tls=tls)  # it finds its own entry, and no pump at the old address
    assert again.node_id == "pump1"


def test_an_online_drainer_of_a_tls_cluster_is_notified_by_tls(
    build_pump: MakePump, cluster: MemoryCluster, tmp_path: Path
) -> None:  # S0-57, U-31
    authority = Authority(tmp_path)
    own, drainer = authority.tls("pump"), authority.tls("drainer")
    notified: list[str] = []

    def notify(_: bytes, context: grpc.ServicerContext) -> bytes:
        notified.append(context.auth_context()["x509_common_name"][0].decode())
        return b""

    server = grpc.server(futures.ThreadPoolExecutor(2))
    handler = grpc.unary_unary_rpc_method_handler(notify)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("binlog.Cistern", {"Notify": handler}),))
    assert drainer.ca and drainer.cert and drainer.key  # noqa: PT018
    credentials = grpc.ssl_server_credentials(
        [(drainer.key.read_bytes(), drainer.cert.read_bytes())], drainer.ca.read_bytes(), require_client_auth=True
    )
    port = server.add_secure_port("localhost:0", credentials)
    server.start()
    cluster.consumers = [NodeStatus("drainer", f"localhost:{port}", "online")]
    pump = build_pump(addr="localhost:0", tls=TlsFiles(str(own.ca), str(own.cert), str(own.key)))
    assert notified == ["pump"]
    assert pump.service.state == "online"
    server.stop(None).wait()
