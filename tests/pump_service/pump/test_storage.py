"""Storage and pull: acked binlogs can be pulled, complete and in order, whatever happens in between (MISSION S0.d)."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import plyvel
import pytest
from pump_helpers import VALUE, commit, prewrite, pulled, reach, rollback, settled, store, until
from support.pump_calls import pull

from binlake.errors import LostRange, Transient, WireError
from binlake.pump_service.pump.record import RECORD, Pointer
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

FIXTURE = Path(__file__).parents[2] / "fixtures" / "wire" / "pump-data.tar.gz"


@pytest.fixture
def storage(tmp_path: Path):
    opened = PumpStorage(tmp_path / "pump")
    yield opened
    opened.close()


def test_a_transaction_is_two_records_and_a_rolled_back_one_yields_nothing(storage: PumpStorage) -> None:
    # S0-12
    store(storage, prewrite(10), commit(10, 11), prewrite(20), rollback(20), prewrite(30), commit(30, 31))
    reach(storage, 31)
    types = [pb.Binlog.FromString(payload).tp for _, payload in storage._log.scan_from(Pointer(0, 0))]
    assert types == [pb.Prewrite, pb.Commit, pb.Prewrite, pb.Rollback, pb.Prewrite, pb.Commit]
    assert [(start, ts) for start, ts, _ in settled(storage)] == [(10, 11), (30, 31)]


def test_fields_of_the_prewrite_replace_those_of_the_commit(storage: PumpStorage) -> None:
    # S0-14: readers tolerate these fields on C, and use P's.
    first, second = (
        prewrite(10),
        build.build_prewrite(20, b"k", ddl_query=b"CREATE TABLE t", ddl_job_id=7, ddl_schema_state=1),
    )
    wrong = build.build_commit(first, 15)
    wrong.prewrite_value, wrong.ddl_query, wrong.ddl_job_id = b"not this", b"nor this", 99
    other = build.build_commit(second, 25)
    other.ddl_query, other.ddl_job_id = b"DROP TABLE t", 0
    store(storage, first, wrong, second, other)
    reach(storage, 25)
    dml, ddl = (pb.Binlog.FromString(payload) for _, _, payload in pulled(storage, 2))
    assert (dml.tp, dml.prewrite_value, dml.ddl_query, dml.ddl_job_id) == (pb.Commit, VALUE, b"", 0)
    assert (ddl.ddl_query, ddl.ddl_job_id, ddl.ddl_schema_state) == (b"CREATE TABLE t", 7, 1)
    assert not ddl.HasField("prewrite_value")


def test_transactions_are_ordered_by_commit_ts_alone(storage: PumpStorage) -> None:
    # S0-17: neither start_ts nor arrival.
    store(storage, prewrite(10), prewrite(20), commit(10, 40), commit(20, 30))
    reach(storage, 40)
    assert [ts for _, ts, _ in settled(storage)] == [30, 40]


def test_nothing_beyond_an_unmatched_prewrite_is_released(storage: PumpStorage) -> None:
    # S0-49
    store(storage, prewrite(10), prewrite(20), commit(20, 30))
    until(lambda: storage.count_unmatched() == (1, 10), "P20 matched")
    assert settled(storage) == []
    store(storage, commit(10, 25))
    reach(storage, 30)
    assert [ts for _, ts, _ in pulled(storage, 2)] == [25, 30]
    assert [ts for _, ts, _ in pulled(storage, 1, after_ts=25)] == [30]  # exclusive


def test_an_immediate_failure_is_raised_by_the_future(storage: PumpStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    # Found by the soak: a full disk failed before the future was ready for that, which ended the caller's thread.
    monkeypatch.setattr(storage._commit, "put", lambda item: item.done(Transient("the disk is full")))
    with pytest.raises(Transient, match="full"):
        storage.append(prewrite(1).SerializeToString()).result(60)
    monkeypatch.setattr(storage._commit, "put", lambda item: item.done(None))
    storage.append(prewrite(1).SerializeToString()).result(60)


def test_fakes_go_out_as_stored(storage: PumpStorage) -> None:
    store(storage, build.build_fake(50))
    assert pulled(storage, 1) == [(50, 50, build.build_fake(50).SerializeToString())]


def test_a_waiting_pull_gets_a_new_transaction_at_once(storage: PumpStorage) -> None:
    pulled_ts: list[int] = []
    reader = threading.Thread(target=lambda: pulled_ts.extend(ts for _, ts, _ in pulled(storage, 2)))
    reader.start()
    store(storage, prewrite(10), commit(10, 11))
    until(lambda: pulled_ts == [] and storage.watermark == 11, "watermark")
    store(storage, build.build_fake(12))
    reader.join(60)
    assert pulled_ts == [11, 12]


def test_the_index_has_the_originals_keys(tmp_path: Path) -> None:
    # S0-47: read with plain plyvel after a stop; the pointer leads to the payload in the data file.
    storage = PumpStorage(tmp_path)
    store(storage, prewrite(10), commit(10, 11))
    storage.close()
    data = (tmp_path / "value" / "000000.vlog").read_bytes()
    with plyvel.DB(str(tmp_path / "kv")) as index:
        for ts, expected in ((10, prewrite(10)), (11, commit(10, 11))):
            fid, offset = struct.unpack("<Iq", index.get(b"ts:" + ts.to_bytes(8, "big")))
            length = RECORD.unpack_from(data, offset)[1]
            payload = data[offset + RECORD.size : offset + RECORD.size + length]
            assert (fid, payload) == (0, expected.SerializeToString())
        assert struct.unpack("<q", index.get(b"!binlog!maxCommitTS")) == (11,)
        assert len(index.get(b"!binlog!headPointer")) == len(index.get(b"!binlog!handlePointer")) == 12


def test_a_pull_of_a_collected_range_names_the_range(storage: PumpStorage) -> None:
    #
    store(storage, prewrite(10), commit(10, 11), build.build_fake(20))
    reach(storage, 20)
    storage.index.set_gc_ts(15)
    with pytest.raises(LostRange, match=r"\(11, 15\] is lost"):
        pulled(storage, 1, after_ts=11)
    assert pulled(storage, 1, after_ts=15)[0][1] == 20


def test_a_collection_that_overtakes_a_running_pull_ends_it(storage: PumpStorage) -> None:
    # U-03, R-26: the race between the check and the pull.
    store(storage, build.build_fake(10))
    reach(storage, 10)
    running = pull(storage, 0, lambda: False)
    assert next(running)[1] == 10
    storage.index.set_gc_ts(40)
    store(storage, build.build_fake(50))
    with pytest.raises(LostRange):
        next(running)


def test_a_commit_without_its_prewrite_ends_the_pull_and_is_named(storage: PumpStorage) -> None:
    store(storage, commit(10, 11), build.build_fake(20))
    reach(storage, 20)
    with pytest.raises(WireError, match="start_ts=10"):
        pulled(storage, 1)
    assert storage.counters.late_commits == 1


def test_a_late_commit_of_a_discarded_prewrite_is_counted_and_a_double_is_not(storage: PumpStorage) -> None:
    #
    store(storage, prewrite(10), rollback(10), build.build_fake(20), commit(10, 15))
    store(storage, prewrite(30), commit(30, 31), commit(30, 31))
    until(lambda: storage.counters.duplicates == 1, "the double is counted")
    reach(storage, 31)
    assert storage.counters.late_commits == 1
    assert [ts for _, ts, _ in settled(storage)] == [15, 20, 31]  # it stays, at its position


def test_a_commit_ts_fetched_too_early_is_counted(storage: PumpStorage) -> None:
    #
    store(storage, build.build_fake(20), prewrite(10), commit(10, 15))
    until(lambda: storage.counters.early_commits == 1, "reported")


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (b"\xff\xff\xff", "not a binlog"),
        (pb.Binlog(tp=pb.Prewrite).SerializeToString(), "needs a start_ts"),
        (pb.Binlog(tp=pb.Commit, start_ts=5).SerializeToString(), "needs a commit_ts"),
    ],
)
def test_binlogs_that_cannot_be_sorted_are_refused(storage: PumpStorage, payload: bytes, message: str) -> None:
    with pytest.raises(WireError, match=message):
        storage.append(payload)


def test_fields_that_go_always_emits_are_added(storage: PumpStorage) -> None:
    sparse = pb.Binlog(tp=pb.Prewrite, start_ts=10, prewrite_key=b"k10", prewrite_value=VALUE)
    store(storage, sparse)
    assert next(storage.records.scan_from(Pointer(0, 0)))[1] == prewrite(10).SerializeToString()


def test_a_failing_index_is_retried_and_the_watermark_waits(
    storage: PumpStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.follower._RETRY_S", 0.01)
    with monkeypatch.context() as broken:

        def fail(*_: object, **__: object) -> None:
            raise plyvel.IOError("no space")

        broken.setattr(storage.index, "write", fail)
        store(storage, build.build_fake(10))  # acked, so it is durable
        until(lambda: "no space" in storage.error, "shown")
        assert storage.watermark == 0
    reach(storage, 10)
    assert storage.error == ""


def test_long_and_short_pulls_of_mixed_sizes_return_the_same(tmp_path: Path) -> None:
    # S0-52, S0-53: whole stretches of the files, or record by record: the same transactions, byte for byte.
    storage = PumpStorage(tmp_path, StorageOptions(segment_bytes=200_000))
    sizes = [0, 10, 300, 70_000, 5, 200, 3_000_000, 40]
    written, expected = [], []
    for number in range(80):
        start, value = number * 10 + 1, b"x" * sizes[number % len(sizes)]
        opened = build.build_prewrite(start, b"k", value)
        done = build.build_commit(opened, start + (500_000 if number % 7 == 0 else 5))
        written += [opened, build.build_fake(start + 1), build.build_commit(opened, done.commit_ts)]
        if value:
            done.prewrite_value = value
        expected += [(start + 1, start + 1, build.build_fake(start + 1).SerializeToString())]
        expected += [(start, done.commit_ts, done.SerializeToString())]
    store(storage, *written)
    expected.sort(key=lambda transaction: transaction[1])
    reach(storage, expected[-1][1])
    assert settled(storage) == expected
    for after in (expected[100][1], expected[-3][1]):
        assert settled(storage, after) == [transaction for transaction in expected if transaction[1] > after]
    storage.close()


@pytest.mark.long
def test_ten_thousand_transactions_written_backwards_are_pulled_in_order(storage: PumpStorage) -> None:  # S0-09
    starts = range(10_000, 30_000, 2)
    store(storage, *[prewrite(start) for start in starts])
    store(storage, *[commit(start, 100_000 - start) for start in starts], build.build_fake(200_000))
    reach(storage, 200_000)
    stamps = [commit_ts for _, commit_ts, _ in pulled(storage, len(starts) + 1)]
    assert stamps == [*sorted(100_000 - start for start in starts), 200_000]
