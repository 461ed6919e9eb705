"""What a crash may leave after the last acked record of a value log, on simulated and on real disks.

None of it was ever acked, so none of it may be missed or released.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from binlake.pump_service.pump.record import HEAD, frame_of
from binlake.wire.binlog_pb2 import Binlog

Tail = Callable[[bytes, Random], bytes]
"""The random bytes, given a whole record at that offset as the first argument."""


def _garbage(record: bytes, random: Random) -> bytes:
    del record
    return random.randbytes(random.randint(1, 300))


def _zeros(record: bytes, random: Random) -> bytes:
    del record
    return bytes(random.randint(1, 5000))


def _torn(record: bytes, random: Random) -> bytes:
    return record[: random.randint(1, len(record) - 1)]


def _corrupt(record: bytes, random: Random) -> bytes:
    data = bytearray(record)
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(data)


def _nothing(record: bytes, random: Random) -> bytes:
    del record, random
    return b""


def _whole(record: bytes, random: Random) -> bytes:
    del random
    return record


TAILS: dict[str, Tail] = {
    "none": _nothing, "garbage": _garbage, "zeros": _zeros, "torn": _torn, "corrupt": _corrupt, "unacked": _whole,
}  # fmt: skip
"""`unacked`: a whole record of a binlog that was never acked."""


def leave_behind(segment: Path, kind: str, binlog: Binlog, random: Random) -> None:
    """Append a tail of this kind to a value-log file of a pump that does not run."""
    payload = binlog.SerializeToString()
    content = segment.read_bytes()
    frame = frame_of(int(segment.stem), content[: HEAD.size])
    record = b"no head" if frame is None else frame.encode_header(payload, len(content), 0) + payload
    with segment.open("ab") as file:
        file.write(TAILS[kind](record, random))
