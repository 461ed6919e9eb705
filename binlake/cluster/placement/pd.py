"""The placement driver: PD's own API (cluster id and timestamps, from the leader), opened with its registry.

docs/reference/formats.md 1.10. An embedded PD also has a clock that a replay controls (proto/binlake/wire/clock.proto).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import structlog

from binlake import tso as oracle
from binlake.cluster.placement.channel import build_unavailable_error, call_error, connect, connect_serving
from binlake.cluster.placement.etcd import EtcdClient
from binlake.cluster.placement.registry import NodeRegistry
from binlake.errors import ConfigError, Permanent, SourceUnavailable
from binlake.rpc import Tls
from binlake.wire import pd_pb2 as pb
from binlake.wire.clock_pb2 import LeadReq, LeadResp
from binlake.wire.clock_pb2_grpc import ClockStub
from binlake.wire.pd_pb2_grpc import PDStub

if TYPE_CHECKING:
    from binlake.config.servers import SourceSection

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Placement:
    """PD's own API, the registry in its etcd, and `tls`, which also applies to pumps."""

    pd: PdClient
    registry: NodeRegistry
    tls: Tls | None


@contextmanager
def open_placement(source: SourceSection) -> Iterator[Placement]:
    """PD of `source`; any cluster other than `source.cluster-id` is refused. Each part connects at its first call."""
    expected = source.expected_cluster or None
    tls = Tls.of(*source.security.list_files())
    with (
        closing(PdClient(source.pd_urls, source.timeout_s, expected, tls=tls)) as pd,
        closing(EtcdClient(source.pd_urls, source.timeout_s, tls=tls)) as etcd,
    ):
        yield Placement(pd, NodeRegistry(etcd), tls)


def is_pd_reachable(source: SourceSection) -> bool:
    """Whether PD of `source` gives a timestamp (S3-10). Raises Permanent if it belongs to another cluster.

    Giving the cluster's id is not enough: a member of a PD without a leader still does, but no window can be planned.
    """
    try:
        with open_placement(source) as placement:
            placement.pd.fetch_ts()
    except SourceUnavailable as error:
        log.info("pd_unreachable", reason=str(error))
        return False
    return True


class PdClient:
    """Timestamps of one cluster; thread-safe. With `cluster_id`, any other cluster is refused. `tls`: for https://.

    Once the cluster is known, the client also refuses a PD of another cluster that appears at the same URLs.
    """

    def __init__(
        self, urls: Sequence[str], timeout_s: float = 10.0, cluster_id: int | None = None, *, tls: Tls | None = None
    ) -> None:
        self._urls = list(urls)
        self._tls = tls
        self._timeout_s = timeout_s
        self._expected = cluster_id
        self._known: int | None = None
        self._channel: grpc.Channel | None = None
        self._stream: _TsoStream | None = None
        self._lock = threading.RLock()

    def fetch_cluster_id(self) -> int:
        """The cluster's id. Raises SourceUnavailable, or Permanent if it is not the expected one."""
        with self._lock:
            if self._known is None:
                self._connect()
            assert self._known is not None
            return self._known

    def fetch_ts(self, count: int = 1) -> int:
        """A fresh timestamp, the last of a batch of `count`.

        Raises SourceUnavailable; Permanent for another cluster or a count that PD refuses.
        """
        with self._lock:
            stream = self._stream
            # A restart of PD may have ended the old stream; only a newly opened one shows whether PD serves.
            fresh = len(self._urls)
            while True:
                try:
                    return self._ask(count)
                except SourceUnavailable:
                    self._urls.append(self._urls.pop(0))  # another member may serve
                    if stream is None or not stream.broke:
                        fresh -= 1
                    if fresh <= 0:
                        raise
                    stream = None

    def close(self) -> None:
        """Close the connections; the client can be used again."""
        with self._lock:
            self._disconnect()

    def _ask(self, count: int) -> int:
        stream = self._stream or self._connect()
        try:
            return stream.ask(count, self._timeout_s)
        except queue.Empty:
            self._disconnect()
            raise build_unavailable_error(self._urls, f"no timestamp within {self._timeout_s:g} s") from None
        except grpc.RpcError as error:
            self._disconnect()
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise _build_other_cluster_error(self._urls, error.details() or "") from None
            raise call_error(self._urls, error) from None
        except _StreamEnded as error:
            self._disconnect()
            raise build_unavailable_error(self._urls, error) from None

    def _connect(self) -> _TsoStream:
        self._disconnect()
        channel, answer = connect_serving(self._urls, self._timeout_s, self._fetch_members, self._tls)
        cluster_id = answer.header.cluster_id
        expected = self._known if self._expected is None else self._expected
        if expected is not None and expected != cluster_id:
            channel.close()
            raise _build_other_cluster_error(self._urls, f"cluster id {cluster_id}, expected {expected}")
        self._known = cluster_id
        self._channel = self._open_leader(channel, answer)
        self._stream = _TsoStream(self._channel, cluster_id)
        return self._stream

    def _fetch_members(self, channel: grpc.Channel) -> pb.GetMembersResponse:
        try:
            answer: pb.GetMembersResponse = PDStub(channel).GetMembers(pb.GetMembersRequest(), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise call_error(self._urls, error) from None
        if answer.header.error.type != pb.OK:
            raise build_unavailable_error(self._urls, answer.header.error.message or "it is not ready")
        return answer

    def _open_leader(self, channel: grpc.Channel, answer: pb.GetMembersResponse) -> grpc.Channel:
        # A single PD is the leader, whatever address it advertises.
        if len(answer.members) <= 1 or not answer.leader.client_urls:
            return channel
        channel.close()
        return connect(list(answer.leader.client_urls), self._timeout_s, self._tls)

    def _disconnect(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._channel is not None:
            self._channel.close()
        self._stream = self._channel = None


def _build_other_cluster_error(urls: Sequence[str], reason: str) -> Permanent:
    return Permanent(
        f"PD belongs to another cluster: {reason}",
        where={"pd-urls": ",".join(urls)},
        hint="correct `source.pd-urls` or `source.cluster-id`",
    )


class _StreamEnded(Exception):
    """The stream has ended, or PD answered with an error inside the message."""


class _TsoStream:
    """One Tso stream. Requests are sent one at a time; a thread receives the answers, so that waiting can time out."""

    def __init__(self, channel: grpc.Channel, cluster_id: int) -> None:
        self._header = pb.RequestHeader(cluster_id=cluster_id)
        self._requests: queue.SimpleQueue[pb.TsoRequest | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[pb.TsoResponse | Exception] = queue.SimpleQueue()
        self._call = PDStub(channel).Tso(iter(self._requests.get, None))
        self.broke = False
        self._closed = False
        threading.Thread(target=self._receive, name="pd-tso", daemon=True).start()

    def ask(self, count: int, timeout_s: float) -> int:
        """Raises queue.Empty after `timeout_s`, the stream's RpcError, _StreamEnded."""
        self._requests.put(pb.TsoRequest(header=self._header, count=count))
        answer = self._answers.get(timeout=timeout_s)
        if isinstance(answer, Exception):
            raise answer
        if answer.header.error.type != pb.OK:
            raise _StreamEnded(answer.header.error.message)
        return oracle.compose(answer.timestamp.physical, answer.timestamp.logical)

    def close(self) -> None:
        self._closed = True
        self._requests.put(None)
        self._call.cancel()

    def _receive(self) -> None:
        try:
            for answer in self._call:
                self._answers.put(answer)
            end: Exception = _StreamEnded("PD ended the stream")
        except grpc.RpcError as error:
            end = error
        self.broke = not self._closed
        self._answers.put(end)


class ClockClient:
    """Thread-safe.

    Raises SourceUnavailable; ConfigError for a bound that PD has passed, and for a PD whose clock cannot be led (a real
    one).
    """

    def __init__(self, urls: Sequence[str], timeout_s: float = 10.0) -> None:
        self._urls = list(urls)
        self._timeout_s = timeout_s
        self._channel = connect(urls, timeout_s)
        self._stub = ClockStub(self._channel)

    def lead(self, bound: int) -> int:
        """Keep all timestamps below `bound` from now on; returns the last timestamp given so far."""
        return self._send(LeadReq(ts=bound, hold=True))

    def release(self) -> int:
        """Let the clock continue at real pace; returns the last timestamp given so far."""
        return self._send(LeadReq(hold=False))

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def _send(self, request: LeadReq) -> int:
        try:
            answer: LeadResp = self._stub.Lead(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                raise ConfigError(
                    error.details() or "the clock cannot be led", where={"pd-urls": ",".join(self._urls)}
                ) from None
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise ConfigError(
                    "the clock of this PD is not led",
                    where={"pd-urls": ",".join(self._urls)},
                    hint="a capture is replayed into a fresh `binlake pd --led --start-ts TS`",
                ) from None
            raise call_error(self._urls, error) from None
        return answer.ts
