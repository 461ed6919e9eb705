"""The pump on grpcio's server, which no production pump uses: tests compare LeanServer's answers with it.

WriteBinlog fails with UNKNOWN and the text, as the original does (tidb-binlog 2.8). PullBinlogs fails with OUT_OF_RANGE
for a collected range, DATA_LOSS for damage, FAILED_PRECONDITION for another cluster, and UNAVAILABLE when the pump
stops.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
from support.pump_calls import pull, write_binlog

from binlake.errors import BinlakeError, ConfigError, LostRange, Permanent, Transient
from binlake.pump_service.pump.batches import Transaction, encode_message
from binlake.pump_service.pump.server import PumpServer
from binlake.pump_service.pump.service import PumpService
from binlake.rpc.limits import SparingLog
from binlake.wire import admin_pb2, pump_pb2

log = SparingLog()

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0))
_THREADS = 128  # writers in flight and pull streams; each occupies one thread
_OK = pump_pb2.WriteBinlogResp().SerializeToString()


class GrpcioPumpServer(PumpServer):
    """A pump whose port is served by grpcio, without web pages, TLS and Unix socket."""

    def _build_transport(self) -> GrpcServer:  # type: ignore[override]  # what PumpServer uses of it is the same
        return GrpcServer(self.service, self._config.addr)


class GrpcServer:
    """Serves binlog.Pump and binlake.wire.PumpAdmin on one port. Raises Permanent when it cannot listen."""

    def __init__(self, service: PumpService, address: str) -> None:
        self._service = service
        self._threads = ThreadPoolExecutor(_THREADS, "pump-rpc")
        self._server = grpc.server(self._threads, options=UNLIMITED)
        self._server.add_generic_rpc_handlers((_pump_handlers(self), _admin_handlers(self)))
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise Permanent("the pump cannot listen", where={"addr": address, "reason": error}) from None
        self.address = f"{address.rpartition(':')[0]}:{port}"

    def start(self) -> None:
        """Start to answer requests."""
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Let running calls finish for at most `grace_s`, then end them."""
        self._server.stop(grace_s).wait()
        # grpcio does not shut down a pool that its caller made; idle threads would live as long as the process.
        self._threads.shutdown(wait=False)

    def write_binlog(self, request: pump_pb2.WriteBinlogReq, context: grpc.ServicerContext) -> bytes:
        """WriteBinlog: answer after the fsync."""
        try:
            stored = write_binlog(self._service, request.clusterID, request.payload)
            if stored is not None:
                stored.result()
        except BinlakeError as error:
            log.warning("write_refused", error=str(error))
            context.abort(grpc.StatusCode.UNKNOWN, str(error))
        return _OK

    def pull_binlogs(self, request: pump_pb2.PullBinlogReq, context: grpc.ServicerContext) -> Iterator[bytes]:
        """PullBinlogs: an endless stream."""
        gone = threading.Event()

        def leave() -> None:
            gone.set()
            self._service.build_reader().storage.wake()

        context.add_callback(leave)
        try:
            for transaction in self._transactions(request.clusterID, request.startFrom.offset, gone):
                yield encode_message(*transaction)
        except BinlakeError as error:
            log.error("pull_failed", error=str(error))
            context.abort(_pull_status(error), str(error))
        if not self._service.serving:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the pump is stopping")

    def _transactions(self, cluster_id: int, after_ts: int, gone: threading.Event) -> Iterator[Transaction]:
        service = self._service
        service.check_pull(cluster_id, after_ts)
        return pull(service.build_reader().storage, after_ts, lambda: gone.is_set() or not service.serving)

    def info(self, request: admin_pb2.InfoReq, context: grpc.ServicerContext) -> admin_pb2.InfoResp:
        """PumpAdmin/Info."""
        del request, context
        return self._service.build_info()


def _pull_status(error: BinlakeError) -> grpc.StatusCode:
    if isinstance(error, LostRange):
        return grpc.StatusCode.OUT_OF_RANGE
    if isinstance(error, Transient):
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.FAILED_PRECONDITION if isinstance(error, ConfigError) else grpc.StatusCode.DATA_LOSS


def _pump_handlers(server: GrpcServer) -> grpc.GenericRpcHandler:
    write: grpc.RpcMethodHandler[pump_pb2.WriteBinlogReq, bytes] = grpc.unary_unary_rpc_method_handler(
        server.write_binlog, pump_pb2.WriteBinlogReq.FromString
    )
    pull: grpc.RpcMethodHandler[pump_pb2.PullBinlogReq, bytes] = grpc.unary_stream_rpc_method_handler(
        server.pull_binlogs, pump_pb2.PullBinlogReq.FromString
    )
    return grpc.method_handlers_generic_handler("binlog.Pump", {"WriteBinlog": write, "PullBinlogs": pull})


def _admin_handlers(server: GrpcServer) -> grpc.GenericRpcHandler:
    info = grpc.unary_unary_rpc_method_handler(
        server.info, admin_pb2.InfoReq.FromString, admin_pb2.InfoResp.SerializeToString
    )
    return grpc.method_handlers_generic_handler("binlake.wire.PumpAdmin", {"Info": info})
