"""How a request reaches one pump, whichever was chosen: the seam between the pump client and RPC.

A connection carries many calls at once and connects by itself, before the first call and after it broke.
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

from binlake.rpc import Channel, PendingCall, RpcError, Status, Tls
from binlake.wire.pump_pb2 import WriteBinlogReq, WriteBinlogResp

log = structlog.get_logger()

_METHOD = "/binlog.Pump/WriteBinlog"
_CONNECT_S = 5.0
_AT_ONCE = 64  # sent without waiting and not answered yet


@dataclass(frozen=True)
class Refused:
    """Why a write failed. `too_large`: the message exceeds a limit of the connection, no other try can change that."""

    text: str
    too_large: bool = False


Done = Callable[[Refused | None], None]
"""Called once with the outcome of a call: None = stored."""


class Connection(Protocol):
    """To one pump; thread-safe."""

    def write(self, request: WriteBinlogReq, timeout_s: float) -> Refused | None:
        """Send and wait; None = stored."""

    def send(self, request: WriteBinlogReq, timeout_s: float, done: Done) -> None:
        """Send; `done` is called later, from a thread of the connection: it must not block."""

    def close(self) -> None:
        """End it with the calls on their way."""


Connect = Callable[[str], Connection]
"""Makes the connection to a target: HOST:PORT, or unix:PATH."""


def rpc_connect(tls: Tls | None = None) -> Connect:
    """Connections of `binlake.rpc`, with `tls` if given. Raises ConfigError for files that cannot be used."""
    if tls is not None:
        tls.client_context()
    # A Unix socket of this machine speaks no TLS, whatever the pumps of the registry do.
    return lambda target: RpcConnection(target, None if target.startswith("unix:") else tls)


class RpcConnection:
    """A Connection on one channel. What is sent without waiting goes through a thread, started with the first one."""

    def __init__(self, target: str, tls: Tls | None = None) -> None:
        self._channel = Channel(target, tls=tls, connect_timeout_s=_CONNECT_S)
        self._queue: queue.SimpleQueue[tuple[bytes, float, Done] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._sender: threading.Thread | None = None
        self._closed = False

    def write(self, request: WriteBinlogReq, timeout_s: float) -> Refused | None:
        """See Connection."""
        message = request.SerializeToString()
        return _read_outcome(lambda: self._channel.call(_METHOD, message, timeout_s))

    def send(self, request: WriteBinlogReq, timeout_s: float, done: Done) -> None:
        """See Connection."""
        with self._lock:
            closed = self._closed
            if not closed:
                self._queue.put((request.SerializeToString(), timeout_s, done))
                if self._sender is None:
                    self._sender = threading.Thread(target=self._run, name="pumpclient-send", daemon=True)
                    self._sender.start()
        if closed:
            done(Refused("the connection was closed"))

    def close(self) -> None:
        """See Connection."""
        with self._lock:
            self._closed = True
            self._queue.put(None)
        self._channel.close()
        if self._sender is not None:
            self._sender.join()

    def _run(self) -> None:
        waiting: deque[tuple[PendingCall, Done]] = deque()
        open_ = True
        while open_ or waiting:
            while open_ and len(waiting) < _AT_ONCE and (not waiting or not self._queue.empty()):
                one = self._queue.get()
                open_ = one is not None
                if one is not None:
                    self._begin(*one, waiting)
            if waiting:
                call, done = waiting.popleft()
                done(_outcome_or_error(call.result))

    def _begin(self, message: bytes, timeout_s: float, done: Done, waiting: deque[tuple[PendingCall, Done]]) -> None:
        try:
            call = self._channel.start(_METHOD, message, timeout_s)
        except RpcError as error:
            done(_refused(error))
        except Exception as error:
            # Only this call fails: later ones need the thread.
            log.exception("pump_send_failed")
            done(_refused_by_error(error))
        else:
            waiting.append((call, done))


def _outcome_or_error(call: Callable[[], bytes]) -> Refused | None:
    try:
        return _read_outcome(call)
    except Exception as error:
        log.exception("pump_send_failed")
        return _refused_by_error(error)


def _refused_by_error(error: Exception) -> Refused:
    return Refused(f"{type(error).__name__}: {error}")


def _read_outcome(call: Callable[[], bytes]) -> Refused | None:
    try:
        answer = WriteBinlogResp.FromString(call())
    except RpcError as error:
        return _refused(error)
    except DecodeError as error:
        return Refused(f"damaged answer: {error}")
    return Refused(answer.errmsg) if answer.errmsg else None


def _refused(error: RpcError) -> Refused:
    # RESOURCE_EXHAUSTED alone may be a matter of load: another pump, or a later try, may take it.
    too_large = error.status is Status.RESOURCE_EXHAUSTED and "larger than max" in error.message
    return Refused(f"{error.message} ({error.status.name})", too_large=too_large)
