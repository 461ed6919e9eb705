"""etcd's v3 services over the store: each method is a line; watches follow the store's revision."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from binlake.wire import etcd_pb2 as pb
from binlake.wire import etcd_rpc as rpc
from pump_service.pd.kvstore import KvStore

_POLL_S = 0.5  # how soon a watch sees that its client went away

# FileExistsError is an OSError: the narrower one comes first.
_STATUS: tuple[tuple[type[Exception], grpc.StatusCode], ...] = (
    (KeyError, grpc.StatusCode.NOT_FOUND),
    (IndexError, grpc.StatusCode.OUT_OF_RANGE),
    (ValueError, grpc.StatusCode.INVALID_ARGUMENT),
    (FileExistsError, grpc.StatusCode.FAILED_PRECONDITION),
    (OSError, grpc.StatusCode.INTERNAL),
)


class EtcdService:
    """KV, Watch and Lease on one store."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self._closing = threading.Event()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What a grpc server registers."""
        store = self._store
        unary: list[tuple[rpc.Method, Callable[[Any], Any]]] = [
            (rpc.RANGE, store.range),
            (rpc.PUT, store.put),
            (rpc.DELETE_RANGE, store.delete_range),
            (rpc.TXN, store.txn),
            (rpc.LEASE_GRANT, store.grant),
            (rpc.LEASE_REVOKE, lambda request: store.revoke(request.ID)),
            (rpc.LEASE_TIME_TO_LIVE, store.time_to_live),
        ]
        methods = [(method, _unary(method, call)) for method, call in unary]
        methods += [(rpc.WATCH, _stream(rpc.WATCH, self._watch))]
        methods += [(rpc.LEASE_KEEP_ALIVE, _stream(rpc.LEASE_KEEP_ALIVE, self._keep_alive))]
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
        stream = _WatchStream(self._store, context, self._closing)
        if not context.add_callback(stream.end):
            return
        threading.Thread(target=stream.serve, args=(requests,), name="pd-watch", daemon=True).start()
        yield from stream.answers()
        if self._closing.is_set():
            # Not the end of a watch: the client is to try another member.
            context.abort(grpc.StatusCode.UNAVAILABLE, "the placement driver is stopping")


class _WatchStream:
    """One Watch stream: its watches run on threads of their own and write into one queue of answers."""

    def __init__(self, store: KvStore, context: grpc.ServicerContext, closing: threading.Event) -> None:
        self._store = store
        self._context = context
        self._closing = closing
        self._out: queue.SimpleQueue[pb.WatchResponse | None] = queue.SimpleQueue()
        self._running: dict[int, threading.Event] = {}
        self._ids = itertools.count(1)

    def answers(self) -> Iterator[pb.WatchResponse]:
        """What to send, until the stream ends."""
        yield from iter(self._out.get, None)

    def end(self) -> None:
        """No more answers."""
        self._out.put(None)

    def serve(self, requests: Iterator[pb.WatchRequest]) -> None:
        """Begin and cancel watches as the client asks."""
        try:
            for request in requests:
                kind = request.WhichOneof("request_union")
                if kind == "create_request":
                    self._create(request.create_request)
                elif kind == "cancel_request" and request.cancel_request.watch_id in self._running:
                    self._running.pop(request.cancel_request.watch_id).set()
        except grpc.RpcError:
            # The client went away: grpc tells a reader of its requests so.
            return
        finally:
            for stopped in self._running.values():
                stopped.set()

    def _create(self, request: pb.WatchCreateRequest) -> None:
        watch_id = request.watch_id or next(i for i in self._ids if i not in self._running)
        stopped = self._running[watch_id] = threading.Event()
        header = self._store.header()
        self._out.put(pb.WatchResponse(header=header, watch_id=watch_id, created=True))
        since = request.start_revision or header.revision + 1
        threading.Thread(target=self._follow, args=(watch_id, request, since, stopped), daemon=True).start()

    def _follow(self, watch_id: int, request: pb.WatchCreateRequest, since: int, stopped: threading.Event) -> None:
        while self._context.is_active() and not stopped.is_set():
            if self._closing.is_set():
                self.end()
                return
            try:
                revision, events = self._store.wait_changes(since, request.key, request.range_end, _POLL_S)
            except IndexError as error:
                self._out.put(self._canceled(watch_id, str(error), self._store.compacted + 1))
                return
            since = max(since, revision + 1)
            shown = [_shown(event, request) for event in events if _wanted(event, request)]
            if shown:
                header = pb.ResponseHeader(revision=revision, member_id=1, raft_term=1)
                self._out.put(pb.WatchResponse(header=header, watch_id=watch_id, events=shown))
        self._out.put(self._canceled(watch_id))

    def _canceled(self, watch_id: int, reason: str = "", compact_revision: int = 0) -> pb.WatchResponse:
        return pb.WatchResponse(
            header=self._store.header(),
            watch_id=watch_id,
            canceled=True,
            cancel_reason=reason,
            compact_revision=compact_revision,
        )


def _wanted(event: pb.Event, request: pb.WatchCreateRequest) -> bool:
    unwanted = {pb.Event.PUT: pb.WatchCreateRequest.NOPUT, pb.Event.DELETE: pb.WatchCreateRequest.NODELETE}
    return unwanted[event.type] not in request.filters


def _shown(event: pb.Event, request: pb.WatchCreateRequest) -> pb.Event:
    return event if request.prev_kv else pb.Event(type=event.type, kv=event.kv)


def _unary(method: rpc.Method, call: Callable[[Any], Any]) -> grpc.RpcMethodHandler[Any, Any]:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request)
        except tuple(kind for kind, _ in _STATUS) as error:
            status = next(status for kind, status in _STATUS if isinstance(error, kind))
            # str() of a KeyError quotes its message; clients compare etcd's texts.
            context.abort(status, str(error.args[0]) if isinstance(error, KeyError) else str(error))

    return grpc.unary_unary_rpc_method_handler(answer, method.request.FromString, method.response.SerializeToString)


def _stream(method: rpc.Method, call: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.stream_stream_rpc_method_handler(call, method.request.FromString, method.response.SerializeToString)
