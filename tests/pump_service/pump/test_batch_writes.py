"""Many binlogs in one call: each is stored or refused as if alone, and the answer comes when all are durable."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pump_helpers import commit, prewrite, until

from binlake.cluster.pumpclient import ClientOptions, PumpClient
from binlake.errors import Transient
from binlake.pump_service.pump.groupcommit import Behind, Done
from binlake.pump_service.pump.lean_server import BatchWrite, LeanServer
from binlake.pump_service.pump.service import PumpService, State
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.rpc import Channel, RpcError, Status
from binlake.wire import build
from binlake.wire.admin_pb2 import WriteBinlogsReq, WriteBinlogsResp
from binlake.wire.binlog_pb2 import Binlog

CLUSTER_ID = 7
WRITE_MANY = "/binlake.wire.PumpAdmin/WriteBinlogs"


class Pump:
    """A pump that counts the calls it gets."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self.storage = PumpStorage(folder, StorageOptions(memory_bytes=memory_bytes))
        service = PumpService(self.storage, CLUSTER_ID, free_bytes_needed=0)
        service.state = State.ONLINE
        self._short = tempfile.TemporaryDirectory(prefix="bl-")
        self.socket = Path(self._short.name) / "pump.sock"
        self.server = LeanServer(service, "127.0.0.1:0", socket=self.socket)
        self.calls: list[str] = []
        for path, handler in list(self.server.rpc.methods.items()):
            self.server.rpc.methods[path] = self._counted(path, handler)
        self.server.start()

    def _counted(self, path: str, handler: Any) -> Any:
        def handle(call: Any, message: bytes) -> None:
            self.calls.append(path.rpartition("/")[2])
            handler(call, message)

        return handle

    def stop(self) -> None:
        self.server.stop(1)
        self.storage.close()
        self._short.cleanup()


@pytest.fixture(params=[256 << 20, 300], ids=["room", "hardly any room"])
def pump(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pump]:
    made = Pump(tmp_path, request.param)
    yield made
    made.stop()


def test_prewrites_and_commits_share_calls_and_each_is_stored_once(pump: Pump) -> None:
    # S0-24 S0-39
    binlogs = [build.build_prewrite(start_ts, b"k%d" % start_ts, b"\x08\x17") for start_ts in range(1, 1001)]
    with PumpClient(None, CLUSTER_ID, ClientOptions(socket=str(pump.socket))) as client:
        assert set(client.write_prewrites(binlogs)) == {"local unix"}
        for one in binlogs:
            client.send_commit(build.build_commit(one, one.start_ts + 10_000))
        assert client.drain(60) == 0
    until(
        lambda: pump.storage.watermark == 11_000 and not pump.storage.count_unmatched()[0],
        "all transactions are committed",
    )
    assert pump.calls.count("WriteBinlogs") > 3
    if pump.storage._budget._limit > 1000:
        assert len(pump.calls) < 200


def test_one_refused_binlog_does_not_affect_the_others(pump: Pump) -> None:
    binlogs = [encoded(prewrite(1)), b"no binlog", encoded(commit(1, 5)), encoded(prewrite(2))]
    with Channel(pump.server.address) as channel:
        answer = WriteBinlogsResp.FromString(channel.call(WRITE_MANY, request(CLUSTER_ID, binlogs), 60))
    assert [one.number for one in answer.refusals] == [1]


def test_foreign_cluster_and_invalid_requests_are_refused(pump: Pump) -> None:
    with Channel(pump.server.address) as channel:
        answer = WriteBinlogsResp.FromString(channel.call(WRITE_MANY, request(8, [encoded(prewrite(1))] * 2), 60))
        assert ["mismatched cluster id" in one.text for one in answer.refusals] == [True, True]
        assert channel.call(WRITE_MANY, request(CLUSTER_ID, []), 60) == b""
        with pytest.raises(RpcError) as failed:
            channel.call(WRITE_MANY, b"\xff\xff", 60)
    assert failed.value.status is Status.INTERNAL


def test_answer_waits_for_the_last_binlog_and_order_is_kept_without_room() -> None:
    # S0-46
    waiting: list[Done] = []
    refusals: list[float] = []
    room = 2

    def submit(_: int, __: bytes, done: Done, *, since: float) -> None:
        assert since > 0
        if len(waiting) == room:
            raise Behind("the pump is behind")
        waiting.append(done)

    service = SimpleNamespace(submit=submit, metrics=SimpleNamespace(count_refusal=refusals.append))
    answers: list[bytes] = []
    batch = BatchWrite(cast("PumpService", service), request(CLUSTER_ID, [b"a", b"b", b"cc", b"d"]), answers.append)
    assert not batch.submit()
    assert batch.size == 3
    for done in waiting:
        done(None)
    room = 3
    assert not batch.submit()
    batch.refuse(Transient("the caller no longer waits"))
    assert answers == []
    waiting[2](Transient("the disk"))
    (answer,) = answers
    texts = {one.number: one.text for one in WriteBinlogsResp.FromString(answer).refusals}
    assert texts == {2: "the disk", 3: "the caller no longer waits"}
    assert len(refusals) == 1


def encoded(binlog: Binlog) -> bytes:
    return binlog.SerializeToString()


def request(cluster_id: int, payloads: list[bytes]) -> bytes:
    return WriteBinlogsReq(cluster_id=cluster_id, payloads=payloads).SerializeToString()
