"""Sends a request to one pump: the interface between the pump client and RPC.

A connection carries many calls at once. It connects before the first call, and again after the connection was lost.

All waiting requests are sent in one call that only Binlake's pumps have (WriteBinlogs).
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError

from binlake.common.spool import MessagePiece
from binlake.common.varint import write_uvarint
from binlake.rpc import Channel, PendingCall, RpcError, Status, Tls
from binlake.wire.admin_pb2 import WriteBinlogsReq, WriteBinlogsResp
from binlake.wire.build import LARGE_BYTES
from binlake.wire.pump_pb2 import WriteBinlogReq, WriteBinlogResp

log = structlog.get_logger()


@dataclass(frozen=True)
class WriteRefusal:
    """Why a write failed. `too_large`: the message exceeds a limit of the connection, so that no retry helps."""

    text: str
    too_large: bool = False


Done = Callable[[WriteRefusal | None], None]
"""Called once with the outcome of a call: None = stored."""


def read_any_outcome(call: Callable[[], bytes]) -> WriteRefusal | None:
    """The outcome of a WriteBinlog call, which may have raised anything."""
    try:
        return read_outcome(call)
    except Exception as error:
        log.exception("pump_send_failed")
        return build_refusal_from_error(error)


def read_outcome(call: Callable[[], bytes]) -> WriteRefusal | None:
    """The outcome of a WriteBinlog call."""
    try:
        answer = WriteBinlogResp.FromString(call())
    except RpcError as error:
        return build_refusal_from_status(error)
    except DecodeError as error:
        return WriteRefusal(f"damaged answer: {error}")
    return WriteRefusal(answer.errmsg) if answer.errmsg else None


def build_refusal_from_error(error: Exception) -> WriteRefusal:
    """The refusal for an error that did not come from a pump."""
    return WriteRefusal(f"{type(error).__name__}: {error}")


def build_refusal_from_status(error: RpcError) -> WriteRefusal:
    """The refusal for a call's status."""
    # RESOURCE_EXHAUSTED alone may be caused by load: another pump, or a later try, may accept the write.
    too_large = error.status is Status.RESOURCE_EXHAUSTED and "larger than max" in error.message
    return WriteRefusal(f"{error.message} ({error.status.name})", too_large=too_large)


METHOD = "/binlog.Pump/WriteBinlog"
_MANY = "/binlake.wire.PumpAdmin/WriteBinlogs"
_AT_ONCE = 64  # unanswered calls, if each has one binlog
_CALLS_OF_MANY = 8
_MOST, _MOST_BYTES = 500, 1 << 20  # of a call
_ONE_BY_ONE = frozenset({Status.UNIMPLEMENTED, Status.RESOURCE_EXHAUSTED})


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A WriteBinlogReq; its payload may be in pieces."""

    cluster_id: int
    pieces: tuple[MessagePiece, ...] = ()

    @property
    def payload(self) -> bytes:
        """The payload in one piece."""
        return b"".join([piece[:] for piece in self.pieces])

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return sum(map(len, self.pieces))

    def build_message(self) -> bytes | tuple[MessagePiece, ...]:
        """Its bytes; of a large one in pieces, so that none of them is copied."""
        if self.size < LARGE_BYTES:
            return WriteBinlogReq(clusterID=self.cluster_id, payload=self.payload).SerializeToString()
        head = WriteBinlogReq(clusterID=self.cluster_id).SerializeToString()
        return head + b"\x12" + write_uvarint(self.size), *self.pieces


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A request to send; `done` receives its outcome."""

    request: WriteRequest
    timeout_s: float
    done: Done


class RequestSender:
    """Sends the requests of `sent` until None, and reports each outcome; `run` needs its own thread."""

    def __init__(self, channel: Channel, sent: queue.SimpleQueue[SentRequest | None]) -> None:
        self._channel = channel
        self._sent = sent
        self._held: SentRequest | None = None
        self._open = True
        self._one_by_one = False
        self._waiting: deque[tuple[PendingCall, list[SentRequest]]] = deque()

    def run(self) -> None:
        """Send until the queue ends and all calls are answered."""
        while self._open or self._held or self._waiting:
            while self._has_more():
                self._begin(self._take())
            if self._waiting:
                self._settle(*self._waiting.popleft())

    def _has_more(self) -> bool:
        """Whether to send now, before waiting for an answer."""
        if self._held is not None or not self._waiting:
            return self._held is not None or self._open
        at_once = _AT_ONCE if self._one_by_one else _CALLS_OF_MANY
        return self._open and len(self._waiting) < at_once and not self._sent.empty()

    def _take(self) -> list[SentRequest]:
        """The next request of the queue, and as many waiting ones as fit into a call."""
        first = self._held or self._sent.get()
        self._held = None
        if first is None:
            self._open = False
            return []
        batch, size = [first], first.request.size
        while not self._one_by_one and len(batch) < _MOST and not self._sent.empty():
            sent = self._sent.get_nowait()
            if sent is None:
                self._open = False
                break
            size += sent.request.size
            if size > _MOST_BYTES:
                self._held = sent
                break
            batch.append(sent)
        return batch

    def _begin(self, batch: list[SentRequest]) -> None:
        if len(batch) < 2 or self._one_by_one:
            for sent in batch:
                self._start(METHOD, sent.request.build_message(), [sent])
            return
        payloads = [sent.request.payload for sent in batch]
        message = WriteBinlogsReq(cluster_id=batch[0].request.cluster_id, payloads=payloads).SerializeToString()
        self._start(_MANY, message, batch)

    def _start(self, method: str, message: bytes | tuple[MessagePiece, ...], batch: list[SentRequest]) -> None:
        try:
            call = self._channel.start(method, message, max(sent.timeout_s for sent in batch))
        except RpcError as error:
            _refuse(batch, build_refusal_from_status(error))
        except Exception as error:
            # Only this call fails: the thread must go on for later ones.
            log.exception("pump_send_failed")
            _refuse(batch, build_refusal_from_error(error))
        else:
            self._waiting.append((call, batch))

    def _settle(self, call: PendingCall, batch: list[SentRequest]) -> None:
        if len(batch) == 1:
            batch[0].done(read_any_outcome(call.await_result))
            return
        try:
            refusals = WriteBinlogsResp.FromString(call.await_result()).refusals
        except RpcError as error:
            if error.status in _ONE_BY_ONE:
                self._one_by_one = self._one_by_one or error.status is Status.UNIMPLEMENTED
                for sent in batch:
                    self._begin([sent])
            else:
                _refuse(batch, build_refusal_from_status(error))
        except DecodeError as error:
            _refuse(batch, WriteRefusal(f"damaged answer: {error}"))
        except Exception as error:
            log.exception("pump_send_failed")
            _refuse(batch, build_refusal_from_error(error))
        else:
            texts = {refusal.number: refusal.text for refusal in refusals}
            for number, sent in enumerate(batch):
                sent.done(WriteRefusal(texts[number]) if number in texts else None)


def _refuse(batch: list[SentRequest], refusal: WriteRefusal) -> None:
    for sent in batch:
        sent.done(refusal)


__all__ = ["Connect", "PumpConnection", "RpcConnection", "WriteRefusal", "build_rpc_connect"]

_CONNECT_S = 5.0


class PumpConnection(Protocol):
    """A connection to one pump; thread-safe."""

    def write(self, request: WriteRequest, timeout_s: float) -> WriteRefusal | None:
        """Send and wait for the outcome; None = stored."""

    def send(self, request: WriteRequest, timeout_s: float, done: Done) -> None:
        """Send without waiting; a thread of the connection calls `done` later, which must not block."""

    def close(self) -> None:
        """Close the connection; unanswered calls fail."""


Connect = Callable[[str], PumpConnection]
"""Creates the connection to a target: HOST:PORT, or unix:PATH."""


def build_rpc_connect(tls: Tls | None = None) -> Connect:
    """Connections of `binlake.rpc`, with `tls` if given. Raises ConfigError for files that cannot be used."""
    if tls is not None:
        tls.build_client_context()
    # A Unix socket of this machine has no TLS, even if the pumps of the registry have.
    return lambda target: RpcConnection(target, None if target.startswith("unix:") else tls)


class RpcConnection:
    """A Connection on one channel. Requests sent without waiting go through a thread, which starts with the first one;
    if the pump supports it, requests that wait there together are sent in one call."""

    def __init__(self, target: str, tls: Tls | None = None) -> None:
        self._channel = Channel(target, tls=tls, connect_timeout_s=_CONNECT_S)
        self._queue: queue.SimpleQueue[SentRequest | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._sender: threading.Thread | None = None
        self._closed = False

    def write(self, request: WriteRequest, timeout_s: float) -> WriteRefusal | None:
        """See Connection."""
        message = request.build_message()
        return read_outcome(lambda: self._channel.call(METHOD, message, timeout_s))

    def send(self, request: WriteRequest, timeout_s: float, done: Done) -> None:
        """See Connection."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.put(SentRequest(request, timeout_s, done))
                if self._sender is None:
                    self._sender = threading.Thread(target=self._run, name="pumpclient-send", daemon=True)
                    self._sender.start()
        if closed:
            done(WriteRefusal("the connection was closed"))

    def close(self) -> None:
        """See Connection."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._channel.close()
        if self._sender is not None:
            self._sender.join()

    def _run(self) -> None:
        RequestSender(self._channel, self._queue).run()
