"""The embedded placement driver as one grpc server: PD, etcd and the replay clock on one port (DESIGN 5).

TLS callers are admitted by the common name of their certificate.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import structlog

from binlake import tso
from binlake.common.localfiles import FileLock, replace_file
from binlake.errors import BinlakeError, ConfigError
from binlake.pump_service.monitoring import PROBE_CONTENT_TYPE, Probes
from binlake.pump_service.pd.etcd_service import STREAMS, EtcdService, Streams
from binlake.pump_service.pd.kvstore import KvStore
from binlake.pump_service.pd.oracle import Oracle
from binlake.rpc import HttpRequest, HttpResponse, RpcServer, Tls
from binlake.wire import pd_pb2 as pb
from binlake.wire.clock_pb2 import LeadReq, LeadResp
from binlake.wire.clock_pb2_grpc import ClockServicer, add_ClockServicer_to_server
from binlake.wire.pd_pb2_grpc import PDServicer, add_PDServicer_to_server


class AllowedCallers(grpc.ServerInterceptor):
    """Refuses every call of a caller whose certificate has none of the common names `names`."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = {name.encode() for name in names}

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler in a check of the caller's certificate."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        reads, writes = handler.request_deserializer, handler.response_serializer
        if handler.stream_stream is not None:
            return grpc.stream_stream_rpc_method_handler(self._guard_stream(handler.stream_stream), reads, writes)
        if handler.unary_unary is None:
            raise AssertionError(f"PD has no method of this kind: {handler_call_details.method}")
        return grpc.unary_unary_rpc_method_handler(self._guard(handler.unary_unary), reads, writes)

    def _guard(self, serve: Callable[..., Any]) -> Callable[..., Any]:
        def answer(request: Any, context: grpc.ServicerContext) -> Any:
            self._check(context)
            return serve(request, context)

        return answer

    def _guard_stream(self, serve: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def answer(requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._check(context)
            yield from serve(requests, context)

        return answer

    def _check(self, context: grpc.ServicerContext) -> None:
        names = context.auth_context().get("x509_common_name", ())
        listed = [names] if isinstance(names, bytes) else names
        if not self._names.intersection(listed):
            name = b", ".join(listed).decode(errors="replace") or "none"
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"the common name is not on the allowed list: {name}")


log = structlog.get_logger(__name__)

# Each Tso, Watch and keep-alive stream occupies a thread while it is open; these threads are reserved for other calls.
CALLS = 64
LEASE_CHECK_S = 0.5
# How often a Tso call that waits for a led clock checks whether its client is still connected.
CLIENT_CHECK_S = 1.0
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", -1),
    # TiDB and etcd clients ping an idle connection every few seconds; the default answers that with GOAWAY.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)


class PlacementDriver:
    """One embedded PD on `data_dir`, for one process at a time; if `port` is 0, it takes a free one.

    `cluster_id` None: the stored one, or a random one at the first start. `led_from`: a led clock (see `oracle`) that
    starts there. `advertise`: HOST:PORT that other machines reach, when it is not `host:port`. Raises ConfigError for a
    directory in use or of another cluster, WireError for a damaged one unless `drop_damaged`. `tls`: serve only by TLS.
    `status_addr`: HOST:PORT at which `/healthz` and `/readyz` are answered, without TLS; "" = nowhere.
    """

    def __init__(
        self,
        data_dir: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        cluster_id: int | None = None,
        *,
        advertise: str = "",
        led_from: int | None = None,
        now_ms: Callable[[], int] | None = None,
        tls: Tls | None = None,
        drop_damaged: bool = False,
        status_addr: str = "",
    ) -> None:
        folder = Path(data_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._host, self._port, self._advertise = host, port, advertise
        self._data_dir = folder
        self._status_addr = status_addr
        self._status: RpcServer | None = None
        self._probes = Probes(self._find_unhealthy, self._find_unready)
        self._credentials = _load_credentials(tls) if tls is not None else None
        self._lock = _lock(folder)
        try:
            self.cluster_id = _load_cluster_id(folder, cluster_id)
            self._oracle = Oracle(folder, led_from=led_from, now_ms=now_ms)
            self._led = led_from is not None or self._oracle.held
            self._store = KvStore(folder, drop_damaged=drop_damaged)
        except BaseException:
            self._lock.release()
            raise
        self.streams = Streams()
        self._etcd = EtcdService(self._store, self.streams)
        names = tls.allowed_cn if tls is not None else ()
        self._server = grpc.server(
            ThreadPoolExecutor(STREAMS + CALLS, thread_name_prefix="pd"),
            options=OPTIONS,
            interceptors=[AllowedCallers(names)] if names else [],
        )
        self._stopped = threading.Event()
        self._leases = threading.Thread(target=self._expire_leases, name="pd-leases", daemon=True)

    @property
    def url(self) -> str:
        """`http://host:port` for clients, https:// with TLS; known once started."""
        scheme = "http" if self._credentials is None else "https"
        return f"{scheme}://{self._advertise or f'{self._host}:{self._port}'}"

    def start(self) -> PlacementDriver:
        """Serve. Raises ConfigError when the address cannot be bound; then nothing is left running."""
        add_PDServicer_to_server(_Pd(self), self._server)
        if self._led:  # one call moves the clock permanently, so it is served only if the clock is meant to be led
            add_ClockServicer_to_server(_ClockService(self._oracle), self._server)
        self._server.add_generic_rpc_handlers(tuple(self._etcd.build_handlers()))
        self._leases.start()
        try:
            self._port = self._listen(f"{self._host}:{self._port}")
        except RuntimeError as error:
            self.stop()
            raise ConfigError(
                f"cannot listen: {error}", where={"addr": f"{self._host}:{self._port}"}, hint="is the port in use?"
            ) from None
        self._server.start()
        self._start_status()
        log.info("pd_serving", url=self.url, cluster_id=str(self.cluster_id), data_dir=str(self._data_dir))
        return self

    def stop(self) -> None:
        """End all streams and close the files; idempotent."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        if self._status is not None:
            self._status.stop(grace_s=0.5)
        self._oracle.stop()
        self._etcd.close()
        self._server.stop(grace=0.5).wait()
        if self._leases.is_alive():
            self._leases.join()
        self._store.close()
        self._lock.release()

    def __enter__(self) -> PlacementDriver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def take(self, count: int, wanted: Callable[[], bool] = lambda: True) -> int:
        """The last ts of a batch; waits for a led clock while `wanted()`. Raises ValueError, TimeoutError."""
        while True:
            try:
                return self._oracle.take(count, CLIENT_CHECK_S)
            except TimeoutError:
                if self._oracle.stopped or not wanted():
                    raise

    @property
    def status_url(self) -> str:
        """Where probes are answered; "" without a status address."""
        return self._status_addr and f"http://{self._status_addr}"

    def _start_status(self) -> None:
        if not self._status_addr:
            return
        # grpcio answers nothing but gRPC on its port, so probes by HTTP need a port of their own.
        self._status = RpcServer(http=self._answer_probe, name="pd-status")
        try:
            self._status_addr = self._status.listen(self._status_addr)
        except BinlakeError:
            self.stop()
            raise
        self._status.start()

    def _answer_probe(self, request: HttpRequest) -> HttpResponse:
        answer = self._probes.answer(request.path) if request.method == "GET" else None
        status, text = answer or (404, "404 page not found\n")
        return HttpResponse(status, PROBE_CONTENT_TYPE, text.encode())

    def _find_unhealthy(self) -> list[str]:
        reasons = ["the registry's journal failed a write: nothing is accepted"] if self._store.is_broken else []
        return reasons if self._leases.is_alive() else [*reasons, "no lease expires any more"]

    def _find_unready(self) -> list[str]:
        return [self._oracle.failure] if self._oracle.failure else []

    def _listen(self, addr: str) -> int:
        if self._credentials is None:
            return self._server.add_insecure_port(addr)
        return self._server.add_secure_port(addr, self._credentials)

    def _expire_leases(self) -> None:
        while not self._stopped.wait(LEASE_CHECK_S):
            try:
                self._store.expire()
            except OSError as error:
                log.error("lease_expiry_failed", error=str(error), data_dir=str(self._data_dir))


class _Pd(PDServicer):
    def __init__(self, driver: PlacementDriver) -> None:
        self._driver = driver

    def GetMembers(self, request: pb.GetMembersRequest, context: grpc.ServicerContext) -> pb.GetMembersResponse:  # noqa: ARG002
        """The only member; like PD, without a check of the cluster id."""
        member = pb.Member(name="binlake-pd", member_id=1, client_urls=[self._driver.url])
        return pb.GetMembersResponse(header=self._build_header(), members=[member], leader=member, etcd_leader=member)

    def Tso(self, requests: Iterator[pb.TsoRequest], context: grpc.ServicerContext) -> Iterator[pb.TsoResponse]:
        """A batch for each request, in order."""
        return self._driver.streams.wrap(self._answer_tso)(requests, context)

    def _answer_tso(self, requests: Iterator[pb.TsoRequest], context: grpc.ServicerContext) -> Iterator[pb.TsoResponse]:
        for request in requests:
            requested_id = request.header.cluster_id
            if requested_id != self._driver.cluster_id:
                message = f"mismatch cluster id, need {self._driver.cluster_id} but got {requested_id}"
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
            try:
                last = self._driver.take(request.count, context.is_active)
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except OSError as error:  # TimeoutError is one of them
                context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            stamp = pb.Timestamp(physical=tso.extract_physical(last), logical=tso.extract_logical(last))
            yield pb.TsoResponse(header=self._build_header(), count=request.count, timestamp=stamp)

    def _build_header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=self._driver.cluster_id)


class _ClockService(ClockServicer):
    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def Lead(self, request: LeadReq, context: grpc.ServicerContext) -> LeadResp:
        """Move the bound, or release the clock."""
        try:
            last = self._oracle.lead(request.ts) if request.hold else self._oracle.release()
        except BinlakeError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except OSError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, f"the bound cannot be saved: {error}")
        return LeadResp(ts=last)


def _load_credentials(tls: Tls) -> grpc.ServerCredentials:
    tls.build_server_context()  # raises for unusable files, which grpcio does not
    ca, key, cert = (b"" if file is None else file.read_bytes() for file in (tls.ca, tls.key, tls.cert))
    return grpc.ssl_server_credentials([(key, cert)], ca or None, require_client_auth=bool(ca))


def _lock(folder: Path) -> FileLock:
    lock = FileLock(folder / ".lock")
    if not lock.take():
        raise ConfigError(
            "another placement driver uses this directory", where={"data-dir": folder}, hint="stop it first"
        )
    return lock


def _load_cluster_id(folder: Path, wanted: int | None) -> int:
    path = folder / "cluster_id"
    if not path.exists():
        # 63 bits: a cluster id is also stored in signed columns.
        fresh = wanted if wanted is not None else random.getrandbits(62) | 1
        replace_file(path, [str(fresh).encode()])
    text = path.read_text(encoding="utf-8", errors="replace").strip()
    if not text.isdigit():
        raise ConfigError("the stored cluster id cannot be read", where={"file": path}, hint="write the id into it")
    stored = int(text)
    if wanted is not None and wanted != stored:
        raise ConfigError(
            f"the directory belongs to cluster {stored}",
            where={"data-dir": folder, "cluster-id": wanted},
            hint="use another data-dir",
        )
    return stored
