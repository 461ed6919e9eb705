"""The embedded placement driver as one grpc server: PD, etcd and the replay clock on one port (DESIGN 5)."""

from __future__ import annotations

import fcntl
import os
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import structlog

from binlake import tso
from binlake.errors import BinlakeError, ConfigError
from binlake.wire import pd_pb2 as pb
from binlake.wire.clock_pb2 import LeadReq, LeadResp
from binlake.wire.clock_pb2_grpc import ClockServicer, add_ClockServicer_to_server
from binlake.wire.pd_pb2_grpc import PDServicer, add_PDServicer_to_server
from pump_service.pd.etcd_service import EtcdService
from pump_service.pd.kvstore import KvStore
from pump_service.pd.oracle import Oracle

log = structlog.get_logger(__name__)

# Tso and Watch streams hold a thread each for as long as they live.
WORKERS = 256
LEASE_CHECK_S = 0.5


class PlacementDriver:
    """One embedded PD on `data_dir`, for one process at a time; `port` 0 takes a free one.

    `cluster_id` None: the stored one, or a random one at the first start. `led_from`: a led clock (see `oracle`) that
    starts there. Raises ConfigError for a directory in use or of another cluster.
    """

    def __init__(
        self,
        data_dir: str | Path,
        host: str = "127.0.0.1",
        port: int = 0,
        cluster_id: int | None = None,
        *,
        led_from: int | None = None,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._folder = Path(data_dir)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self._folder)
        self.cluster_id = _cluster_id(self._folder, cluster_id)
        self._oracle = Oracle(self._folder, led_from=led_from, now_ms=now_ms)
        self._store = KvStore(self._folder)
        self._etcd = EtcdService(self._store)
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, thread_name_prefix="pd"),
            options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)),
        )
        self._host, self._port = host, port
        self._stopped = threading.Event()

    @property
    def url(self) -> str:
        """`http://host:port`, known once started."""
        return f"http://{self._host}:{self._port}"

    def start(self) -> PlacementDriver:
        """Serve. Raises ConfigError when the address cannot be bound."""
        add_PDServicer_to_server(_Pd(self), self._server)
        add_ClockServicer_to_server(_Clock(self._oracle), self._server)
        for handler in self._etcd.handlers():
            self._server.add_generic_rpc_handlers((handler,))
        try:
            self._port = self._server.add_insecure_port(f"{self._host}:{self._port}")
        except RuntimeError as error:
            raise ConfigError(
                f"cannot listen: {error}", where={"addr": f"{self._host}:{self._port}"}, hint="is the port taken?"
            ) from None
        self._server.start()
        threading.Thread(target=self._expire_leases, name="pd-leases", daemon=True).start()
        log.info("pd serving", url=self.url, cluster_id=str(self.cluster_id), data_dir=str(self._folder))
        return self

    def stop(self) -> None:
        """End all streams and close the files."""
        self._stopped.set()
        self._oracle.stop()
        self._etcd.close()
        self._server.stop(grace=1.0).wait()
        self._store.close()
        os.close(self._lock)

    def __enter__(self) -> PlacementDriver:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def take(self, count: int) -> int:
        """The last ts of a batch. Raises ValueError, TimeoutError when stopping."""
        return self._oracle.take(count)

    def _expire_leases(self) -> None:
        while not self._stopped.wait(LEASE_CHECK_S):
            self._store.expire()


class _Pd(PDServicer):
    def __init__(self, driver: PlacementDriver) -> None:
        self._driver = driver

    def GetMembers(self, request: pb.GetMembersRequest, context: grpc.ServicerContext) -> pb.GetMembersResponse:  # noqa: ARG002
        """The one member there is; no cluster-id check, as PD has it."""
        member = pb.Member(name="binlake-pd", member_id=1, client_urls=[self._driver.url])
        return pb.GetMembersResponse(header=self._header(), members=[member], leader=member, etcd_leader=member)

    def Tso(self, requests: Iterator[pb.TsoRequest], context: grpc.ServicerContext) -> Iterator[pb.TsoResponse]:
        """A batch for each request, in order."""
        for request in requests:
            asked = request.header.cluster_id
            if asked != self._driver.cluster_id:
                message = f"mismatch cluster id, need {self._driver.cluster_id} but got {asked}"
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
            try:
                last = self._driver.take(request.count)
            except ValueError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            except TimeoutError as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
            stamp = pb.Timestamp(physical=tso.physical(last), logical=tso.logical(last))
            yield pb.TsoResponse(header=self._header(), count=request.count, timestamp=stamp)

    def _header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=self._driver.cluster_id)


class _Clock(ClockServicer):
    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def Lead(self, request: LeadReq, context: grpc.ServicerContext) -> LeadResp:
        """Move the bound, or release it."""
        try:
            last = self._oracle.lead(request.ts) if request.hold else self._oracle.release()
        except BinlakeError as error:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return LeadResp(ts=last)


def _lock(folder: Path) -> int:
    handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ConfigError(
            "another placement driver uses this directory", where={"data-dir": folder}, hint="stop it first"
        ) from None
    return handle


def _cluster_id(folder: Path, wanted: int | None) -> int:
    path = folder / "cluster_id"
    if not path.exists():
        temporary = path.with_suffix(".tmp")
        temporary.write_text(str(wanted if wanted is not None else random.getrandbits(62)), encoding="utf-8")
        temporary.replace(path)
    stored = int(path.read_text(encoding="utf-8"))
    if wanted is not None and wanted != stored:
        raise ConfigError(
            f"the directory belongs to cluster {stored}", where={"data-dir": folder, "cluster-id": wanted},
            hint="use another data-dir",
        )  # fmt: skip
    return stored
