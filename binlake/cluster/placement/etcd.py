"""An etcd v3 client with the calls that a registry needs, for PD's etcd, a plain etcd and the embedded PD."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import grpc

from binlake.cluster.placement.channel import build_unavailable_error, call_error, connect_serving
from binlake.errors import BinlakeError, LostRange, SourceUnavailable
from binlake.rpc import Tls
from binlake.wire import etcd_pb2 as pb
from binlake.wire import etcd_rpc as rpc

KeyValue = pb.KeyValue


def compute_prefix_end(prefix: bytes) -> bytes:
    """The range_end that makes a range of all keys starting with `prefix`."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\0"


class EtcdClient:
    """Thread-safe. Connects at the first call, and again after a lost connection, to the first URL that serves a
    linearizable read.

    Calls raise SourceUnavailable, or Permanent if the server refuses. After SourceUnavailable a write may or may not
    have been done: a caller that must know has to read again.
    """

    def __init__(self, urls: Sequence[str], timeout_s: float = 5.0, *, tls: Tls | None = None) -> None:
        self._urls = list(urls)
        self._tls = tls
        self._timeout_s = timeout_s
        self._channel: grpc.Channel | None = None
        self._lock = threading.Lock()

    def get(self, key: bytes) -> pb.KeyValue | None:
        """The entry of `key`, or None."""
        entries = self.read_range(pb.RangeRequest(key=key)).kvs
        return entries[0] if entries else None

    def read_prefix(self, prefix: bytes) -> tuple[list[pb.KeyValue], int]:
        """The entries below `prefix` by key, and their revision (linearizable)."""
        answer = self.read_range(
            pb.RangeRequest(key=prefix, range_end=compute_prefix_end(prefix), sort_order=pb.RangeRequest.ASCEND)
        )
        return list(answer.kvs), answer.header.revision

    def read_range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        """KV.Range."""
        answer: pb.RangeResponse = self._call(rpc.RANGE, request)
        return answer

    def put(self, key: bytes, value: bytes, lease: int = 0) -> int:
        """KV.Put; returns the revision."""
        revision: int = self._call(rpc.PUT, pb.PutRequest(key=key, value=value, lease=lease)).header.revision
        return revision

    def delete(self, key: bytes, range_end: bytes = b"") -> int:
        """KV.DeleteRange; returns the number of deleted keys."""
        deleted: int = self._call(rpc.DELETE_RANGE, pb.DeleteRangeRequest(key=key, range_end=range_end)).deleted
        return deleted

    def run_transaction(
        self,
        compare: Iterable[pb.Compare],
        success: Iterable[pb.RequestOp],
        failure: Iterable[pb.RequestOp] = (),
    ) -> pb.TxnResponse:
        """KV.Txn."""
        request = pb.TxnRequest(compare=compare, success=success, failure=failure)
        answer: pb.TxnResponse = self._call(rpc.TXN, request)
        return answer

    def put_if(self, key: bytes, value: bytes, *, mod_revision: int, lease: int = 0) -> bool:
        """Put `key` only if its ModRevision is `mod_revision` (0 = it does not exist); True if done."""
        compare = pb.Compare(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=mod_revision)
        put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
        return self.run_transaction([compare], [put]).succeeded

    def watch(self, prefix: bytes, start_revision: int = 0) -> EtcdWatch:
        """Watch changes below `prefix`, from `start_revision` on (0 = from now)."""
        return EtcdWatch(self._open(), self._urls, prefix, start_revision, self._timeout_s)

    def grant_lease(self, ttl_s: int, lease_id: int = 0) -> int:
        """Lease.LeaseGrant; returns the lease's id."""
        granted: int = self._call(rpc.LEASE_GRANT, pb.LeaseGrantRequest(TTL=ttl_s, ID=lease_id)).ID
        return granted

    def revoke_lease(self, lease_id: int) -> None:
        """Lease.LeaseRevoke, which also deletes the keys of the lease."""
        self._call(rpc.LEASE_REVOKE, pb.LeaseRevokeRequest(ID=lease_id))

    def keep_lease_alive(self, lease_id: int) -> int:
        """One round of Lease.LeaseKeepAlive; returns the seconds left, 0 or less if the lease has ended."""
        method, channel = rpc.LEASE_KEEP_ALIVE, self._open()
        call = channel.stream_stream(
            method.path, request_serializer=_serialize, response_deserializer=method.response.FromString
        )
        try:
            answer = next(call(iter([pb.LeaseKeepAliveRequest(ID=lease_id)]), timeout=self._timeout_s))
        except grpc.RpcError as error:
            raise self._handle_failure(channel, error) from None
        ttl: int = answer.TTL
        return ttl

    def close(self) -> None:
        """Close the connection; the client can be used again."""
        with self._lock:
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    def _open(self) -> grpc.Channel:
        with self._lock:
            if self._channel is None:
                self._channel, _ = connect_serving(self._urls, self._timeout_s, self._check_serving, self._tls)
            return self._channel

    def _check_serving(self, channel: grpc.Channel) -> None:
        if len(self._urls) == 1:
            return  # there is no other URL: the call itself will show whether it serves
        read = channel.unary_unary(
            rpc.RANGE.path, request_serializer=_serialize, response_deserializer=rpc.RANGE.response.FromString
        )
        try:
            read(pb.RangeRequest(key=b"\0", keys_only=True), timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise call_error(self._urls, error) from None

    def _call(self, method: rpc.Method, request: Any) -> Any:
        channel = self._open()
        call = channel.unary_unary(
            method.path, request_serializer=_serialize, response_deserializer=method.response.FromString
        )
        try:
            return call(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._handle_failure(channel, error) from None
        except ValueError:
            # grpc raises this if another thread has closed the channel.
            raise build_unavailable_error(self._urls, "the connection was closed") from None

    def _handle_failure(self, channel: grpc.Channel, error: grpc.RpcError) -> BinlakeError:
        failure = call_error(self._urls, error)
        with self._lock:
            # Calls and watches of other threads may still work, or end with their own errors.
            if isinstance(failure, SourceUnavailable) and self._channel is channel:
                self._channel = None
        return failure


class EtcdWatch:
    """A running watch: iterate over it for (revision, event); `cancel` ends it."""

    def __init__(
        self, channel: grpc.Channel, urls: Sequence[str], prefix: bytes, start_revision: int, timeout_s: float
    ) -> None:
        create = pb.WatchCreateRequest(key=prefix, range_end=compute_prefix_end(prefix), start_revision=start_revision)
        self._urls = urls
        self._ended = threading.Event()
        stream = channel.stream_stream(
            rpc.WATCH.path, request_serializer=_serialize, response_deserializer=pb.WatchResponse.FromString
        )
        self._call = stream(self._iterate_requests(pb.WatchRequest(create_request=create)))
        self._first = self._await_created(timeout_s)

    def cancel(self) -> None:
        """End the watch; iteration stops."""
        self._ended.set()
        self._call.cancel()

    def __iter__(self) -> Iterator[tuple[int, pb.Event]]:
        """(revision, event) in order, until `cancel`.

        Raises SourceUnavailable if the connection is lost, LostRange if the start revision has been compacted.
        """
        try:
            for answer in itertools.chain([self._first], self._call):
                if answer.canceled:
                    raise self._cancel_error(answer)
                for event in answer.events:
                    yield event.kv.mod_revision, event
        except grpc.RpcError as error:
            if not self._ended.is_set():
                raise call_error(self._urls, error) from None
            return
        if not self._ended.is_set():
            raise build_unavailable_error(self._urls, "the watch ended")

    def _cancel_error(self, answer: pb.WatchResponse) -> BinlakeError:
        if not answer.compact_revision:
            return build_unavailable_error(
                self._urls, f"the watch was cancelled: {answer.cancel_reason or 'no reason given'}"
            )
        return LostRange(
            "the watch would begin at a revision that the server no longer has",
            where={"compact_revision": answer.compact_revision},
            hint="list the keys again and watch from that revision",
        )

    def _await_created(self, timeout_s: float) -> pb.WatchResponse:
        timer = threading.Timer(timeout_s, self._call.cancel)
        timer.start()
        try:
            first: pb.WatchResponse = next(self._call)
        except grpc.RpcError as error:
            raise call_error(self._urls, error) from None
        except StopIteration:
            raise build_unavailable_error(self._urls, "the watch ended") from None
        finally:
            timer.cancel()
        return first

    def _iterate_requests(self, first: pb.WatchRequest) -> Iterator[pb.WatchRequest]:
        yield first
        # Our side of the stream must stay open as long as the watch runs.
        self._ended.wait()


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
