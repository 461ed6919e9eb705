"""Every puller gets each transaction once and in order, whether a reader serves it, the tail thread feeds it, or it is
parked in between."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pump_cluster import CLUSTER_ID
from pump_helpers import commit, prewrite, until
from support.examples import examples

from binlake.errors import WireError
from binlake.pump_service.pump import live_feed, pulls
from binlake.pump_service.pump.lean_server import LeanServer
from binlake.pump_service.pump.pull import StreamReader, catch_up
from binlake.pump_service.pump.service import PumpService, State
from binlake.pump_service.pump.storage import PumpStorage
from binlake.rpc import Channel, Limits, RpcError, Status
from binlake.wire import blocks
from binlake.wire.pump_pb2 import PullBinlogReq, PullBinlogResp

pytestmark = pytest.mark.long

PULL = "/binlog.Pump/PullBinlogs"
TURNS = examples(20)
"""Each turn adds two pullers, so the work grows quadratically."""
NARROW = Limits(stream_window=70_000, connection_window=70_000)


class Pump:
    """Storage, service and server."""

    def __init__(self, folder: Path) -> None:
        self.storage = PumpStorage(folder / "pump")
        self.service = PumpService(self.storage, CLUSTER_ID, free_bytes_needed=0)
        self.service.state = State.ONLINE
        self.server = LeanServer(self.service, "127.0.0.1:0")
        self.server.start()
        self.clock = itertools.count(1000)

    @property
    def tail(self) -> live_feed.LiveFeed:
        return self.server._pulls._tail

    def write(self, count: int, size: int = 100) -> int:
        """Write this many transactions; return the last commit_ts."""
        stored, commit_ts = [], 0
        for _ in range(count):
            start_ts, commit_ts = next(self.clock), next(self.clock)
            stored.append(self.storage.append(prewrite(start_ts, bytes(size)).SerializeToString()))
            stored.append(self.storage.append(commit(start_ts, commit_ts).SerializeToString()))
        for one in stored:
            one.result(60)
        return commit_ts

    def stop(self) -> None:
        self.server.stop(1)
        self.storage.close()


@pytest.fixture
def pump(tmp_path: Path) -> Iterator[Pump]:
    made = Pump(tmp_path)
    yield made
    made.stop()


def request(after_ts: int) -> bytes:
    message = PullBinlogReq(clusterID=CLUSTER_ID)
    message.startFrom.offset = after_ts
    return message.SerializeToString()


class Client(threading.Thread):
    """Takes everything after `after_ts` up to `last`, which a test sets when it is known."""

    def __init__(
        self, pump: Pump, after_ts: int, *, limits: Limits = NARROW, gzip: bool = False, in_blocks: bool = False
    ) -> None:
        super().__init__()
        self.after_ts = after_ts
        self.taken: list[int] = []
        self.last = 1 << 62
        self.failure: RpcError | None = None
        self._channel = Channel(pump.server.address, limits=limits, gzip=gzip)
        metadata = [blocks.ASKED] if in_blocks else []
        self._stream = self._channel.open_stream(PULL, request(after_ts), metadata=metadata)
        self.start()

    def run(self) -> None:
        try:
            for message in self._stream:
                if message.startswith(blocks.MAGIC):
                    self.taken += blocks.read_block(message).commit_ts.tolist()
                else:
                    self.taken.append(PullBinlogResp.FromString(message).entity.meta.commitTs)
                if self.taken[-1] >= self.last:
                    break
        except RpcError as error:
            self.failure = error
        self._channel.close()


@pytest.mark.drawn
def test_every_puller_gets_each_transaction_once_and_in_order(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limits are so small that pullers fall behind, are parked and come back all the time.
    monkeypatch.setattr(live_feed, "_UNSENT_BYTES", 30_000)
    monkeypatch.setattr(live_feed, "_FIRST_BYTES", 3_000)
    monkeypatch.setattr(pulls, "_TURN_S", 0.01)
    monkeypatch.setattr(pulls, "_HURRIED_S", 0.001)
    monkeypatch.setattr(pulls, "_PATIENCE_S", 0.005)
    pump.write(500)
    clients = [Client(pump, 0), Client(pump, 0, gzip=True), Client(pump, 1501), Client(pump, 0, in_blocks=True)]
    for turn in range(TURNS):
        written = pump.write(150, 2000 if turn % 3 else 20)
        clients.append(Client(pump, written - 40 * turn, gzip=turn % 4 == 0, in_blocks=turn % 3 == 0))
        clients.append(Client(pump, written + 100 * turn + 1, in_blocks=turn % 2 == 0))  # ahead of everything stored
    last = pump.write(1000)
    for client in clients:
        client.last = last
    end = pump.write(20)
    everything = range(1001, end + 1, 2)
    for client in clients:
        client.join(120)
        assert client.failure is None
        want = [ts for ts in everything if client.after_ts < ts]
        assert client.taken == want[: len(client.taken)]
        assert client.taken[-1] >= last


def test_a_puller_that_is_ahead_costs_nothing_until_its_position_is_reached(pump: Pump) -> None:
    first = pump.write(10)
    ahead, far = Client(pump, first + 40), Client(pump, 1 << 61)
    until(lambda: len(pump.tail._ahead) == 2, "both wait")
    assert not pump.tail._members
    last = pump.write(30)
    ahead.last = last
    ahead.join(60)
    assert ahead.taken == list(range(first + 42, last + 1, 2))
    assert far.taken == []


def test_the_puller_that_waits_for_the_farthest_future_makes_room(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "_PULLERS", 2)
    last = pump.write(10)
    far, farther = Client(pump, 1 << 60), Client(pump, 1 << 61)
    until(lambda: len(pump.tail._ahead) == 2, "both wait")
    near = Client(pump, 0)
    near.last = last
    near.join(60)
    farther.join(60)
    assert farther.failure is not None
    assert farther.failure.status is Status.UNAVAILABLE
    assert near.taken[-1] == last
    assert far.is_alive()


def test_an_error_at_the_tail_ends_only_the_pullers_there(pump: Pump, monkeypatch: pytest.MonkeyPatch) -> None:
    last = pump.write(10)
    clients = [Client(pump, last) for _ in range(3)]
    until(lambda: len(pump.tail._members) == 3, "all pullers are at the tail")
    read = StreamReader.read

    def broken(*_: object) -> None:
        raise WireError("a record is damaged")

    monkeypatch.setattr(StreamReader, "read", broken)
    last = pump.write(1)
    for client in clients:
        client.join(60)
        assert client.failure is not None
        assert client.failure.status is Status.DATA_LOSS
    monkeypatch.setattr(StreamReader, "read", read)
    again = Client(pump, 0)
    again.last = last
    again.join(60)
    assert again.taken[-1] == last


def test_a_stalled_puller_holds_no_thread_and_is_served_again_when_it_reads(pump: Pump) -> None:
    pump.write(100, 60_000)
    closed = Limits(stream_window=1, connection_window=1 << 20)
    with Channel(pump.server.address, limits=closed) as channel:
        stream = channel.open_stream(PULL, request(0))
        until(lambda: any(one.parked for one in pump.server._pulls._pullers), "the puller is parked")
        # One chunk of 256 KiB, not a MiB: opening a call that takes nothing cost the pump 13 ms.
        assert pump.server._pulls._unsent < 300_000
        other = Client(pump, 0)
        other.last = pump.write(1)
        other.join(60)
        assert len(other.taken) == 101
        del stream


def test_at_the_tail_transactions_that_came_together_are_read_at_once(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each read has a cost that all fed pullers share, so a quiet moment must not make the next rounds start with a few
    # rows.
    reader, index = StreamReader(pump.storage), pump.storage.index
    batch, reads, last = index.read_batch, list[int](), 0
    monkeypatch.setattr(index, "read_batch", lambda *given: reads.append(1) or batch(*given))
    for count in (300, 1, 100):
        upto = pump.write(count)
        until(lambda upto=upto: pump.storage.watermark >= upto, "the transactions are indexed")
        reads.clear()
        batches = [one for _, one in catch_up(reader, last, lambda: False)]
        assert sum(map(len, batches)) == count
        last = upto
    assert len(reads) == 1
