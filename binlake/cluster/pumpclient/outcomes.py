"""The outcome of a call to a pump: stored, or the reason why not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError

from binlake.rpc import RpcError, Status
from binlake.wire.pump_pb2 import WriteBinlogResp

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
