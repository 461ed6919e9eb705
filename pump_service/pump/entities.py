"""PullBinlogResp messages for the wire, many at once: the same bytes as protobuf would write, at a tenth of the cost.

entity (field 1) = pos (1, empty: Go emits it), payload (2), meta (4) = startTs (1), commitTs (2). Each message is
preceded by gRPC's prefix. The timestamps of a batch are encoded together, column by column.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from binlake.base.varint import write_uvarint
from binlake.wire.pump_pb2 import PullBinlogResp

_PREFIX = struct.Struct(">BI")
_FEW = 8
_NINE = 1 << 56  # timestamps from this one to below 2^63 are varints of nine bytes: all since 2016
_META_BYTES = 22
_SHIFTS = np.arange(0, 63, 7, dtype=np.uint64)

Entity = tuple[int, int, bytes]
"""start_ts, commit_ts, payload."""


def encode_message(start_ts: int, commit_ts: int, payload: bytes) -> bytes:
    """One PullBinlogResp."""
    response = PullBinlogResp()
    entity = response.entity
    entity.pos.SetInParent()
    entity.payload = payload
    entity.meta.startTs = start_ts
    entity.meta.commitTs = commit_ts
    return response.SerializeToString()


def frame_batch(batch: Sequence[Entity]) -> bytes:
    """The messages of `batch`, each with its prefix."""
    if len(batch) < _FEW:
        return b"".join(piece for entity in batch for piece in frame_in_pieces(entity))
    start_ts, commit_ts, payloads = zip(*batch, strict=True)
    ts = np.array((start_ts, commit_ts), np.uint64)
    if ts.min() < _NINE:
        return b"".join(piece for entity in batch for piece in frame_in_pieces(entity))
    metas = _encode_metas(ts)
    out: list[bytes] = []
    at = 0
    for payload in payloads:
        following = at + _META_BYTES
        out += (_encode_head(len(payload), _META_BYTES), payload, metas[at:following])
        at = following
    return b"".join(out)


def frame_in_pieces(entity: Entity) -> tuple[bytes, bytes, bytes]:
    """One message with its prefix, in pieces. The second piece is the payload itself, so a large one is not copied."""
    start_ts, commit_ts, payload = entity
    meta = b"".join(tag + write_uvarint(ts) for tag, ts in ((b"\x08", start_ts), (b"\x10", commit_ts)) if ts)
    return _encode_head(len(payload), len(meta) + 2), payload, b"\x22" + bytes((len(meta),)) + meta


def _encode_metas(ts: NDArray[np.uint64]) -> bytes:
    """The meta fields, 22 bytes each: tag and length, then a tag and nine bytes for each ts."""
    out = np.empty((ts.shape[1], _META_BYTES), np.uint8)
    out[:, 0], out[:, 1], out[:, 2], out[:, 12] = 0x22, 20, 0x08, 0x10
    for values, begin in zip(ts, (3, 13), strict=True):
        out[:, begin : begin + 9] = (values[:, None] >> _SHIFTS) & np.uint64(0x7F) | np.uint64(0x80)
        out[:, begin + 8] &= 0x7F
    return out.tobytes()


@lru_cache(4096)
def _encode_head(size: int, meta: int) -> bytes:
    """The bytes before a payload of `size` bytes that is followed by a meta field of `meta` bytes."""
    payload = b"\x12" + write_uvarint(size) if size else b""
    entity = 2 + len(payload) + size + meta
    response = b"\x0a" + write_uvarint(entity)
    return _PREFIX.pack(0, len(response) + entity) + response + b"\x0a\x00" + payload
