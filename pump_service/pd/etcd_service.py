"""etcd's v3 services over the store: each unary method is one line; watches follow the store's revision.

Open streams are limited (`Streams`): each holds a thread, and calls need threads, too.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from binlake.pump_service.pd.kvstore import KvStore
from binlake.wire import etcd_pb2 as pb
from binlake.wire import etcd_rpc as rpc

STREAMS = 2000
"""Streams open at a time; more are refused, and their clients retry or try another member."""

Stream = Callable[[Iterator[Any], grpc.ServicerContext], Iterator[Any]]
# FileExistsError is a subclass of OSError, so it comes first.
_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (KeyError, grpc.StatusCode.NOT_FOUND),
    (IndexError, grpc.StatusCode.OUT_OF_RANGE),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
    (FileExistsError, grpc.StatusCode.FAILED_PRECONDITION),
    (OSError, grpc.StatusCode.INTERNAL),
)


class EtcdService:
    """KV, Watch and Lease on one store. `streams`: limits the number of streams."""

    def __init__(self, store: KvStore, streams: Streams) -> None:
        self._store = store
        self._streams = streams
        self._closing = threading.Event()

    def build_handlers(self) -> list[grpc.GenericRpcHandler]:
        """The handlers to register at a grpc server."""
        store = self._store
        unary: list[tuple[rpc.Method, Callable[[Any], Any]]] = [
            (rpc.RANGE, store.read_range),
            (rpc.PUT, store.put),
            (rpc.DELETE_RANGE, store.delete_range),
            (rpc.TXN, store.run_txn),
            (rpc.LEASE_GRANT, store.grant),
            (rpc.LEASE_REVOKE, lambda request: store.revoke(request.ID)),
            (rpc.LEASE_TIME_TO_LIVE, store.read_time_to_live),
        ]
        methods = [(method, _build_unary_handler(method, call)) for method, call in unary]
        methods += [(rpc.WATCH, _build_stream_handler(rpc.WATCH, self._streams.wrap(self._watch)))]
        methods += [
            (rpc.LEASE_KEEP_ALIVE, _build_stream_handler(rpc.LEASE_KEEP_ALIVE, self._streams.wrap(self._keep_alive)))
        ]
        methods.sort(key=lambda pair: pair[0].service)
        grouped = itertools.groupby(methods, key=lambda pair: pair[0].service)
        return [
            grpc.method_handlers_generic_handler(service, {method.name: handler for method, handler in group})
            for service, group in grouped
        ]

    def close(self) -> None:
        """End the watches."""
        self._closing.set()
        self._store.wake()

    def _keep_alive(
        self, requests: Iterator[pb.LeaseKeepAliveRequest], _context: grpc.ServicerContext
    ) -> Iterator[pb.LeaseKeepAliveResponse]:
        for request in requests:
            yield self._store.keep_alive(request.ID)

    def _watch(self, requests: Iterator[pb.WatchRequest], context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:
        stream = _WatchStream(self._store)
        if not context.add_callback(stream.end):
            return
        threading.Thread(target=stream.serve, args=(requests,), name="pd-watch", daemon=True).start()
        yield from stream.iterate_answers()
        if self._closing.is_set():
            # UNAVAILABLE, not a normal end: the client should try another member.
            context.abort(grpc.StatusCode.UNAVAILABLE, "the placement driver is stopping")


@dataclass
class _Watching:
    """One watch: its request, and the next revision to send."""

    request: pb.WatchCreateRequest
    since: int


class _WatchStream:
    """One Watch stream with all its watches: the call's own thread sends the answers, another reads the requests."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self._out: list[pb.WatchResponse] = []
        self._watches: dict[int, _Watching] = {}
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._ended = False

    def iterate_answers(self) -> Iterator[pb.WatchResponse]:
        """The responses to send, until the stream or the store ends."""
        while not self._ended and not self._store.closed:
            with self._lock:  # both under one lock, so that a watch is reported as created before its first event
                responses, watches = list(self._out), list(self._watches.items())
                self._out.clear()
            yield from responses
            for watch_id, watching in watches:
                yield from self._read_news(watch_id, watching)
            self._store.wait_until(self._has_news)

    def end(self) -> None:
        """Send no more answers."""
        self._ended = True
        self._store.poke()

    def serve(self, requests: Iterator[pb.WatchRequest]) -> None:
        """Create and cancel watches as the client requests."""
        try:
            for request in requests:
                kind = request.WhichOneof("request_union")
                if kind == "create_request":
                    self._create(request.create_request)
                elif kind == "cancel_request":
                    self._cancel(request.cancel_request.watch_id)
        except grpc.RpcError:
            # The client has disconnected: grpc raises this in the thread that reads its requests.
            return
        finally:
            self.end()

    def _create(self, request: pb.WatchCreateRequest) -> None:
        header = self._store.build_header()
        with self._lock:
            watch_id = request.watch_id or next(i for i in self._ids if i not in self._watches)
            self._watches[watch_id] = _Watching(request, request.start_revision or header.revision + 1)
            self._out.append(pb.WatchResponse(header=header, watch_id=watch_id, created=True))
        self._store.poke()

    def _cancel(self, watch_id: int, reason: str = "", compact_revision: int = 0) -> None:
        with self._lock:
            if self._watches.pop(watch_id, None) is None:
                return
            self._out.append(
                pb.WatchResponse(
                    header=self._store.build_header(),
                    watch_id=watch_id,
                    canceled=True,
                    cancel_reason=reason,
                    compact_revision=compact_revision,
                )
            )
        self._store.poke()

    def _has_news(self) -> bool:
        revision = self._store.revision
        with self._lock:
            return (
                self._ended or bool(self._out) or any(watching.since <= revision for watching in self._watches.values())
            )

    def _read_news(self, watch_id: int, watching: _Watching) -> Iterator[pb.WatchResponse]:
        request = watching.request
        try:
            revision, events = self._store.wait_changes(watching.since, request.key, request.range_end, 0)
        except IndexError as error:
            self._cancel(watch_id, str(error), self._store.compacted + 1)
            return
        watching.since = max(watching.since, revision + 1)
        answered = [_trim_event(event, request) for event in events if _is_wanted(event, request)]
        if answered and not self._is_cancelled(watch_id):
            header = pb.ResponseHeader(revision=revision, member_id=1, raft_term=1)
            yield pb.WatchResponse(header=header, watch_id=watch_id, events=answered)

    def _is_cancelled(self, watch_id: int) -> bool:
        """Whether the watch was cancelled meanwhile; then the cancellation must be its last answer."""
        with self._lock:
            return watch_id not in self._watches


def _is_wanted(event: pb.Event, request: pb.WatchCreateRequest) -> bool:
    unwanted = {pb.Event.PUT: pb.WatchCreateRequest.NOPUT, pb.Event.DELETE: pb.WatchCreateRequest.NODELETE}
    return unwanted[event.type] not in request.filters


def _trim_event(event: pb.Event, request: pb.WatchCreateRequest) -> pb.Event:
    return event if request.prev_kv else pb.Event(type=event.type, kv=event.kv)


def _build_unary_handler(method: rpc.Method, call: Callable[[Any], Any]) -> grpc.RpcMethodHandler[Any, Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request)
        except tuple(kind for kind, _ in _STATUS) as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            # str() of a KeyError quotes its message; clients compare etcd's texts.
            context.abort(status, str(error.args[0]) if isinstance(error, KeyError) else str(error))

    return grpc.unary_unary_rpc_method_handler(answer, method.request.FromString, method.response.SerializeToString)


def _build_stream_handler(method: rpc.Method, call: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.stream_stream_rpc_method_handler(call, method.request.FromString, method.response.SerializeToString)


class Streams:
    """Counts open streams."""

    def __init__(self, limit: int = STREAMS) -> None:
        self._limit = limit
        self._free = threading.BoundedSemaphore(limit)

    def wrap(self, serve: Stream) -> Stream:
        """Wrap `serve` so that a call is refused while too many streams are open."""

        def answer(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            if not self._free.acquire(blocking=False):
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._limit} streams are already open")
            try:
                yield from serve(requests, context)
            finally:
                self._free.release()

        return answer
