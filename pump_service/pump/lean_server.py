"""The pump on binlake.rpc: the loop answers writes from the group commit; pulls.py serves PullBinlogs.

A write that finds no room in the storage's memory waits: in order, bounded in bytes and time, while its caller waits.
Tests compare the statuses with those of a pump on grpcio.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from google.protobuf.message import DecodeError

from binlake.common.varint import read_uvarint
from binlake.errors import BinlakeError, Transient
from binlake.pump_service.pump.groupcommit import Behind
from binlake.pump_service.pump.pulls import Pulls
from binlake.pump_service.pump.service import PumpService
from binlake.rpc import Call, HttpHandler, Limits, RpcServer, Status, Tls
from binlake.rpc.limits import SparingLog
from binlake.wire.admin_pb2 import MeasureRangeReq, Refusal, WriteBinlogsReq, WriteBinlogsResp
from binlake.wire.pump_pb2 import PullBinlogReq, WriteBinlogReq

log = SparingLog()

_WAITING_BYTES = 128 << 20  # of all writes together that wait for room in the storage
_PATIENCE_S = 10.0  # below the 15 s after which a writer gives up (tidb-binlog 4)
_LOOK_S = 1.0
_LIMITS = Limits(http_body_bytes=64 << 10)  # no page accepts a body
_LARGE = 1 << 20  # bytes: larger messages are not copied


class LeanServer:
    """Serves binlog.Pump, binlake.wire.PumpAdmin, gRPC health, and everything else by `http`, on one port.

    Also on the Unix socket `socket` if given. Raises Permanent when it cannot listen, ConfigError for TLS files.
    """

    def __init__(
        self,
        service: PumpService,
        address: str,
        *,
        http: HttpHandler | None = None,
        tls: Tls | None = None,
        socket: Path | None = None,
    ) -> None:
        self._service = service
        self.rpc = RpcServer(http=http, limits=_LIMITS, name="pump-rpc")
        self._stored: deque[tuple[Call, BinlakeError | None, bytes]] = deque()
        self._answering = False
        self._waiting = WaitingWrites(_WAITING_BYTES)
        self._retrying = self._checking = False
        service.on_batch(self._on_batch)
        self.rpc.add("/binlog.Pump/WriteBinlog", self._write, takes_views=True)
        self.rpc.add("/binlake.wire.PumpAdmin/WriteBinlogs", self._write_many)
        self._pulls = Pulls(service, self.rpc)
        self.rpc.add("/binlog.Pump/PullBinlogs", self._pull)
        self.rpc.add_blocking("/binlake.wire.PumpAdmin/Info", lambda _: service.build_info().SerializeToString())
        self.rpc.add_blocking(
            "/binlake.wire.PumpAdmin/MeasureRange",
            lambda request: service.measure_range(MeasureRangeReq.FromString(request)).SerializeToString(),
        )
        try:
            self.address = self.rpc.listen(address, tls)
            if socket is not None:
                self.rpc.listen_unix(socket)
        except BaseException:
            self.rpc.stop(0)
            raise

    def start(self) -> None:
        """Begin to answer."""
        self.rpc.start()

    def stop(self, grace_s: float) -> None:
        """Let running calls finish for at most `grace_s`, then end them."""
        self._pulls.close()
        self.rpc.stop(grace_s)

    def _write(self, call: Call, message: bytes) -> None:
        try:
            cluster_id, payload = _read_write(message)
        except DecodeError as error:
            call.fail(Status.INTERNAL, f"damaged WriteBinlogReq: {error}")
            return
        if self._waiting or not self._submit(call, cluster_id, payload):
            since = time.perf_counter()
            submit = partial(self._submit, call, cluster_id, payload, since)
            self._wait(call, Write(len(payload), since, submit, partial(self._give_up, call, since)))

    def _submit(self, call: Call, cluster_id: int, payload: bytes, since: float | None = None) -> bool:
        try:
            self._service.submit(cluster_id, payload, partial(self._on_stored, call), since=since)
        except Behind:
            return False
        except BinlakeError as error:
            self._refuse(call, error)
        return True

    def _wait(self, call: Call, write: Write) -> None:
        if not self._waiting.add(call, write):
            self._service.metrics.count_refusal(time.perf_counter() - write.since)
            return
        if not self._checking:
            self._checking = True
            self.rpc.run_after(_LOOK_S, self._check_waiting)
        self._waiting.retry()  # room that became free just before the write was added notified nobody

    def _on_batch(self) -> None:
        # On the log's thread, after each batch. The log's thread and the loop compete for Python's lock, so the loop is
        # woken last.
        if self._stored:
            self._wake_to_answer()
        if self._waiting and not self._retrying:
            self._retrying = True
            self.rpc.run_on_loop(self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._waiting.retry()

    def _check_waiting(self) -> None:
        self._waiting.expire(time.perf_counter() - _PATIENCE_S)
        self._waiting.retry()
        self._checking = bool(self._waiting)
        if self._checking:
            self.rpc.run_after(_LOOK_S, self._check_waiting)

    def _give_up(self, call: Call, since: float, error: BinlakeError) -> None:
        self._service.metrics.count_refusal(time.perf_counter() - since)
        self._refuse(call, error)

    def _on_stored(self, call: Call, error: BinlakeError | None) -> None:
        # On the log's thread, before `_on_batch`; another thread may call it to refuse a single binlog.
        self._stored.append((call, error, b""))
        if error is not None:
            self._wake_to_answer()

    def _write_many(self, call: Call, message: bytes) -> None:
        try:
            batch = BatchWrite(self._service, message, partial(self._on_many_stored, call))
        except DecodeError as error:
            call.fail(Status.INTERNAL, f"damaged WriteBinlogsReq: {error}")
            return
        if self._waiting or not batch.submit():
            self._wait(call, Write(batch.size, batch.since, batch.submit, batch.refuse))

    def _on_many_stored(self, call: Call, answer: bytes) -> None:
        # On the log's thread, or on the loop if the last one was refused at once.
        self._stored.append((call, None, answer))
        self._wake_to_answer()

    def _wake_to_answer(self) -> None:
        if not self._answering:
            self._answering = True
            self.rpc.run_on_loop(self._answer)

    def _answer(self) -> None:
        self._answering = False
        stored = self._stored
        while stored:
            call, error, answer = stored.popleft()
            if error is None:
                call.reply(answer)
            else:
                self._refuse(call, error)

    @staticmethod
    def _refuse(call: Call, error: BinlakeError) -> None:
        log.warning("write_refused", error=str(error))
        call.fail(Status.UNKNOWN, str(error))

    def _pull(self, call: Call, message: bytes) -> None:
        try:
            request = PullBinlogReq.FromString(message)
        except DecodeError as error:
            call.fail(Status.INTERNAL, f"damaged PullBinlogReq: {error}")
            return
        self._pulls.begin(call, request.clusterID, request.startFrom.offset)


class BatchWrite:
    """The binlogs of one call. `done(answer)` is called when each has its outcome, possibly on the log's thread.

    Raises DecodeError for a message that is not a WriteBinlogsReq.
    """

    def __init__(self, service: PumpService, message: bytes, done: Callable[[bytes], None]) -> None:
        self._service = service
        self._request = WriteBinlogsReq.FromString(message)
        self._done = done
        self._next = 0
        self._left = len(self._request.payloads) + 1  # one extra until all are handed over
        self._refusals: list[Refusal] = []
        self._lock = threading.Lock()
        self.since = time.perf_counter()

    @property
    def size(self) -> int:
        """Bytes not handed over yet."""
        return sum(map(len, self._request.payloads[self._next :]))

    def submit(self) -> bool:
        """Hand over the remaining binlogs; False if the storage ran out of room before the last one."""
        request = self._request
        while self._next < len(request.payloads):
            number = self._next
            try:
                self._service.submit(
                    request.cluster_id, request.payloads[number], partial(self._put, number), since=self.since
                )
            except Behind:
                return False
            except BinlakeError as error:
                self._put(number, error)
            self._next += 1
        self._put(-1, None)
        return True

    def refuse(self, error: BinlakeError) -> None:
        """Refuse the binlogs that are not handed over yet."""
        for number in range(self._next, len(self._request.payloads)):
            self._service.metrics.count_refusal(time.perf_counter() - self.since)
            self._put(number, error)
        self._put(-1, None)

    def _put(self, number: int, error: BinlakeError | None) -> None:
        with self._lock:
            if error is not None:
                self._refusals.append(Refusal(number=number, text=str(error)))
            self._left -= 1
            is_last = not self._left
        if is_last:
            self._done(WriteBinlogsResp(refusals=self._refusals).SerializeToString())


@dataclass(frozen=True, slots=True)
class Write:
    """A call that found no room at `since`, in seconds of the caller's clock; `size`: bytes of its binlogs.

    `submit()`: hands it to the storage or answers it; False: there is still no room. `refuse(error)`: answers it.
    """

    size: int
    since: float
    submit: Callable[[], bool]
    refuse: Callable[[BinlakeError], None]


class WaitingWrites:
    """Used on the loop. `limit`: bytes of all writes together; a single write may be larger."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._writes: OrderedDict[Call, Write] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, call: Call, write: Write) -> bool:
        """Let `call` wait; False when it was refused because too many bytes wait already."""
        if self._writes and self.bytes + write.size > self._limit:
            call.fail(Status.UNAVAILABLE, f"the pump is behind: {self.bytes} bytes wait to be stored")
            return False
        self._writes[call] = write
        self.bytes += write.size
        call.on_end = lambda: self._on_left(call)
        return True

    def retry(self) -> None:
        """Submit as many waiting writes as fit now, in the order they came."""
        while self._writes:
            call = next(iter(self._writes))
            write = self._writes[call]
            if not write.submit():
                return
            self._forget(call)

    def expire(self, before: float) -> None:
        """Refuse the writes that came before `before`."""
        while self._writes:
            call, write = next(iter(self._writes.items()))
            if write.since >= before:
                return
            self._forget(call)
            write.refuse(Transient("the pump is behind: too many bytes wait to be stored", where={"bytes": self.bytes}))

    def _forget(self, call: Call) -> None:
        write = self._writes.pop(call, None)
        if write is not None:
            self.bytes -= write.size
            call.on_end = None

    def _on_left(self, call: Call) -> None:
        # Its caller has given up, or the server is stopping: a write that nobody waits for is not stored.
        self._forget(call)
        call.fail(Status.CANCELLED, "its caller no longer waits")


def _read_write(message: bytes) -> tuple[int, bytes]:
    """clusterID and payload of a WriteBinlogReq; that of a large one is a view of `message`. Raises DecodeError."""
    fields = _split_fields(message) if len(message) >= _LARGE else None
    if fields is not None:
        return fields
    request = WriteBinlogReq.FromString(bytes(message))
    return request.clusterID, request.payload


def _split_fields(message: bytes) -> tuple[int, bytes] | None:
    """As _read_write, without protobuf's own copy; only for a message of the two fields in order, otherwise None."""
    at, cluster_id = 0, 0
    try:
        if message[0] == 0x08:
            cluster_id, at = read_uvarint(message, 1)
        if message[at] != 0x12:
            return None
        size, at = read_uvarint(message, at + 1)
    except ValueError:
        return None
    return (cluster_id, message[at:]) if at + size == len(message) else None
