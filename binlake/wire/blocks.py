"""Many pulled binlogs in one message. If a consumer asks for blocks, a pump sends these instead of single binlogs.

Layout, all little endian: magic, number n; n commit_ts i64, ascending; n start_ts i64; n sizes u32; then the payloads,
concatenated. No PullBinlogResp begins with the magic (no field has the tag 0), so a stream may contain both.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from binlake.errors import WireError

ASKED = ("binlake-blocks", "1")
"""The metadata of a PullBinlogs call whose caller accepts blocks. An original pump ignores it."""
MAGIC = b"\x00BL\x01"
_HEAD = struct.Struct("<4sI")

Ints = NDArray[np.int64]


class BinlogBlock(NamedTuple):
    """Binlogs in ascending commit_ts. The payload of number n is `data[ends[n - 1]:ends[n]]`; a fake binlog has
    commit_ts == start_ts."""

    commit_ts: Ints
    start_ts: Ints
    ends: Ints
    data: memoryview

    def take_first(self, count: int) -> BinlogBlock:
        """The first `count` binlogs."""
        return BinlogBlock(self.commit_ts[:count], self.start_ts[:count], self.ends[:count], self.data)


def encode_head(commit_ts: Ints, start_ts: Ints, sizes: Ints) -> bytes:
    """The bytes before the payloads: magic, count and columns."""
    columns = (commit_ts.astype("<i8"), start_ts.astype("<i8"), sizes.astype("<u4"))
    return b"".join((_HEAD.pack(MAGIC, len(sizes)), *(column.tobytes() for column in columns)))


def read_block(message: bytes) -> BinlogBlock:
    """Read the block of a message that begins with the magic. Raises WireError."""
    count = _HEAD.unpack_from(message)[1] if len(message) >= _HEAD.size else 0
    begin = _HEAD.size + 20 * count
    if not count or begin > len(message):
        raise WireError("the pump sent a block without its index", where={"bytes": len(message)})
    commit_ts = np.frombuffer(message, "<i8", count, _HEAD.size)
    start_ts = np.frombuffer(message, "<i8", count, _HEAD.size + 8 * count)
    ends = np.frombuffer(message, "<u4", count, _HEAD.size + 16 * count).cumsum(dtype=np.int64)
    if ends[-1] != len(message) - begin:
        raise WireError("the pump sent a block whose index does not fit", where={"bytes": len(message)})
    return BinlogBlock(commit_ts, start_ts, ends, memoryview(message)[begin:])


def build_block(commit_ts: Sequence[int], start_ts: Sequence[int], payloads: Sequence[bytes]) -> BinlogBlock:
    """Make a block of binlogs that were received one by one."""
    ends = np.fromiter(map(len, payloads), np.int64, len(payloads)).cumsum()
    data = memoryview(payloads[0] if len(payloads) == 1 else b"".join(payloads))
    return BinlogBlock(np.array(commit_ts, np.int64), np.array(start_ts, np.int64), ends, data)
