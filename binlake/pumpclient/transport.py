"""How a request reaches one pump, and nothing about which: the seam between the pump client and RPC.

A connection carries many calls at once and connects by itself, before the first call and after it broke.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import grpc

from binlake.errors import ConfigError
from binlake.wire.pump_pb2 import WriteBinlogReq, WriteBinlogResp

_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
    # A pump that restarts is found again quickly: its C are waiting.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
_METHOD = "/binlog.Pump/WriteBinlog"


@dataclass(frozen=True)
class Refused:
    """Why a write failed. `too_large`: the message exceeds a limit of the connection, no other try can change that."""

    text: str
    too_large: bool = False


Done = Callable[[Refused | None], None]
"""Told once how a call ended: None = stored."""


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


@dataclass(frozen=True)
class Tls:
    """PEM files, the original's `[security]` block: ssl-ca, ssl-cert, ssl-key (tidb-binlog 1.5).

    Without `cert` and `key` the client shows no certificate of its own.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files. Raises ConfigError naming the one that cannot be read."""
        if (self.cert is None) != (self.key is None):
            raise ConfigError("ssl-cert and ssl-key go together", where={"ssl-cert": self.cert, "ssl-key": self.key})
        ca, cert, key = (None if path is None else _read(path) for path in (self.ca, self.cert, self.key))
        return grpc.ssl_channel_credentials(ca, key, cert)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"a TLS file cannot be read: {error.strerror}", where={"file": path}) from error


class GrpcConnection:
    """A Connection on grpcio."""

    def __init__(self, target: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._channel = (
            grpc.insecure_channel(target, options=_OPTIONS)
            if credentials is None
            else grpc.secure_channel(target, credentials, options=_OPTIONS)
        )
        self._call: grpc.UnaryUnaryMultiCallable[WriteBinlogReq, WriteBinlogResp] = self._channel.unary_unary(
            _METHOD, WriteBinlogReq.SerializeToString, WriteBinlogResp.FromString
        )

    def write(self, request: WriteBinlogReq, timeout_s: float) -> Refused | None:
        """See Connection."""
        try:
            return _of_answer(self._call(request, timeout=timeout_s))
        except grpc.RpcError as error:
            return _of_error(error)
        except ValueError:
            return Refused("the connection was closed")  # grpc's way to say so

    def send(self, request: WriteBinlogReq, timeout_s: float, done: Done) -> None:
        """See Connection."""

        def ended(call: grpc.Future[WriteBinlogResp]) -> None:
            try:
                done(_of_answer(call.result()))
            except grpc.FutureCancelledError:
                done(Refused("the connection was closed"))
            except grpc.RpcError as error:
                done(_of_error(error))

        try:
            self._call.future(request, timeout=timeout_s).add_done_callback(ended)
        except ValueError:
            done(Refused("the connection was closed"))

    def close(self) -> None:
        """See Connection."""
        self._channel.close()


def grpc_connect(tls: Tls | None = None) -> Connect:
    """Connections on grpcio, with `tls` if given. Raises ConfigError for unreadable files."""
    credentials = None if tls is None else tls.credentials()
    return lambda target: GrpcConnection(target, credentials)


def _of_answer(answer: WriteBinlogResp) -> Refused | None:
    return Refused(answer.errmsg) if answer.errmsg else None


def _of_error(error: grpc.RpcError) -> Refused:
    code = error.code()
    return Refused(f"{error.details()} ({code.name})", too_large=code is grpc.StatusCode.RESOURCE_EXHAUSTED)
