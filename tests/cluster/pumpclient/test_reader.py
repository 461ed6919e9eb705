"""PumpReader: what a pull yields, when it ends, and one clear error for each kind of failure (hazards R-26, R-48)."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise

import grpc
import numpy as np
import pytest

from binlake.cluster.pumpclient import PumpReader
from binlake.errors import BinlakeError, ConfigError, LostRange, SourceUnavailable, WireError
from binlake.rpc.client import MessageStream
from binlake.wire import blocks, pump_pb2, pump_pb2_grpc
from binlake.wire.blocks import BinlogBlock
from deploy.local.ports import free_port


class StubPump(pump_pb2_grpc.PumpServicer):
    """Emits commit_ts 1, 2, 3, ... up to `upto`, then calls `then`; like an original pump it has no PumpAdmin."""

    def __init__(self) -> None:
        self.upto = 1000
        self.then: grpc.StatusCode | None = None
        self.hang = threading.Event()
        self.left = threading.Event()
        self.server = grpc.server(ThreadPoolExecutor(4))
        pump_pb2_grpc.add_PumpServicer_to_server(self, self.server)
        self.addr = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def PullBinlogs(
        self, request: pump_pb2.PullBinlogReq, context: grpc.ServicerContext
    ) -> Iterator[pump_pb2.PullBinlogResp]:
        context.add_callback(self.left.set)
        for ts in range(request.startFrom.offset + 1, self.upto + 1):
            entity = pump_pb2.Entity(payload=b"%d" % ts, meta=pump_pb2.Meta(startTs=ts, commitTs=ts))
            yield pump_pb2.PullBinlogResp(entity=entity)
        if self.then is grpc.StatusCode.OK:
            return
        if self.then is not None:
            context.abort(self.then, "because")
        self.left.wait(120)


@pytest.fixture
def pump() -> Iterator[StubPump]:
    stub = StubPump()
    yield stub
    stub.left.set()
    stub.server.stop(0).wait()


def test_pull_starts_after_the_given_ts_and_ends_with_the_first_entity_at_or_above_the_end(pump: StubPump) -> None:
    found = list(PumpReader(pump.addr, 7).pull(5, 8))
    assert found == [(6, 6, b"6"), (7, 7, b"7"), (8, 8, b"8")]
    assert pump.left.wait(60), "the pump did not notice that the reader left"


def test_binlogs_of_an_original_pump_are_grouped_into_blocks(pump: StubPump) -> None:
    found = list(PumpReader(pump.addr, 7).pull_blocks(5, 8))
    assert [ts for block in found for ts in block.commit_ts.tolist()] == [6, 7, 8]
    assert [payload for block in found for payload in payloads(block)] == [b"6", b"7", b"8"]
    assert pump.left.wait(60), "the pump did not notice that the reader left"


def payloads(block: BinlogBlock) -> list[bytes]:
    ends = [0, *block.ends.tolist()]
    return [bytes(block.data[start:end]) for start, end in pairwise(ends)]


def test_stream_may_mix_blocks_and_single_binlogs_and_damage_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def message(*binlogs: tuple[int, bytes]) -> bytes:
        ts = np.array([one for one, _ in binlogs])
        head = blocks.encode_head(ts, ts - 1, np.array([len(payload) for _, payload in binlogs]))
        return head + b"".join(payload for _, payload in binlogs)

    def pulled(*sent: list[bytes]) -> list[tuple[int, int, bytes]]:
        monkeypatch.setattr(MessageStream, "receive_batches", lambda _: iter(sent))
        return [
            row
            for block in PumpReader(stub.addr, 7).pull_blocks(0, 9)
            for row in zip(block.commit_ts.tolist(), block.start_ts.tolist(), payloads(block), strict=True)
        ]

    def single(ts: int) -> bytes:
        entity = pump_pb2.Entity(payload=b"s", meta=pump_pb2.Meta(startTs=ts - 1, commitTs=ts))
        return pump_pb2.PullBinlogResp(entity=entity).SerializeToString()

    stub = StubPump()
    whole = message((4, b"ab"), (5, b""), (6, b"c"))
    expected = [(2, b"s"), (3, b"s"), (4, b"ab"), (5, b""), (6, b"c"), (7, b"s"), (9, b"x")]
    found = pulled([single(2), single(3), whole], [single(7), message((9, b"x"), (12, b"y")), single(13)])
    assert found == [(ts, ts - 1, payload) for ts, payload in expected]
    assert pulled([message((20, b"far"), (21, b""))]) == [(20, 19, b"far")]
    for damaged in (
        message((3, b"a"), (3, b"b")),
        message((0, b"not above the start")),
        whole[:-1],
        whole + b"d",
        whole[:9],
        whole[:4] + bytes(4) + whole[8:],
        b"\xff",
    ):
        with pytest.raises(WireError, match=stub.addr):
            pulled([damaged])
    stub.server.stop(0).wait()


def test_abandoned_pull_closes_the_call(pump: StubPump) -> None:
    running = PumpReader(pump.addr, 7).pull(0)
    assert [ts for ts, _, _ in islice(running, 3)] == [1, 2, 3]
    running.close()
    assert pump.left.wait(60)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (grpc.StatusCode.OUT_OF_RANGE, LostRange),
        (grpc.StatusCode.DATA_LOSS, WireError),
        (grpc.StatusCode.FAILED_PRECONDITION, ConfigError),
        (grpc.StatusCode.UNKNOWN, SourceUnavailable),
        (grpc.StatusCode.OK, SourceUnavailable),  # an original pump ends its stream like this after a read error
    ],
)
def test_each_failure_is_one_error_with_pump_and_ts(
    pump: StubPump, status: grpc.StatusCode, kind: type[BinlakeError]
) -> None:
    pump.upto, pump.then = 3, status
    running = PumpReader(pump.addr, 7).pull(0)
    assert len(list(islice(running, 3))) == 3
    with pytest.raises(kind) as caught:
        next(running)
    assert caught.value.where == {"pump": pump.addr, "after_ts": "3"}


@pytest.mark.long
def test_silent_pump_is_an_error_but_a_slow_reader_is_not(pump: StubPump) -> None:
    pump.upto = 2
    running = PumpReader(pump.addr, 7, idle_timeout_s=1.5).pull(0)
    next(running)
    time.sleep(2)  # the time that the reader itself takes does not count
    next(running)
    begun = time.monotonic()
    with pytest.raises(SourceUnavailable, match="sent nothing"):
        next(running)
    assert time.monotonic() - begun < 60


def test_unreachable_pump_is_an_error_within_the_timeout() -> None:
    addr = f"127.0.0.1:{free_port()}"
    reader = PumpReader(addr, 7, timeout_s=0.3)
    with pytest.raises(SourceUnavailable, match=addr):
        next(reader.pull(0))
    with pytest.raises(SourceUnavailable, match=addr):
        reader.read_info()


def test_pump_that_dies_is_an_error(pump: StubPump) -> None:
    pump.upto = 1
    running = PumpReader(pump.addr, 7).pull(0)
    next(running)
    pump.server.stop(0)
    with pytest.raises(SourceUnavailable):
        next(running)


def test_original_pump_has_no_info(pump: StubPump) -> None:
    with pytest.raises(WireError, match="no Info service"):
        PumpReader(pump.addr, 7).read_info()


FORKED = """
import multiprocessing, sys
from binlake.cluster.pumpclient import PumpReader
reader = PumpReader(sys.argv[1], 7)
def work(after):
    return [ts for ts, _, _ in reader.pull(after, after + 50)]
with multiprocessing.get_context("fork").Pool(3) as pool:
    found = pool.map(work, [0, 100, 200])
print([len(part) for part in found])
"""


def test_reader_works_after_fork_and_pickling_for_a_spark_worker(pump: StubPump) -> None:
    assert next(pickle.loads(pickle.dumps(PumpReader(pump.addr, 7))).pull(0))[0] == 1
    command = [sys.executable, "-c", FORKED, pump.addr]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "[50, 50, 50]", done.stderr
