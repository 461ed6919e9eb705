"""A pump sends a large transaction from its value log in parts (S0-14): the same bytes, and never damaged ones."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pump_helpers import commit, prewrite, until
from test_lean_server import CLUSTER_ID, PULL, Pump

from binlake.cluster.pumpclient import PumpReader
from binlake.cluster.pumpclient.reader import _parse_messages, _PulledOrder
from binlake.errors import WireError
from binlake.pump_service.pump import batches, pulls
from binlake.pump_service.pump.heads import normalise
from binlake.pump_service.pump.record import Pointer
from binlake.rpc import Channel
from binlake.wire import blocks, build
from binlake.wire.binlog_pb2 import Binlog
from binlake.wire.blocks import BinlogBlock, BinlogPart
from binlake.wire.pump_pb2 import PullBinlogReq

PART, LARGE = 10_000, 80_000


@pytest.fixture
def pump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pump]:
    monkeypatch.setattr("binlake.pump_service.pump.pull._CACHE_BYTES", LARGE)
    monkeypatch.setattr(batches, "PART_BYTES", PART)
    running = Pump(tmp_path)
    yield running
    running.stop()


def write(pump: Pump, *binlogs: Binlog) -> None:
    for stored in [pump.storage.append(one.SerializeToString()) for one in binlogs]:
        stored.result(60)


def transact(pump: Pump, start_ts: int, value: bytes) -> None:
    write(pump, prewrite(start_ts, value), commit(start_ts, start_ts + 1))


def join(pulled: list[BinlogBlock | BinlogPart]) -> list[tuple[int, int, bytes]]:
    """The binlogs of `pulled`; each part has at most PART bytes."""
    found: list[tuple[int, int, bytes]] = []
    for one in pulled:
        if isinstance(one, BinlogBlock):
            begins = [0, *one.ends.tolist()]
            rows = zip(one.commit_ts.tolist(), one.start_ts.tolist(), begins, begins[1:], strict=False)
            found += [(commit_ts, start_ts, bytes(one.data[first:last])) for commit_ts, start_ts, first, last in rows]
            continue
        assert 0 < len(one.data) <= PART
        if not one.offset:
            found.append((one.commit_ts, one.start_ts, b""))
        commit_ts, start_ts, data = found.pop()
        assert one.offset == len(data)
        found.append((commit_ts, start_ts, data + bytes(one.data)))
    return found


def test_large_ones_come_in_parts_among_others(pump: Pump) -> None:
    # Small and large ones in turn, two large ones next to each other, and some around the limit.
    sizes = [10, LARGE - 100, LARGE, 400_000, 233_333, 0, 3 * PART, 20, 171_000]
    for number, size in enumerate(sizes, 1):
        transact(pump, 100 * number, bytes([number]) * size)
    # As TiDB writes it for a transaction whose C comes long after others.
    write(pump, prewrite(5000, b"late" * LARGE))
    for number in range(20):
        transact(pump, 5100 + 10 * number, b"x" * number)
    write(pump, commit(5000, 6000), build.build_fake(7000))
    until(lambda: pump.storage.watermark == 7000, "all are indexed")
    reader = PumpReader(pump.address, CLUSTER_ID)
    singly = list(reader.pull(0, 7000))
    pulled = list(reader.pull_parts(0, 7000))
    assert join(pulled) == singly
    assert {one.commit_ts for one in pulled if isinstance(one, BinlogPart)} == {301, 401, 501, 901, 6000}
    # The pull ends with all parts of the first one at or above its end.
    assert join(list(reader.pull_parts(0, 350)))[-1] == singly[3]


def test_at_the_tail_large_ones_come_in_parts_too(pump: Pump) -> None:
    transact(pump, 10, b"first")
    found: list[BinlogBlock | BinlogPart] = []
    reader = PumpReader(pump.address, CLUSTER_ID)
    thread = threading.Thread(target=lambda: found.extend(reader.pull_parts(0, 1000)))
    thread.start()
    until(lambda: bool(found) and bool(pump.server._pulls._tail._members), "the pull has caught up")
    transact(pump, 100, b"y" * 9 * PART)
    transact(pump, 200, b"z")
    write(pump, build.build_fake(1000))
    thread.join(60)
    assert join(found) == list(reader.pull(0, 1000))
    assert any(isinstance(one, BinlogPart) for one in found)


def test_a_consumer_that_cannot_take_more_goes_on_with_the_next_part(
    pump: Pump, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulls, "_LOOK_S", 0.01)
    turns: list[int] = []
    wait = pump.server._pulls._wait_until_room
    monkeypatch.setattr(pump.server._pulls, "_wait_until_room", lambda *given: len(turns) % 3 != 2 and wait(*given))
    later = pump.server._pulls._wait_for_room
    monkeypatch.setattr(batches.StoredTransaction, "read_next", _count(turns))

    def wait_for_room(puller: object) -> None:
        turns.append(0)
        later(puller)

    monkeypatch.setattr(pump.server._pulls, "_wait_for_room", wait_for_room)
    transact(pump, 100, bytes(range(250)) * 800)
    write(pump, build.build_fake(200))
    until(lambda: pump.storage.watermark == 200, "all are indexed")
    reader = PumpReader(pump.address, CLUSTER_ID)
    assert join(list(reader.pull_parts(0, 200))) == list(reader.pull(0, 200))
    assert turns.count(0) > 3
    assert turns.count(1) == 21


def _count(turns: list[int]) -> object:
    read_next = batches.StoredTransaction.read_next

    def counted(self: batches.StoredTransaction) -> list[bytes]:
        turns.append(1)
        return read_next(self)

    return counted


def test_a_damaged_one_never_becomes_complete(pump: Pump) -> None:
    transact(pump, 100, bytes(200_000))
    write(pump, build.build_fake(200))
    until(lambda: pump.storage.watermark == 200, "all are indexed")
    pointer = pump.storage.index.find_pointer(100)
    assert pointer is not None
    path = pump.storage.directory.path / "value" / f"{pointer.fid:06d}.vlog"
    with path.open("r+b") as file:
        file.seek(pointer.offset + 150_000)
        file.write(b"\x01")
    parts: list[BinlogBlock | BinlogPart] = []
    with pytest.raises(WireError, match="crc does not match"):
        parts.extend(PumpReader(pump.address, CLUSTER_ID).pull_parts(0, 200))
    assert not any(isinstance(one, BinlogPart) and one.is_last for one in parts)
    assert "crc" in pump.storage.pull_fault.text


def test_a_file_that_ends_early_is_damage(pump: Pump) -> None:
    transact(pump, 100, bytes(200_000))
    until(lambda: pump.storage.index.find_pointer(100) is not None, "it is indexed")
    pointer = pump.storage.index.find_pointer(100) or Pointer(0, 0)
    commit_bytes = normalise(commit(100, 101).SerializeToString())[1]
    found = batches.StoredTransaction.find(pump.storage.records, commit_bytes, 101, 100, pointer)
    assert found is not None
    (pump.storage.directory.path / "value" / f"{pointer.fid:06d}.vlog").open("r+b").truncate(pointer.offset + 25_000)
    found.read_next()
    with pytest.raises(WireError, match="crc does not match"):
        list(iter(found.read_next, None))


def test_only_a_plain_prewrite_is_sent_in_parts(pump: Pump) -> None:
    odd = prewrite(300, bytes(200_000)).SerializeToString() + b"\xb0\x06\x01"
    pump.storage.append(odd).result(60)
    write(pump, commit(300, 301), build.build_fake(400))
    until(lambda: pump.storage.watermark == 400, "all are indexed")
    reader = PumpReader(pump.address, CLUSTER_ID)
    pulled = list(reader.pull_parts(0, 400))
    assert all(isinstance(one, BinlogBlock) for one in pulled)
    assert join(pulled) == list(reader.pull(0, 400))


@pytest.mark.parametrize("gzip", [False, True])
def test_only_who_asks_gets_parts(pump: Pump, gzip: bool) -> None:
    transact(pump, 100, bytes(200_000))
    message = PullBinlogReq(clusterID=CLUSTER_ID).SerializeToString()
    asked = [blocks.ASKED, blocks.PARTS_ASKED] if gzip else [blocks.ASKED]
    with Channel(pump.address, gzip=gzip) as channel:
        stream = channel.open_stream(PULL, message, idle_timeout_s=60, metadata=asked)
        assert next(iter(stream)).startswith(blocks.MAGIC)


@pytest.mark.parametrize(
    "parts",
    [
        [(9, 10, 4, b"abcd")],  # it does not begin at 0
        [(9, 10, 0, b"abcd"), (9, 10, 5, b"fghij")],
        [(9, 10, 0, b"abcd"), (9, 11, 4, b"efghij")],
        [(9, 10, 0, b"abcd"), (8, 10, 4, b"efghij")],
        [(3, 10, 0, b"abcdefghij")],  # a commit_ts that has passed
        [(9, 3, 0, b"abcd")],
        [(9, 3, 0, b"")],
    ],
)
def test_parts_that_do_not_follow_are_refused(parts: list[tuple[int, int, int, bytes]]) -> None:
    order = _PulledOrder(5)
    messages = [blocks.encode_part_head(ts, 1, size, offset) + data for ts, size, offset, data in parts]
    with pytest.raises(WireError):
        list(map(order.check, _parse_messages(messages)))


def test_a_block_inside_a_large_binlog_is_refused() -> None:
    order = _PulledOrder(5)
    order.check(blocks.read_part(blocks.encode_part_head(9, 8, 10, 0) + b"abcd"))
    with pytest.raises(WireError, match="not complete"):
        order.check(blocks.build_block([10], [9], [b"x"]))
