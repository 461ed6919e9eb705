"""PumpReader: what a pull yields, when it ends, and one clear error for each way it can fail (hazards R-26, R-48)."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import grpc
import pytest

from binlake.errors import BinlakeError, ConfigError, LostRange, SourceUnavailable, WireError
from binlake.pumpclient import PumpReader
from binlake.wire import pump_pb2, pump_pb2_grpc
from deploy.local.ports import free_port


class StubPump(pump_pb2_grpc.PumpServicer):
    """Emits commit_ts 1, 2, 3, ... up to `upto`, then does what `then` says; no PumpAdmin, like an original pump."""

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


def test_a_pull_starts_after_the_given_ts_and_ends_with_the_first_entity_at_or_above_the_end(pump: StubPump) -> None:
    found = list(PumpReader(pump.addr, 7).pull(5, 8))
    assert found == [(6, 6, b"6"), (7, 7, b"7"), (8, 8, b"8")]
    assert pump.left.wait(60), "the pump was not told that the reader left"


def test_a_pull_that_is_given_up_closes_the_call(pump: StubPump) -> None:
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
        (grpc.StatusCode.OK, SourceUnavailable),  # an original pump ends its stream so on a read error
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


def test_a_silent_pump_is_an_error_and_a_slow_reader_is_not(pump: StubPump) -> None:
    pump.upto = 2
    running = PumpReader(pump.addr, 7, idle_timeout_s=1.5).pull(0)
    next(running)
    time.sleep(2)  # the reader's own time does not count
    next(running)
    begun = time.monotonic()
    with pytest.raises(SourceUnavailable, match="sent nothing"):
        next(running)
    assert time.monotonic() - begun < 60


def test_a_pump_that_is_not_there_is_an_error_in_time() -> None:
    addr = f"127.0.0.1:{free_port()}"
    reader = PumpReader(addr, 7, timeout_s=0.3)
    with pytest.raises(SourceUnavailable, match=addr):
        next(reader.pull(0))
    with pytest.raises(SourceUnavailable, match=addr):
        reader.info()


def test_a_pump_that_dies_is_an_error(pump: StubPump) -> None:
    pump.upto = 1
    running = PumpReader(pump.addr, 7).pull(0)
    next(running)
    pump.server.stop(0)
    with pytest.raises(SourceUnavailable):
        next(running)


def test_an_original_pump_has_no_info(pump: StubPump) -> None:
    with pytest.raises(WireError, match="no Info service"):
        PumpReader(pump.addr, 7).info()


FORKED = """
import multiprocessing, sys
from binlake.pumpclient import PumpReader
reader = PumpReader(sys.argv[1], 7)
def work(after):
    return [ts for ts, _, _ in reader.pull(after, after + 50)]
with multiprocessing.get_context("fork").Pool(3) as pool:
    found = pool.map(work, [0, 100, 200])
print([len(part) for part in found])
"""


def test_a_reader_survives_the_fork_and_pickling_of_a_spark_worker(pump: StubPump) -> None:
    assert next(pickle.loads(pickle.dumps(PumpReader(pump.addr, 7))).pull(0))[0] == 1
    command = [sys.executable, "-c", FORKED, pump.addr]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == "[50, 50, 50]", done.stderr
