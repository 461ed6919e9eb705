"""Receives the request of a call on the server: refuses it as soon as it is known to be too large, and copies it as
seldom as possible."""

from __future__ import annotations

from typing import cast

from binlake.rpc import messages
from binlake.rpc.call import Call
from binlake.rpc.frames import Code, StreamFault
from binlake.rpc.limits import LARGE, Assembly, Limits
from binlake.rpc.messages import RpcError, Status

# Local names, since each call needs them.
_PREFIX_BYTES, _unpack_prefix = messages.PREFIX_BYTES, messages.PREFIX.unpack_from
_MANY_PARTS = 512
_SMALL_PART = 4096  # bytes: smaller parts are joined, as their objects exceed their content


def add(call: Call, payload: bytes) -> None:
    """Append a piece, which `call.received` already includes."""
    if call.large is not None:
        call.large += payload
    elif call.parts is None:
        call.parts = [payload]
    else:
        call.parts.append(payload)


def check(call: Call, limits: Limits, assembly: Assembly) -> None:
    """Check an incomplete request. Raises RpcError for the answer, StreamFault for plain HTTP."""
    parts = call.parts or []
    if len(parts) >= _MANY_PARTS and call.received < len(parts) * _SMALL_PART:
        parts[:] = [b"".join(parts)]
    if not call.request.grpc:
        if call.received > limits.http_body_bytes:
            raise StreamFault(call.id, Code.ENHANCE_YOUR_CALM, "the body is too large")
        call.share = assembly.small
        if not call.share.grow(call, call.received):
            raise StreamFault(call.id, Code.REFUSED_STREAM, "too many unfinished requests")
        return
    if not call.declared:
        if call.received < messages.PREFIX_BYTES:
            return
        parts[:] = [b"".join(parts)]
        _declare(call, parts, limits, assembly)
    if call.received > call.declared:
        raise RpcError(Status.INTERNAL, "more than one message in a unary request")
    assert call.share is not None
    if not call.share.grow(call, call.received):
        kind = "large messages" if call.share is assembly.large else "unfinished requests"
        raise RpcError(Status.UNAVAILABLE, f"the server receives too many {kind}")


def _declare(call: Call, parts: list[bytes], limits: Limits, assembly: Assembly) -> None:
    length = messages.PREFIX.unpack_from(parts[0])[1]
    if length > limits.message_bytes:
        raise messages.build_too_large_error(length, limits.message_bytes)
    call.declared = length + messages.PREFIX_BYTES
    call.share = assembly.large if length > LARGE else assembly.small
    if length > LARGE:
        # Grows in place: many small pieces would fragment the heap.
        call.large, call.parts = bytearray(parts[0]), None


def take_body(call: Call) -> list[bytes]:
    """Remove the pieces of a complete request from the call; a large message is a view of where it was received."""
    parts, call.parts = call.parts or [], None
    if call.large is None:
        return parts
    large, call.large = call.large, None
    view = memoryview(large).toreadonly()
    # Only handlers that take views are given it; for all others it becomes bytes.
    return [bytes(view[: messages.PREFIX_BYTES]), cast("bytes", view[messages.PREFIX_BYTES :])]


def read_message(call: Call, parts: list[bytes], max_bytes: int) -> tuple[int, bytes]:
    """The single message in the pieces of a gRPC request, after its flag; a large one as a view. Raises RpcError."""
    received = call.received
    if received < _PREFIX_BYTES:
        raise RpcError(Status.INTERNAL, "a unary request needs one message")
    if len(parts[0]) < _PREFIX_BYTES:
        parts = [b"".join(parts)]
    flag, length = _unpack_prefix(parts[0])
    if length > max_bytes:
        raise messages.build_too_large_error(length, max_bytes)
    if length + _PREFIX_BYTES != received:
        raise RpcError(Status.INTERNAL, "a unary request needs one whole message")
    if len(parts) == 1:
        return flag, parts[0][_PREFIX_BYTES:]
    parts[0] = parts[0][_PREFIX_BYTES:]
    parts = [part for part in parts if part]
    return flag, parts[0] if len(parts) == 1 else b"".join(parts)


def reserve(call: Call, packed: bytes, max_bytes: int, assembly: Assembly) -> int:
    """Reserve the memory of a compressed message before it is unpacked; returns the bytes. Raises RpcError."""
    size = messages.read_unpacked_size(packed, max_bytes)
    call.share = assembly.large if size > LARGE else assembly.small
    if not call.share.grow(call, size):
        raise RpcError(Status.UNAVAILABLE, "the server unpacks too many messages")
    return size
