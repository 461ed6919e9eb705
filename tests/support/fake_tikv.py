"""An in-memory TiKV with its PD: regions with epochs and leaders, locks, write records and GC, as in TiKV 7.5.

The status of a transaction is checked as TiKV does it: an expired lock is rolled back with a record, a missing lock
only on request, a lock of an async commit never. Served over grpcio, or over `binlake.rpc` where speed matters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

import grpc

from binlake import tso
from binlake.cluster.source.regions import encode_key
from binlake.rpc import Call, RpcServer, Tls
from binlake.wire import pd_pb2 as pd
from binlake.wire import tikv_pb2 as pb

CLUSTER_ID = 7710533641674055416
ROLLBACK = 3


@dataclass
class Lock:
    """A lock of `start_ts` that lives for `ttl_ms`. An empty `primary` means that the key is its own primary."""

    start_ts: int
    ttl_ms: int = 3000
    primary: bytes = b""
    async_commit: bool = False


@dataclass
class Write:
    """A write record; `kind` 0 is a put, 1 a delete, 3 a rollback."""

    start_ts: int
    commit_ts: int
    kind: int = 0
    overlapped: bool = False


@dataclass(frozen=True)
class Region:
    """Raw keys from `start` up to, not including, `end`; `store` is the leader."""

    id: int
    start: bytes = b""
    end: bytes = b""
    version: int = 1
    store: int = 1

    def wire(self) -> pb.Region:
        return pb.Region(
            id=self.id,
            start_key=encode_key(self.start) if self.start else b"",
            end_key=encode_key(self.end) if self.end else b"",
            region_epoch=pb.RegionEpoch(conf_ver=1, version=self.version),
            peers=[pb.Peer(id=10 * self.id + store, store_id=store) for store in (1, 2)],
        )

    def peer(self, store: int) -> pb.Peer:
        return pb.Peer(id=10 * self.id + store, store_id=store)


@dataclass
class FakeTikv:
    """Two stores and a PD. `stale`: PD's answers that differ from the truth; `busy`: how many requests to refuse next.

    `asked`: the requests that TiKV received, in order.
    """

    regions: list[Region] = field(default_factory=lambda: [Region(1)])
    stale: list[Region] = field(default_factory=list)
    locks: dict[bytes, Lock] = field(default_factory=dict)
    writes: dict[bytes, list[Write]] = field(default_factory=dict)
    safe_point: int = 0
    services: dict[bytes, int] = field(default_factory=dict)
    busy: int = 0
    asked: list[object] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    located: int = 0
    bootstrapped: bool = True
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: list[Callable[[], object]] = field(default_factory=list)

    def start(self, tls: Tls | None = None) -> str:
        """Serve PD and the two stores by grpcio on free ports; return the address of PD."""
        for store in (1, 2):
            self.addresses[store] = self._serve(self.store_methods(store), tls)
        return self._serve(self.pd_methods(), tls)

    def start_quickly(self) -> str:
        """As `start`, but by binlake.rpc, which avoids a thread per call."""
        for store in (1, 2):
            self.addresses[store] = self._serve_rpc(self.store_methods(store))
        return self._serve_rpc(self.pd_methods())

    def stop(self) -> None:
        for stop in self._stop:
            stop()

    def split(self, key: bytes) -> None:
        """Split the region at `key`; PD answers once more with the old region."""
        at = next(
            place for place, one in enumerate(self.regions) if one.start <= key and (not one.end or key < one.end)
        )
        old = self.regions[at]
        self.stale = [old]
        halves = [replace(old, end=key, version=old.version + 1), Region(len(self.regions) + 10, key, old.end)]
        self.regions[at : at + 1] = halves

    def move(self, store: int) -> None:
        """Make `store` the leader of all regions; PD answers once more per region with the old leader."""
        self.stale = list(self.regions)
        self.regions = [replace(one, store=store) for one in self.regions]

    # PD

    def pd_methods(self) -> dict[str, Callable[[bytes], bytes]]:
        """PD's methods by path."""
        return {
            "/pdpb.PD/GetMembers": self._members,
            "/pdpb.PD/GetRegion": self._region,
            "/pdpb.PD/GetStore": self._store,
            "/pdpb.PD/GetGCSafePoint": self._gc,
            "/pdpb.PD/UpdateServiceGCSafePoint": self._hold,
        }

    def _members(self, _: bytes) -> bytes:
        return pd.GetMembersResponse(header=_head()).SerializeToString()

    def _region(self, data: bytes) -> bytes:
        request = pb.GetRegionRequest.FromString(data)
        assert request.header.cluster_id == CLUSTER_ID
        with self._lock:
            self.located += 1
            known = [one for one in self.stale if _holds(one, request.region_key)]
            found = known or [one for one in self.regions if _holds(one, request.region_key)]
            self.stale = [one for one in self.stale if one not in known]
        region = found[0]
        return pb.GetRegionResponse(
            header=_head(), region=region.wire(), leader=region.peer(region.store)
        ).SerializeToString()

    def _store(self, data: bytes) -> bytes:
        store = pb.GetStoreRequest.FromString(data).store_id
        found = pb.Store(id=store, address=self.addresses[store])
        return pb.GetStoreResponse(header=_head(), store=found).SerializeToString()

    def _gc(self, _: bytes) -> bytes:
        if not self.bootstrapped:
            error = pd.Error(type=pd.NOT_BOOTSTRAPPED, message="cluster is not bootstrapped")
            return pb.GetGCSafePointResponse(
                header=pd.ResponseHeader(cluster_id=CLUSTER_ID, error=error)
            ).SerializeToString()
        return pb.GetGCSafePointResponse(header=_head(), safe_point=self.safe_point).SerializeToString()

    def _hold(self, data: bytes) -> bytes:
        request = pb.UpdateServiceGCSafePointRequest.FromString(data)
        with self._lock:
            if request.ttl <= 0:
                self.services.pop(request.service_id, None)
            elif request.safe_point >= min([self.safe_point, *self.services.values()]):
                self.services[request.service_id] = request.safe_point
            least = min([self.safe_point, *self.services.values()])
        return pb.UpdateServiceGCSafePointResponse(header=_head(), min_safe_point=least).SerializeToString()

    def run_gc(self, safe_point: int) -> None:
        """Do what TiDB's GC worker does: move the safe point as far as services allow, and delete overwritten versions
        below it.
        """
        with self._lock:
            self.safe_point = max(self.safe_point, min([safe_point, *self.services.values()]))
            for key, writes in self.writes.items():
                self.writes[key] = [one for one in writes if one.commit_ts > self.safe_point]

    # TiKV

    def store_methods(self, store: int) -> dict[str, Callable[[bytes], bytes]]:
        """A store's methods by path."""

        def check(data: bytes) -> bytes:
            request = pb.CheckTxnStatusRequest.FromString(data)
            answer = pb.CheckTxnStatusResponse()
            with self._lock:
                if not self._refused(store, request.context, request.primary_key, answer.region_error):
                    self.asked.append(request)
                    self._check(request, answer)
            return answer.SerializeToString()

        def look(data: bytes) -> bytes:
            request = pb.MvccGetByKeyRequest.FromString(data)
            answer = pb.MvccGetByKeyResponse()
            with self._lock:
                if not self._refused(store, request.context, request.key, answer.region_error):
                    self.asked.append(request)
                    self._look(request.key, answer.info)
            return answer.SerializeToString()

        return {"/tikvpb.Tikv/KvCheckTxnStatus": check, "/tikvpb.Tikv/MvccGetByKey": look}

    def _refused(self, store: int, context: pb.Context, key: bytes, error: pb.RegionError) -> bool:
        if self.busy:
            self.busy -= 1
            error.message = "server is busy"
            error.server_is_busy.reason = "busy"
            return True
        region = next((one for one in self.regions if one.id == context.region_id), None)
        if region is None or context.peer.store_id != store:
            error.message = "region not found"
        elif region.store != store:
            error.message = "peer is not leader"
            error.not_leader.leader.CopyFrom(region.peer(region.store))
        elif context.region_epoch.version != region.version:
            error.message = "epoch not match"
            error.epoch_not_match.current_regions.extend(one.wire() for one in self.regions)
        elif not _holds(region, encode_key(key)):
            error.message = "key not in region"
        return bool(error.message)

    def _look(self, key: bytes, info: pb.MvccInfo) -> None:
        lock = self.locks.get(key)
        if lock is not None:
            info.lock.start_ts, info.lock.ttl = lock.start_ts, lock.ttl_ms
        for one in self.writes.get(key, []):
            info.writes.add(
                type=one.kind, start_ts=one.start_ts, commit_ts=one.commit_ts, has_overlapped_rollback=one.overlapped
            )

    def _check(self, request: pb.CheckTxnStatusRequest, answer: pb.CheckTxnStatusResponse) -> None:
        key, start_ts = request.primary_key, request.lock_ts
        lock = self.locks.get(key)
        if lock is not None and lock.start_ts == start_ts:
            self._check_lock(request, lock, answer)
            return
        for one in self.writes.get(key, []):
            if one.start_ts == start_ts and one.kind != ROLLBACK:
                answer.commit_version = one.commit_ts
            if one.start_ts == start_ts or (one.commit_ts == start_ts and one.overlapped):
                return
        if not request.rollback_if_not_exist:
            answer.error.txn_not_found.start_ts = start_ts
            return
        self.writes.setdefault(key, []).append(Write(start_ts, start_ts, ROLLBACK))
        answer.action = pb.LockNotExistRollback

    def _check_lock(self, request: pb.CheckTxnStatusRequest, lock: Lock, answer: pb.CheckTxnStatusResponse) -> None:
        key = request.primary_key
        if request.verify_is_primary and lock.primary not in (b"", key):
            answer.error.primary_mismatch.lock_info.primary_lock = lock.primary
            return
        expired = tso.extract_physical(lock.start_ts) + lock.ttl_ms < tso.extract_physical(request.current_ts)
        if expired and not lock.async_commit:
            del self.locks[key]
            self.writes.setdefault(key, []).append(Write(lock.start_ts, lock.start_ts, ROLLBACK))
            answer.action = pb.TTLExpireRollback
            return
        answer.lock_ttl = lock.ttl_ms
        answer.lock_info.lock_version, answer.lock_info.use_async_commit = lock.start_ts, lock.async_commit

    def _serve(self, methods: dict[str, Callable[[bytes], bytes]], tls: Tls | None) -> str:
        server = grpc.server(ThreadPoolExecutor(4))
        server.add_generic_rpc_handlers((_Methods(methods),))
        if tls is None:
            port = server.add_insecure_port("127.0.0.1:0")
        else:
            assert tls.ca
            assert tls.key
            assert tls.cert
            pair = (tls.key.read_bytes(), tls.cert.read_bytes())
            wanted = grpc.ssl_server_credentials([pair], tls.ca.read_bytes(), require_client_auth=True)
            port = server.add_secure_port("127.0.0.1:0", wanted)
        server.start()
        self._stop.append(lambda: server.stop(None).wait(20))
        return f"127.0.0.1:{port}"

    def _serve_rpc(self, methods: dict[str, Callable[[bytes], bytes]]) -> str:
        server = RpcServer(name="fake-tikv")
        for path, work in methods.items():
            server.add(path, partial(_reply, work))
        address = server.listen("127.0.0.1:0")
        server.start()
        self._stop.append(lambda: server.stop(0.1))
        return address


def _reply(work: Callable[[bytes], bytes], call: Call, message: bytes) -> None:
    call.reply(work(message))


class _Methods(grpc.GenericRpcHandler):
    def __init__(self, methods: dict[str, Callable[[bytes], bytes]]) -> None:
        self._methods = methods

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        work = self._methods.get(handler_call_details.method)
        return None if work is None else grpc.unary_unary_rpc_method_handler(lambda data, _: work(data))


def _holds(region: Region, encoded: bytes) -> bool:
    wire = region.wire()
    return wire.start_key <= encoded and (not wire.end_key or encoded < wire.end_key)


def _head() -> pd.ResponseHeader:
    return pd.ResponseHeader(cluster_id=CLUSTER_ID)
