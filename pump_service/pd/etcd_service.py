"""etcd's v3 services over the store: each method is a line; watches follow the store's revision."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import grpc

from binlake.wire import etcd_pb2 as pb
from binlake.wire import etcd_rpc as rpc
from pump_service.pd.kvstore import KvStore


class EtcdService:
    """KV, Watch and Lease on one store."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self._closing = threading.Event()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What a grpc server registers."""
        store = self._store
        unary = [
            (rpc.RANGE, store.range),
            (rpc.PUT, store.put),
            (rpc.DELETE_RANGE, store.delete_range),
            (rpc.TXN, store.txn),
            (rpc.LEASE_GRANT, store.grant),
            (rpc.LEASE_REVOKE, self._revoke),
            (rpc.LEASE_TIME_TO_LIVE, lambda request: store.time_to_live(request.ID)),
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
        """End the streams."""
        self._closing.set()

    def _revoke(self, request: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        self._store.revoke(request.ID)
        return pb.LeaseRevokeResponse(header=self._store.header())

    def _keep_alive(
        self, requests: Iterator[pb.LeaseKeepAliveRequest], _context: grpc.ServicerContext
    ) -> Iterator[pb.LeaseKeepAliveResponse]:
        for request in requests:
            ttl = self._store.keep_alive(request.ID)
            yield pb.LeaseKeepAliveResponse(header=self._store.header(), ID=request.ID, TTL=ttl)

    def _watch(self, requests: Iterator[pb.WatchRequest], context: grpc.ServicerContext) -> Iterator[pb.WatchResponse]:
        out: queue.SimpleQueue[pb.WatchResponse | None] = queue.SimpleQueue()
        context.add_callback(lambda: out.put(None))
        threading.Thread(target=self._serve_watches, args=(requests, context, out), daemon=True).start()
        yield from iter(out.get, None)

    def _serve_watches(
        self,
        requests: Iterator[pb.WatchRequest],
        context: grpc.ServicerContext,
        out: queue.SimpleQueue[pb.WatchResponse | None],
    ) -> None:
        running: dict[int, threading.Event] = {}
        ids = itertools.count(1)
        try:
            for request in requests:
                kind = request.WhichOneof("request_union")
                if kind == "create_request":
                    watch_id = request.create_request.watch_id or next(ids)
                    running[watch_id] = threading.Event()
                    arguments = (watch_id, request.create_request, running[watch_id], context, out)
                    threading.Thread(target=self._follow, args=arguments, daemon=True).start()
                elif kind == "cancel_request" and request.cancel_request.watch_id in running:
                    running.pop(request.cancel_request.watch_id).set()
        except grpc.RpcError:
            # The client went away: grpc tells a reader of its requests so.
            return
        finally:
            for stopped in running.values():
                stopped.set()

    def _follow(
        self,
        watch_id: int,
        request: pb.WatchCreateRequest,
        stopped: threading.Event,
        context: grpc.ServicerContext,
        out: queue.SimpleQueue[pb.WatchResponse | None],
    ) -> None:
        store = self._store
        following = request.start_revision or store.revision + 1
        out.put(pb.WatchResponse(header=store.header(), watch_id=watch_id, created=True))
        if following <= store.compacted:
            out.put(_compacted(store, watch_id))
            return
        while context.is_active() and not stopped.is_set() and not self._closing.is_set():
            if not store.wait_beyond(following - 1, 0.5):
                continue
            header, events = store.header(), store.events_since(following, request.key, request.range_end)
            following = header.revision + 1
            events = [event for event in events if event.kv.mod_revision <= header.revision and _wanted(event, request)]
            if events:
                out.put(pb.WatchResponse(header=header, watch_id=watch_id, events=events))
        out.put(pb.WatchResponse(header=store.header(), watch_id=watch_id, canceled=True))


def _wanted(event: pb.Event, request: pb.WatchCreateRequest) -> bool:
    unwanted = {pb.Event.PUT: pb.WatchCreateRequest.NOPUT, pb.Event.DELETE: pb.WatchCreateRequest.NODELETE}
    return unwanted[event.type] not in request.filters


def _compacted(store: KvStore, watch_id: int) -> pb.WatchResponse:
    reason = "etcdserver: mvcc: required revision has been compacted"
    return pb.WatchResponse(header=store.header(), watch_id=watch_id, canceled=True, cancel_reason=reason,
                            compact_revision=store.compacted + 1)  # fmt: skip


def _unary(method: rpc.Method, call: Any) -> grpc.RpcMethodHandler:
    def answer(request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return call(request)
        except KeyError:
            context.abort(grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found")
        except ValueError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    return grpc.unary_unary_rpc_method_handler(answer, method.request.FromString, method.response.SerializeToString)


def _stream(method: rpc.Method, call: Any) -> grpc.RpcMethodHandler:
    return grpc.stream_stream_rpc_method_handler(call, method.request.FromString, method.response.SerializeToString)
