"""A pump in a separate process, attacked over loopback: measures the cost, and whether other clients are served."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from pump_cluster import CLUSTER_ID
from pump_helpers import commit, prewrite
from support.rawpeer import RawPeer, raw, request_block

from binlake import tso
from binlake.rpc import Channel, RpcError, frames
from binlake.rpc.frames import Setting
from binlake.wire.pump_pb2 import PullBinlogReq, WriteBinlogReq

WRITE, PULL, INFO = "/binlog.Pump/WriteBinlog", "/binlog.Pump/PullBinlogs", "/binlake.wire.PumpAdmin/Info"
WATCH = "/grpc.health.v1.Health/Watch"
_ANSWER_S = 60.0  # seconds that a client of an attacked pump may wait on a busy machine


@dataclass
class Cost:
    """What the process used during a block: seconds of CPU, and how many MiB its memory grew (at its peak)."""

    cpu_s: float = 0.0
    mib: float = 0.0


class AttackedPump:
    """The process and its address."""

    def __init__(self, process: subprocess.Popen[str], address: str, log: Path) -> None:
        self.process = psutil.Process(process.pid)
        self.address = address
        self._log = log

    def log_bytes(self) -> int:
        """Size of the pump's log in bytes."""
        return self._log.stat().st_size

    def cpu_s(self) -> float:
        """Seconds of CPU since it started."""
        times = self.process.cpu_times()
        return times.user + times.system

    @contextlib.contextmanager
    def costs(self, name: str) -> Iterator[Cost]:
        """Measure what the block costs the pump; the kernel reports the memory peak."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")
        cost, cpu_s, rss = Cost(), self.cpu_s(), self._memory("VmRSS")
        yield cost
        cost.cpu_s, cost.mib = self.cpu_s() - cpu_s, self._memory("VmHWM") - rss
        print(json.dumps({"attack": name, "cpu_s": round(cost.cpu_s, 2), "mib": round(cost.mib, 1)}))

    def _memory(self, field: str) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        raise AssertionError(f"no {field}")

    def answers(self) -> bool:
        """Whether a new client can ask and write."""
        with Channel(self.address) as channel:
            channel.call(INFO, b"", _ANSWER_S)
            channel.call(WRITE, write_request(b""), _ANSWER_S)
        return True

    def threads(self) -> int:
        """Number of threads of the process."""
        return self.process.num_threads()

    def connections(self) -> int:
        """Number of connections open at its port."""
        port = int(self.address.rpartition(":")[2])
        return sum(one.laddr.port == port and one.status == "ESTABLISHED" for one in self.process.net_connections())

    def store(self, size: int) -> None:
        """Make it store transactions of 64 KiB, `size` bytes in total."""
        with Channel(self.address) as channel:
            now = tso.compose(int(time.time() * 1000)) - (size >> 10)
            for at in range(size >> 16):
                start_ts = now + 2 * at
                for binlog in (prewrite(start_ts, bytes(1 << 16)), commit(start_ts, start_ts + 1)):
                    channel.call(WRITE, write_request(binlog.SerializeToString()), _ANSWER_S)

    def store_one(self, size: int) -> None:
        """Make it store one transaction of `size` bytes."""
        with Channel(self.address) as channel:
            start_ts = tso.compose(int(time.time() * 1000) - 1000)
            for binlog in (prewrite(start_ts, bytes(size)), commit(start_ts, start_ts + 1)):
                channel.call(WRITE, write_request(binlog.SerializeToString()), _ANSWER_S)

    def accepts(self, size: int) -> bool:
        """Whether the pump now accepts a binlog of `size` bytes."""
        with Channel(self.address) as channel:
            try:
                channel.call(WRITE, write_request(prewrite(1, bytes(size)).SerializeToString(), cluster=1), _ANSWER_S)
            except RpcError as error:
                return "mismatched cluster id" in error.message  # the whole message has reached the pump
        raise AssertionError("a write with a foreign cluster id was accepted")

    @contextlib.contextmanager
    def raw(self, *, window: int | None = None) -> Iterator[RawPeer]:
        """A peer of raw frames whose streams have a window of `window` bytes."""
        own = b"" if window is None else frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, window)])
        with raw(self.address, settings=own) as peer:
            yield peer


def write_request(payload: bytes, *, cluster: int = CLUSTER_ID) -> bytes:
    """A WriteBinlogReq."""
    return WriteBinlogReq(clusterID=cluster, payload=payload).SerializeToString()


def pull_request(after_ts: int, *, cluster: int = CLUSTER_ID) -> bytes:
    """A PullBinlogReq."""
    request = PullBinlogReq(clusterID=cluster)
    request.startFrom.offset = after_ts
    return request.SerializeToString()


def whole_call(stream_id: int, path: str, message: bytes, more: Sequence[tuple[str, str]] = ()) -> bytes:
    """The frames of a unary request that fits into one DATA frame; `more`: metadata."""
    body = len(message).to_bytes(5, "big") + message
    block = request_block(path, *((name.encode(), value.encode()) for name, value in more))
    return frames.encode_headers(stream_id, block, end_stream=False) + frames.encode_frame(
        frames.DATA, frames.END_STREAM, stream_id, body
    )


@contextlib.contextmanager
def attacked_pump(folder: Path) -> Iterator[AttackedPump]:
    """Starts one and kills it at the end."""
    child = Path(__file__).parent / "pump_child.py"
    errors = (folder / "log").open("w", encoding="utf-8")
    with (
        errors,
        subprocess.Popen(
            [sys.executable, str(child), str(folder / "data"), "--as-a-process"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, (folder / "log").read_text(encoding="utf-8")
            yield AttackedPump(process, address, folder / "log")
        finally:
            process.kill()
