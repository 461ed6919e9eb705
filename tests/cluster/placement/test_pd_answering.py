"""PD counts as available only if it gives timestamps; giving the cluster's id is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import grpc
import pytest

from binlake.cluster.placement import EtcdClient, PdClient, is_pd_reachable
from binlake.config.servers import SourceSection
from binlake.errors import Permanent, SourceUnavailable
from binlake.wire import pd_pb2 as pb
from binlake.wire.pd_pb2_grpc import PDServicer, add_PDServicer_to_server

NOT_READY = pb.ResponseHeader(cluster_id=7, error=pb.Error(type=pb.NOT_BOOTSTRAPPED, message="not bootstrapped"))
FOLLOWER = pb.ResponseHeader(cluster_id=7)


class Leaderless(PDServicer):
    """Answers as a member of a PD without a leader."""

    def __init__(self, header: pb.ResponseHeader) -> None:
        self.header = header

    def GetMembers(self, request: pb.GetMembersRequest, context: grpc.ServicerContext) -> pb.GetMembersResponse:  # noqa: ARG002
        members = [pb.Member(name=f"pd-{number}", member_id=number) for number in (1, 2, 3)]
        return pb.GetMembersResponse(header=self.header, members=members)

    def Tso(self, requests: Iterator[pb.TsoRequest], context: grpc.ServicerContext) -> Iterator[pb.TsoResponse]:
        next(requests)
        context.abort(grpc.StatusCode.UNKNOWN, "not leader")
        yield pb.TsoResponse()


@pytest.fixture
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_PDServicer_to_server(Leaderless(request.param), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"http://127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize("url", [NOT_READY, FOLLOWER], indirect=True, ids=["not-bootstrapped", "no-leader"])
def test_pd_without_a_leader_is_unavailable(url: str) -> None:
    # S3-10
    assert not is_pd_reachable(SourceSection.model_validate({"pd-urls": [url], "timeout-s": 5}))


@pytest.mark.parametrize("url", [NOT_READY], indirect=True)
def test_error_in_the_members_header_is_reported(url: str) -> None:
    pd = PdClient([url], 5)
    try:
        with pytest.raises(SourceUnavailable, match="not bootstrapped"):
            pd.fetch_cluster_id()
    finally:
        pd.close()


@pytest.mark.parametrize("url", [FOLLOWER], indirect=True)
def test_no_thread_polls_the_state_of_a_channel(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Closing a channel waits for such a thread, which pauses for 0.2 s: each plan and each land did.
    monkeypatch.setattr("grpc._channel._spawn_poll_connectivity", lambda *_: pytest.fail("the channel is polled"))
    registry = EtcdClient([url], 5)
    pd = PdClient([url], 5)
    with closing(registry), closing(pd):
        assert pd.fetch_cluster_id() == 7
        with pytest.raises(Permanent):
            registry.get(b"key")
