"""Several PD URLs: if the first connects but cannot serve, another is used; configured TLS is never skipped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from support.certificates import Authority

from binlake.cluster.placement import EtcdClient, PdClient
from binlake.errors import ConfigError, SourceUnavailable
from binlake.pump_service.pd import PlacementDriver
from binlake.wire import etcd_rpc as rpc
from binlake.wire import pd_pb2 as pb
from binlake.wire.pd_pb2_grpc import PDServicer, add_PDServicer_to_server


class Useless(PDServicer):
    """A member that accepts connections but does not serve clock and keys; `members`: whether it lists the members."""

    def __init__(self, *, members: bool) -> None:
        self.members = members
        self.ended = threading.Event()

    def GetMembers(self, request: pb.GetMembersRequest, context: grpc.ServicerContext) -> pb.GetMembersResponse:  # noqa: ARG002
        if not self.members:
            context.abort(grpc.StatusCode.UNAVAILABLE, "no leader")
        return pb.GetMembersResponse(header=pb.ResponseHeader(cluster_id=7))

    def Tso(self, requests: Iterator[pb.TsoRequest], context: grpc.ServicerContext) -> Iterator[pb.TsoResponse]:
        next(requests)
        context.abort(grpc.StatusCode.UNAVAILABLE, "no leader")
        yield pb.TsoResponse()


def _hang(servicer: Useless) -> grpc.GenericRpcHandler:
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: servicer.ended.wait(300) and b"")
    return grpc.method_handlers_generic_handler(rpc.RANGE.service, {rpc.RANGE.name: handler})


@pytest.fixture(params=[True, False], ids=["without a leader", "without members"])
def useless(request: pytest.FixtureRequest) -> Iterator[str]:
    servicer = Useless(members=request.param)
    server = grpc.server(ThreadPoolExecutor(8))
    add_PDServicer_to_server(servicer, server)
    server.add_generic_rpc_handlers((_hang(servicer),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    servicer.ended.set()
    server.stop(None).wait()


@pytest.mark.long
def test_next_url_is_used_if_the_first_only_connects(useless: str, tmp_path: Path) -> None:
    with PlacementDriver(tmp_path, cluster_id=7) as driver:
        urls = [useless, driver.url]
        with closing(PdClient(urls, 20)) as pd, closing(EtcdClient(urls, 2)) as etcd:
            assert pd.fetch_cluster_id() == 7
            assert 0 < pd.fetch_ts() < pd.fetch_ts()
            etcd.put(b"k", b"1")
            found = etcd.get(b"k")
            assert found is not None
            assert found.value == b"1"
            assert etcd.grant_lease(60) > 0


@pytest.mark.long
def test_last_reason_is_reported_if_no_url_serves(useless: str) -> None:
    with closing(PdClient([useless, useless], 5)) as pd, pytest.raises(SourceUnavailable, match="no leader"):
        pd.fetch_ts()


def test_tls_with_a_plain_address_is_refused(tmp_path: Path) -> None:
    tls = Authority(tmp_path).tls("pump")
    for urls in (["http://127.0.0.1:1"], ["https://127.0.0.1:1", "127.0.0.1:2"]):
        with closing(PdClient(urls, 1, tls=tls)) as pd, pytest.raises(ConfigError, match="an address of PD is http://"):
            pd.fetch_ts()
        with closing(EtcdClient(urls, 1, tls=tls)) as etcd, pytest.raises(ConfigError, match="https://"):
            etcd.get(b"k")
