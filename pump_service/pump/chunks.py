"""Splits a batch of transactions into framed messages, in pieces that do not block the loop for long.

Each message carries one binlog, as the original's do, or many binlogs for a consumer that asked for blocks
(binlake.wire.blocks).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from binlake.pump_service.pump import entities
from binlake.pump_service.pump.entities import Entity
from binlake.pump_service.pump.transaction_batch import TransactionBatch
from binlake.rpc import Call
from binlake.rpc.messages import PREFIX
from binlake.wire import blocks as wire

_CHUNK_BYTES = 256 << 10
_LARGE = 1 << 20  # bytes: larger payloads are not copied


def split_into_frames(batch: TransactionBatch, call: Call, *, blocks: bool) -> Iterator[tuple[int, list[bytes]]]:
    """The frames of `batch` for `call`, a few at a time, each group with the last commit_ts it contains."""
    return _frame_in_blocks(batch, call) if blocks else _frame_singly(batch.list_transactions(), call)


def _frame_singly(batch: list[Entity], call: Call) -> Iterator[tuple[int, list[bytes]]]:
    if call.request.gzip:
        for entity in batch:
            yield entity[1], [call.encode_message(entities.encode_message(*entity))]
        return
    first, size = 0, 0
    for at, entity in enumerate(batch):
        if len(entity[2]) >= _LARGE:
            if first < at:
                yield batch[at - 1][1], [entities.frame_batch(batch[first:at])]
            yield entity[1], list(entities.frame_in_pieces(entity))
            first, size = at + 1, 0
            continue
        size += len(entity[2])
        if size >= _CHUNK_BYTES:
            yield entity[1], [entities.frame_batch(batch[first : at + 1])]
            first, size = at + 1, 0
    if first < len(batch):
        yield batch[-1][1], [entities.frame_batch(batch[first:])]


def _frame_in_blocks(batch: TransactionBatch, call: Call) -> Iterator[tuple[int, list[bytes]]]:
    sizes = batch.sizes
    ends = sizes.cumsum()
    first = 0
    while first < len(sizes):
        before = int(ends[first] - sizes[first])
        last = max(first + 1, int(np.searchsorted(ends, before + _CHUNK_BYTES, side="right")))
        some = batch.select_range(first, last)
        head = wire.encode_head(some.commit_ts, some.start_ts, sizes[first:last])
        yield int(some.commit_ts[-1]), _frame_block(head, some.pieces, int(ends[last - 1]) - before, call)
        first = last


def _frame_block(head: bytes, pieces: list[bytes], size: int, call: Call) -> list[bytes]:
    if call.request.gzip:
        return [call.encode_message(b"".join((head, *pieces)))]
    begin = PREFIX.pack(0, len(head) + size) + head
    return [begin, *pieces] if size >= _LARGE else [b"".join((begin, *pieces))]
