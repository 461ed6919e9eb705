"""Many pulled binlogs in one message, or one binlog in many: what a pump sends to a consumer that asks for it.

A block, all little endian: magic, number n; n commit_ts i64, ascending; n start_ts i64; n sizes u32; then the payloads,
concatenated. A part of a large binlog: another magic, commit_ts i64, start_ts i64, bytes of the payload u64, offset of
the part in it u64; then its bytes. The parts of a binlog follow each other, with nothing between them.

No PullBinlogResp begins with a magic (no field has the tag 0), so a stream may contain all of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from binlake.errors import WireError

ASKED = ("binlake-blocks", "1")
"""The metadata of a PullBinlogs call whose caller accepts blocks. An original pump ignores it."""
PARTS_ASKED = ("binlake-parts", "1")
"""The metadata of a call whose caller also accepts large binlogs in parts."""
MAGIC, PART_MAGIC = b"\x00BL\x01", b"\x00BL\x02"
PART_BYTES = 1 << 20
"""Bytes of a part."""
_PART = struct.Struct("<4sqqQQ")
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


class BinlogPart(NamedTuple):
    """The bytes of a large binlog from `offset` on; its payload has `size` bytes in all."""

    commit_ts: int
    start_ts: int
    size: int
    offset: int
    data: memoryview

    @property
    def is_last(self) -> bool:
        """Whether the binlog ends with this part."""
        return self.offset + len(self.data) == self.size


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


def encode_part_head(commit_ts: int, start_ts: int, size: int, offset: int) -> bytes:
    """The bytes before those of a part."""
    return _PART.pack(PART_MAGIC, commit_ts, start_ts, size, offset)


def read_part(message: bytes) -> BinlogPart:
    """Read the part of a message that begins with PART_MAGIC. Raises WireError."""
    if len(message) <= _PART.size:
        raise WireError("the pump sent a part of a binlog without bytes", where={"bytes": len(message)})
    _, commit_ts, start_ts, size, offset = _PART.unpack_from(message)
    part = BinlogPart(commit_ts, start_ts, size, offset, memoryview(message)[_PART.size :])
    if offset + len(part.data) > size:
        raise WireError("the pump sent more of a binlog than it has", where={"commit_ts": commit_ts, "bytes": size})
    return part


def cut_into_parts(block: BinlogBlock) -> Iterator[BinlogPart]:
    """The binlogs of `block` as parts, which are views of it."""
    begin = 0
    for commit_ts, start_ts, end in zip(*(column.tolist() for column in block[:3]), strict=True):
        for offset in range(0, max(end - begin, 1), PART_BYTES):
            data = block.data[begin + offset : min(begin + offset + PART_BYTES, end)]
            yield BinlogPart(commit_ts, start_ts, end - begin, offset, data)
        begin = end


def build_block(commit_ts: Sequence[int], start_ts: Sequence[int], payloads: Sequence[bytes]) -> BinlogBlock:
    """Make a block of binlogs that were received one by one."""
    ends = np.fromiter(map(len, payloads), np.int64, len(payloads)).cumsum()
    data = memoryview(payloads[0] if len(payloads) == 1 else b"".join(payloads))
    return BinlogBlock(np.array(commit_ts, np.int64), np.array(start_ts, np.int64), ends, data)
