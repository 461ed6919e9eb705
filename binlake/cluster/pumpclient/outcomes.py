"""The outcome of a call to a pump: stored, or why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError

from binlake.rpc import RpcError, Status
from binlake.wire.pump_pb2 import WriteBinlogResp

log = structlog.get_logger()


@dataclass(frozen=True)
class Refusal:
    """Why a write failed. `too_large`: the message exceeds a limit of the connection, no other try can change that."""

    text: str
    too_large: bool = False


Done = Callable[[Refusal | None], None]
"""Called once with the outcome of a call: None = stored."""


def read_any_outcome(call: Callable[[], bytes]) -> Refusal | None:
    """The outcome of a WriteBinlog, whatever it raises."""
    try:
        return read_outcome(call)
    except Exception as error:
        log.exception("pump_send_failed")
        return refusal_of_error(error)


def read_outcome(call: Callable[[], bytes]) -> Refusal | None:
    """The outcome of a WriteBinlog."""
    try:
        answer = WriteBinlogResp.FromString(call())
    except RpcError as error:
        return refusal_of_status(error)
    except DecodeError as error:
        return Refusal(f"damaged answer: {error}")
    return Refusal(answer.errmsg) if answer.errmsg else None


def refusal_of_error(error: Exception) -> Refusal:
    """The refusal for an error that is not an answer of a pump."""
    return Refusal(f"{type(error).__name__}: {error}")


def refusal_of_status(error: RpcError) -> Refusal:
    """The refusal for the status of a call."""
    # RESOURCE_EXHAUSTED alone may be a matter of load: another pump, or a later try, may take it.
    too_large = error.status is Status.RESOURCE_EXHAUSTED and "larger than max" in error.message
    return Refusal(f"{error.message} ({error.status.name})", too_large=too_large)
