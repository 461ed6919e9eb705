"""The pump on the lean layer: recorded requests of the original's clients, answered byte for byte; plain HTTP."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Iterator
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import pytest
from pump_helpers import commit, prewrite, until

from binlake.cluster.pumpclient import PumpReader
from binlake.errors import ConfigError, SourceUnavailable
from binlake.pump_service.pump.lean_server import LeanServer
from binlake.pump_service.pump.service import PumpService, State
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.rpc import Channel, HttpResponse, PendingCall, RpcError, Status
from binlake.wire import blocks, build
from binlake.wire.binlog_pb2 import Binlog, Commit, Prewrite
from binlake.wire.blocks import BinlogPart
from binlake.wire.pump_pb2 import PullBinlogReq, WriteBinlogReq

RECORDED = Path(__file__).parent / "recorded"
CLUSTER_ID = 7710533641674055416  # cluster id of the recording
WRITE, PULL = "/binlog.Pump/WriteBinlog", "/binlog.Pump/PullBinlogs"


class Pump:
    """Storage, service and the lean server."""

    def __init__(self, folder: Path, memory_bytes: int = 256 << 20) -> None:
        self.storage = PumpStorage(folder / "pump", StorageOptions(memory_bytes=memory_bytes))
        self.service = PumpService(self.storage, CLUSTER_ID, free_bytes_needed=0)
        self.service.state = State.ONLINE
        # The path of pytest's folder may be too long for the name of a Unix socket.
        self._short = tempfile.TemporaryDirectory(prefix="bl-")
        self.socket = Path(self._short.name) / "pump.sock"
        pages = {"/status": HttpResponse(200, "text/plain", b"well\n")}
        self.server = LeanServer(self.service, "127.0.0.1:0", http=lambda asked: pages[asked.path], socket=self.socket)
        self.server.start()
        self.address = self.server.address

    def stop(self) -> None:
        self.service.end_pulls()
        self.server.stop(1)
        self.storage.close()
        self._short.cleanup()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes wait for room without a time limit, because the disk may be slow."""
    monkeypatch.setattr("binlake.pump_service.pump.lean_server._PATIENCE_S", 300.0)


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[Pump]:
    running = Pump(tmp_path)
    yield running
    running.stop()


def request(binlog: bytes) -> bytes:
    return WriteBinlogReq(clusterID=CLUSTER_ID, payload=binlog).SerializeToString()


@pytest.mark.parametrize("kind", ["dml.1", "ddl.1"])
def test_recorded_writes_are_acked_and_pulled_as_the_original_pump_sent_them(pump: Pump, kind: str) -> None:
    # S0-46, S0-53
    with Channel(pump.address) as channel:
        for name in ("WriteBinlogReq.probe", f"WriteBinlogReq.Prewrite.{kind}", f"WriteBinlogReq.Commit.{kind}"):
            assert channel.call(WRITE, (RECORDED / f"{name}.bin").read_bytes(), 60) == b""
        with channel.open_stream(PULL, b"\x08" + request(b"")[1:], idle_timeout_s=60) as stream:
            assert next(iter(stream)) == (RECORDED / f"PullBinlogResp.Commit.{kind}.bin").read_bytes()


def test_a_pull_starts_at_the_position_of_the_recorded_request(pump: Pump) -> None:
    with Channel(pump.address) as channel:
        for name in ("WriteBinlogReq.Prewrite.dml.1", "WriteBinlogReq.Commit.dml.1"):
            channel.call(WRITE, (RECORDED / f"{name}.bin").read_bytes(), 60)
        recorded = (RECORDED / "PullBinlogReq.bin").read_bytes()
        assert len(next(iter(channel.open_stream(PULL, recorded, idle_timeout_s=60)))) > 50


@pytest.mark.long
def test_many_writers_share_few_syncs_and_all_binlogs_are_pulled(pump: Pump) -> None:
    base = 470_000_000_000_000_000
    with Channel(pump.address) as channel:
        starts = range(base, base + 3000)
        for group in ([prewrite(start) for start in starts], [commit(start, start + 10_000) for start in starts]):
            calls = [channel.start(WRITE, request(binlog.SerializeToString())) for binlog in group]
            assert {call.await_result() for call in calls} == {b""}
    pulled = [commit_ts for commit_ts, _, _ in PumpReader(pump.address, CLUSTER_ID).pull(0, base + 12_999)]
    assert pulled == [start + 10_000 for start in starts]


@pytest.mark.long
def test_a_consumer_that_asks_for_blocks_gets_the_same_binlogs(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    # Small, large and huge ones, some whose P comes long before, rollbacks, fakes, and DDL.
    monkeypatch.setattr("binlake.pump_service.pump.pull._CACHE_BYTES", 3 << 20)
    base = 470_000_000_000_000_000
    sizes = [0, 10, 300, 70_000, 3 << 20, 400, 1 << 20, 20]
    early = [prewrite(base + number, b"early" * number) for number in range(1, 40)]
    binlogs = [*early]
    for number in range(1, 400):
        own = prewrite(base + 100 * number, b"v" * sizes[number % 8 if number % 50 < 8 else 1])
        if number % 70 == 0:
            own = build.build_prewrite(
                base + 100 * number, b"k", ddl_query=b"create table t (a int)", ddl_job_id=1000 + number
            )
        ended = build.build_rollback(own) if number % 33 == 0 else commit(own.start_ts, own.start_ts + 50)
        binlogs += [own, build.build_commit(own, own.start_ts + 50) if own.ddl_job_id else ended]
        if number <= len(early):
            binlogs.append(commit(base + number, base + 100 * number + 51))
        if number % 20 == 0:
            binlogs.append(build.build_fake(base + 100 * number + 60))
    end = base + 50_000
    with Channel(pump.address) as channel:
        for binlog in [*binlogs, build.build_fake(end)]:
            channel.call(WRITE, request(binlog.SerializeToString()))
    until(lambda: pump.storage.watermark == end, "all transactions are committed")
    singly = list(PumpReader(pump.address, CLUSTER_ID).pull(0, end))
    prewrites = {binlog.start_ts: binlog for binlog in binlogs if binlog.tp == Prewrite}
    whole = {b.commit_ts: prewrites[b.start_ts].prewrite_value for b in binlogs if b.tp == Commit}
    values = {ts: Binlog.FromString(payload).prewrite_value for ts, start_ts, payload in singly if ts != start_ts}
    assert values == whole
    pulled = list(PumpReader(pump.address, CLUSTER_ID).pull_blocks(0, end))
    assert [one for block in pulled for one in rows_of(block)] == singly
    assert len(singly) > 420
    assert len(pulled) < len(singly) / 4
    assert rows_of(next(PumpReader(pump.address, CLUSTER_ID).pull_blocks(end - 1, end))) == singly[-1:]
    # As received by a consumer that compresses.
    message = PullBinlogReq(clusterID=CLUSTER_ID).SerializeToString()
    with Channel(pump.address, gzip=True) as channel:
        stream = channel.open_stream(PULL, message, idle_timeout_s=60, metadata=[blocks.ASKED])
        assert rows_of(blocks.read_block(next(iter(stream)))) == singly[: len(pulled[0].commit_ts)]


def rows_of(block: blocks.BinlogBlock) -> list[tuple[int, int, bytes]]:
    ends = [0, *block.ends.tolist()]
    payloads = [bytes(block.data[start:stop]) for start, stop in pairwise(ends)]
    return list(zip(block.commit_ts.tolist(), block.start_ts.tolist(), payloads, strict=True))


def test_a_compressed_pull_returns_the_same_binlogs(pump: Pump) -> None:
    with Channel(pump.address) as channel:
        for number in range(1, 200, 2):
            channel.call(WRITE, request(prewrite(number, b"v" * 500).SerializeToString()))
            channel.call(WRITE, request(commit(number, number + 1).SerializeToString()))
    until(lambda: pump.storage.watermark == 200, "all transactions are committed")
    pulls = []
    for gzip in (False, True):
        with Channel(pump.address, gzip=gzip) as channel:
            stream = iter(channel.open_stream(PULL, b"\x08" + request(b"")[1:], idle_timeout_s=60))
            pulls.append([next(stream) for _ in range(100)])
    assert pulls[0] == pulls[1]


@pytest.mark.usefixtures("patient")
def test_writers_wait_when_too_much_is_in_flight_and_none_is_lost(tmp_path: Path) -> None:
    pump = Pump(tmp_path, memory_bytes=20_000)
    with Channel(pump.address) as channel:
        binlogs = [prewrite(number, b"v" * 5000) for number in range(1, 200)]
        calls = [channel.start(WRITE, request(binlog.SerializeToString()), 120) for binlog in binlogs]
        assert {call.await_result() for call in calls} == {b""}
    until(lambda: pump.storage.count_unmatched()[0] == 199, "all are stored")
    pump.stop()


class Stalled:
    """A pump whose disk accepts nothing until `go_on` is set: all of its memory is in flight."""

    def __init__(self, pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
        self._log, self._gate, self._pump = pump.storage._log, threading.Event(), pump
        append = self._log.append

        def waits(*args: Any) -> Any:
            self._gate.wait(120)
            return append(*args)

        monkeypatch.setattr(self._log, "append", waits)
        self.go_on = self._gate.set


def writes(channel: Channel, numbers: range, size: int, timeout_s: float) -> list[PendingCall]:
    binlogs = [prewrite(number, bytes(size)).SerializeToString() for number in numbers]
    return [channel.start(WRITE, request(binlog), timeout_s) for binlog in binlogs]


@pytest.mark.usefixtures("patient")
def test_info_and_pages_answer_while_the_disk_stalls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pump = Pump(tmp_path, memory_bytes=10_000)
    stalled = Stalled(pump, monkeypatch)
    with Channel(pump.address) as channel:
        calls = writes(channel, range(1, 100), 9000, 120)
        assert channel.call("/binlake.wire.PumpAdmin/Info", b"", 60)
        assert httpx.get(f"http://{pump.address}/status", timeout=60).text == "well\n"
        stalled.go_on()
        assert {call.await_result() for call in calls} == {b""}
    pump.stop()


def test_a_write_whose_caller_gave_up_while_it_waited_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pump = Pump(tmp_path, memory_bytes=10_000)
    stalled = Stalled(pump, monkeypatch)
    with Channel(pump.address) as channel:
        first = writes(channel, range(1, 2), 9000, 120)
        for call in writes(channel, range(2, 30), 9000, 0.3):
            with pytest.raises(RpcError, match=r"in time|deadline"):
                call.await_result()
        until(lambda: pump.server._waiting.bytes == 0, "the abandoned writes hold no memory")
        stalled.go_on()
        assert first[0].await_result() == b""
        assert writes(channel, range(100, 101), 9000, 120)[0].await_result() == b""
    until(lambda: pump.storage.count_unmatched()[0] == 2, "only the acked binlogs are stored")
    pump.stop()


def test_writes_that_wait_for_room_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.lean_server._WAITING_BYTES", 50_000)
    pump = Pump(tmp_path, memory_bytes=10_000)
    stalled = Stalled(pump, monkeypatch)
    with Channel(pump.address) as channel:
        calls = writes(channel, range(1, 20), 9000, 120)
        for call in calls[6:]:
            with pytest.raises(RpcError, match="behind") as caught:
                call.await_result()
            assert caught.value.status is Status.UNAVAILABLE
        stalled.go_on()
        assert {call.await_result() for call in calls[:6]} == {b""}
    pump.stop()


@pytest.mark.long
def test_a_write_that_waits_too_long_for_room_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.lean_server._PATIENCE_S", 0.1)
    pump = Pump(tmp_path, memory_bytes=10_000)
    stalled = Stalled(pump, monkeypatch)
    with Channel(pump.address) as channel:
        first, second = writes(channel, range(1, 3), 9000, 120)
        with pytest.raises(RpcError, match="behind") as caught:
            second.await_result()
        assert caught.value.status is Status.UNKNOWN  # tidb-binlog 2.8
        stalled.go_on()
        assert first.await_result() == b""
    pump.stop()


class BigPump:
    """A pump in a separate process whose peak memory can be read."""

    def __init__(self, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child = context.Pipe()
        self._process = context.Process(target=_serve, args=(folder, child))
        self._process.start()
        self.address: str = self._pipe.recv()

    def peak_bytes(self) -> int:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) << 10

    def stop(self) -> None:
        self._pipe.send(None)
        self._process.join()


def _serve(folder: Path, pipe: Connection) -> None:
    pump = Pump(folder)
    pipe.send(pump.address)
    pipe.recv()
    pump.stop()


@pytest.mark.process
def test_a_large_binlog_passes_without_many_copies(tmp_path: Path) -> None:
    # S0-07
    pump, size = BigPump(tmp_path), 100 << 20
    before = pump.peak_bytes()
    with Channel(pump.address) as channel:
        large = prewrite(1, bytes(size))
        for binlog in (large, commit(1, 2)):
            assert channel.call(WRITE, request(binlog.SerializeToString()), 300) == b""
    written = pump.peak_bytes()
    received = 0
    for part in PumpReader(pump.address, CLUSTER_ID).pull_parts(0, 2):
        assert isinstance(part, BinlogPart)
        received += len(part.data)
    in_parts = pump.peak_bytes()
    commit_ts, _, payload = next(PumpReader(pump.address, CLUSTER_ID).pull(0))
    assert (commit_ts, Binlog.FromString(payload).prewrite_value) == (2, large.prewrite_value)
    (block,) = PumpReader(pump.address, CLUSTER_ID).pull_blocks(0, 2)
    assert block.data == payload
    pulled = pump.peak_bytes()
    pump.stop()
    assert received == len(payload)
    # The message stands where it was received until it is on the disk, and is read in parts of a MiB.
    assert (written - before) / size < 1.3
    assert (in_parts - before) / size < 1.3
    assert (pulled - before) / size < 4


def test_refusals_name_their_reason(pump: Pump) -> None:
    with Channel(pump.address) as channel:
        for message, text in [
            (WriteBinlogReq(clusterID=1, payload=b"x").SerializeToString(), "cluster id"),
            (request(b"\xff"), "not a binlog"),
            (b"\xff\xff", "damaged WriteBinlogReq"),
        ]:
            with pytest.raises(RpcError, match=text):
                channel.call(WRITE, message, 60)
        pump.service.state = State.PAUSING
        with pytest.raises(RpcError, match="accepts no prewrites") as caught:
            channel.call(WRITE, request(prewrite(5).SerializeToString()), 60)
        assert caught.value.status is Status.UNKNOWN  # tidb-binlog 2.8
    with pytest.raises(ConfigError, match="cluster id"):
        next(PumpReader(pump.address, 1).pull(0))


def test_one_port_and_a_unix_socket_serve_grpc_health_and_pages(pump: Pump) -> None:
    assert httpx.get(f"http://{pump.address}/status", timeout=60).text == "well\n"
    for address in (pump.address, f"unix:{pump.socket}"):
        with Channel(address) as channel:
            assert channel.call(WRITE, (RECORDED / "WriteBinlogReq.probe.bin").read_bytes(), 60) == b""
            assert channel.call("/grpc.health.v1.Health/Check", b"", 60) == b"\x08\x01"


def test_a_stop_ends_pulls_as_unavailable_and_their_threads(pump: Pump) -> None:
    failures: list[SourceUnavailable] = []

    def pull() -> None:
        try:
            list(PumpReader(pump.address, CLUSTER_ID).pull(0))
        except SourceUnavailable as error:
            failures.append(error)

    pulls = [threading.Thread(target=pull) for _ in range(5)]
    for thread in pulls:
        thread.start()
    pulling = pump.server._pulls  # of this server: a thread of another server in this process may still be ending
    until(lambda: len(pulling._tail._members) == 5, "five pulls run")
    running = [pulling._tail._thread, *pulling._readers._threads]
    pump.service.end_pulls()
    for thread in pulls:
        thread.join(60)
    assert ["stopping" in str(error) for error in failures] == [True] * 5
    until(lambda: not any(thread.is_alive() for thread in running), "their threads end")
