"""The load of bench_pump.py and bench_end_to_end.py: unary gRPC calls over one connection, below 10 us of CPU per call.

It writes HTTP/2 frames itself and reads only the status of each answer, so that the server dominates the measurement.
`run_apart` runs it, or its floor, in a separate process: with the large heap of a test run, pauses of the garbage
collector would be counted as the server's time.
"""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import multiprocessing.connection
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from binlake.rpc import frames
from binlake.rpc.client_connection import encode_request_head
from binlake.rpc.frames import Setting
from binlake.rpc.headers import encode
from binlake.wire import build
from binlake.wire.pump_pb2 import WriteBinlogReq

_OK = encode([(b"grpc-status", b"0")])
_HEADER = frames.HEADER
_SPAWN = multiprocessing.get_context("spawn")
Result = TypeVar("Result")


@dataclass(frozen=True)
class PumpLoad:
    """Result of a run: number of calls, seconds, and the latency of each call in seconds, sorted."""

    calls: int
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds

    def compute_percentile(self, share: float) -> float:
        """Return the latency in milliseconds below which the given share of calls lies."""
        return self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))] * 1000


def measure_appends(path: Path, size: int, seconds: float) -> PumpLoad:
    """Measure the floor of a write: append `size` bytes to a file, each made durable before the next."""
    data, took = os.urandom(size), list[float]()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    began = now = time.perf_counter()
    while now - began < seconds:
        os.write(handle, data)
        os.fdatasync(handle)
        before, now = now, time.perf_counter()
        took.append(now - before)
    os.close(handle)
    return PumpLoad(len(took), now - began, sorted(took))


def run_apart(work: Callable[..., Result], *arguments: object) -> Result:
    """Run `work(*arguments)` in a separate process without garbage collection; return its result."""
    parent, child = _SPAWN.Pipe()
    process = _SPAWN.Process(target=_report, args=(child, work, arguments))
    process.start()
    child.close()
    try:
        return parent.recv()  # type: ignore[no-any-return]  # the result of `work`
    finally:
        process.join()


def _report(
    pipe: multiprocessing.connection.Connection, work: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    gc.disable()
    pipe.send(work(*arguments))


def write(address: str, path: str, cluster_id: int, writers: int, size: int, start: int, seconds: float) -> PumpLoad:
    """Run a load of P and C of about `size` bytes each; timestamps begin at `start`, one per call."""
    clock = itertools.count(start)
    return run(address, path, [_build_requests(clock, cluster_id, size) for _ in range(writers)], seconds)


def _build_requests(clock: Iterator[int], cluster_id: int, size: int) -> Iterator[bytes]:
    """Yield P and C of one writer in turn; a commit_ts is taken after the answer to its P."""
    value = os.urandom(max(0, size - 50))
    while True:
        prewrite = build.build_prewrite(next(clock), b"t\x80\x00\x00\x00\x00\x00\x00\x2d_r", value)
        yield WriteBinlogReq(clusterID=cluster_id, payload=prewrite.SerializeToString()).SerializeToString()
        commit = build.build_commit(prewrite, next(clock))
        yield WriteBinlogReq(clusterID=cluster_id, payload=commit.SerializeToString()).SerializeToString()


def run(address: str, path: str, writers: Sequence[Iterator[bytes]], seconds: float) -> PumpLoad:
    """Each writer sends its next message when the previous one is answered, and stops after a complete pair."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as wire:
        wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Run(wire, encode_request_head(path, address, "http", gzip=False)).drive(writers, seconds)


class _Run:
    def __init__(self, wire: socket.socket, block: bytes) -> None:
        self._wire = wire
        self._head = struct.pack(">BHBB", 0, len(block), frames.HEADERS, frames.END_HEADERS)
        self._block = block
        self._next_id = 1
        self._out: list[bytes] = []
        self._owner: dict[int, tuple[Iterator[bytes], float, bool]] = {}
        self._latencies: list[float] = []
        self._until = 0.0

    def drive(self, writers: Sequence[Iterator[bytes]], seconds: float) -> PumpLoad:
        settings = frames.encode_settings([(Setting.INITIAL_WINDOW_SIZE, 1 << 20)])
        self._wire.sendall(frames.PREFACE + settings + frames.encode_window_update(0, 1 << 30))
        began = time.perf_counter()
        self._until = began + seconds
        for writer in writers:
            self._call(writer, began, first=True)
        rest = b""
        while self._owner:
            self._flush()
            data = self._wire.recv(1 << 18)
            if not data:
                raise SystemExit("the server closed the connection")
            rest = take_frames(rest + data, self._on_answer, self._out.append)
        ended = time.perf_counter()
        self._latencies.sort()
        return PumpLoad(len(self._latencies), ended - began, self._latencies)

    def _call(self, writer: Iterator[bytes], now: float, *, first: bool) -> None:
        message = next(writer)
        stream_id = self._next_id.to_bytes(4, "big")
        size = len(message) + 5
        self._out.append(
            b"".join(
                (
                    self._head,
                    stream_id,
                    self._block,
                    struct.pack(">BHBB", 0, size, frames.DATA, frames.END_STREAM),
                    stream_id,
                    struct.pack(">BI", 0, size - 5),
                    message,
                )
            )
        )
        self._owner[self._next_id] = (writer, now, first)
        self._next_id += 2

    def _flush(self) -> None:
        if self._out:
            self._wire.sendall(b"".join(self._out))
            self._out.clear()

    def _on_answer(self, stream_id: int, block: bytes) -> None:
        require_ok(block)
        writer, began, first = self._owner.pop(stream_id)
        now = time.perf_counter()
        self._latencies.append(now - began)
        if first or now < self._until:
            self._call(writer, now, first=not first)


class Bulk:
    """One connection to a pump for blocks of equally long calls; numpy frames them. A call costs about 4 us of CPU."""

    def __init__(self, address: str, path: str) -> None:
        host, _, port = address.rpartition(":")
        self._wire = socket.create_connection((host, int(port)))
        self._wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._wire.sendall(frames.PREFACE + frames.encode_settings([]) + frames.encode_window_update(0, 1 << 30))
        self._block = encode_request_head(path, address, "http", gzip=False)
        self._next_id = 1
        self._waiting = 0
        self._rest = b""

    def send(self, *messages: np.ndarray) -> None:
        """Call once for each row of the arrays (uint8), in turn as long as all have rows; at most 8 MiB and 8,000 calls
        before the next `wait`.
        """
        together = min(map(len, messages))
        self._send_in_turn([part[:together] for part in messages])
        for part in messages:
            self._send_in_turn([part[together:]])

    def _send_in_turn(self, parts: list[np.ndarray]) -> None:
        """Call for the first row of each part, then for the second; all parts have the same number of rows."""
        rows, calls = len(parts[0]), len(parts) * len(parts[0])
        if not calls:
            return
        ids = np.arange(self._next_id, self._next_id + 2 * calls, 2).reshape(rows, len(parts))
        framed = np.hstack([self._frame(part, ids[:, number]) for number, part in enumerate(parts)])
        self._next_id += 2 * calls
        self._waiting += calls
        self._wire.sendall(framed.data)

    def _frame(self, messages: np.ndarray, ids: np.ndarray) -> np.ndarray:
        count, size = messages.shape
        head = struct.pack(">BHBBI", 0, len(self._block), frames.HEADERS, frames.END_HEADERS, 0) + self._block
        data = struct.pack(">BHBBI", 0, size + 5, frames.DATA, frames.END_STREAM, 0) + struct.pack(">BI", 0, size)
        fixed = np.frombuffer(head + data, np.uint8)
        calls = np.empty((count, len(fixed) + size), np.uint8)
        calls[:, : len(fixed)] = fixed
        calls[:, len(fixed) :] = messages
        streams = ids.astype(">u4").view(np.uint8).reshape(count, 4)
        for offset in (5, len(head) + 5):
            calls[:, offset : offset + 4] = streams
        return calls

    def wait(self) -> None:
        """Return when every call is answered. Raises SystemExit if one failed."""
        while self._waiting:
            data = self._wire.recv(1 << 20)
            if not data:
                raise SystemExit("the server closed the connection")
            self._rest = take_frames(self._rest + data, self._on_answer, self._wire.sendall)

    def _on_answer(self, _: int, block: bytes) -> None:
        require_ok(block)
        self._waiting -= 1

    def close(self) -> None:
        """Close the connection."""
        self._wire.close()


def take_frames(data: bytes, answered: Callable[[int, bytes], None], reply: Callable[[bytes], object]) -> bytes:
    """Consume the complete frames of `data` and return the rest; call `answered(stream, headers)` per finished call.

    Raises SystemExit if the server resets a stream or closes the connection.
    """
    at, size = 0, len(data)
    while size - at >= 9:
        high, low, kind, flags, stream_id = _HEADER.unpack_from(data, at)
        end = at + 9 + (high << 16 | low)
        if end > size:
            break
        if kind == frames.HEADERS and flags & frames.END_STREAM:
            answered(stream_id, data[at + 9 : end])
        elif kind == frames.SETTINGS and not flags:
            reply(frames.encode_frame(frames.SETTINGS, frames.ACK, 0))
        elif kind == frames.PING and not flags:
            reply(frames.encode_frame(frames.PING, frames.ACK, 0, data[at + 9 : end]))
        elif kind in (frames.GOAWAY, frames.RST_STREAM):
            raise SystemExit(f"the server ended the stream: {data[at:end]!r}")
        at = end
    return data[at:]


def require_ok(block: bytes) -> None:
    """Raises SystemExit if the trailers report an error."""
    # grpcio encodes the same trailers differently; an error also has a message and is longer than both encodings.
    if block != _OK and len(block) > 32:
        raise SystemExit(f"a call failed: {block!r}")
