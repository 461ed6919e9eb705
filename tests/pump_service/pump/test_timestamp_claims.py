"""A second binlog at a timestamp in use never hides the first (fault 3 of the pump under hostile input)."""

from __future__ import annotations

import io
from pathlib import Path

import plyvel
import pytest
from pump_helpers import commit, prewrite, pulled, reach, settled, store

from binlake.errors import BinlakeError, Permanent, Transient
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.index import PumpIndex
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.storage import PumpStorage
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog


@pytest.fixture(params=["in memory", "looked up", "after a start"])
def again(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A storage with several binlogs; its claims are in memory, only in the index, or lost by a restart."""
    if request.param == "looked up":
        monkeypatch.setattr("binlake.pump_service.pump.groupcommit._GENERATION", 1)
    storage = PumpStorage(tmp_path)
    for binlog in (
        prewrite(10),
        commit(10, 11),
        prewrite(20),
        build.build_fake(30),
        commit(20, 31),
        build.build_fake(40),
    ):
        store(storage, binlog)
    reach(storage, 40)
    if request.param == "after a start":
        storage.close()
        storage = PumpStorage(tmp_path)
    yield storage
    storage.close()


STORED = [11, 30, 31, 40]


@pytest.mark.parametrize(
    "second",
    [
        build.build_fake(11),  # a fake over a commit: the commit disappeared from every pull
        commit(15, 11),  # the commit of another transaction
        build.build_fake(10),  # a fake over a prewrite: its commit had no P
        prewrite(10, b"other rows"),
        prewrite(31),  # a prewrite over a commit
        commit(19, 20),  # a commit over a prewrite
    ],
)
def test_another_binlog_at_a_timestamp_in_use_is_refused(again: PumpStorage, second: Binlog) -> None:
    before = settled(again)
    with pytest.raises(Permanent, match="another binlog with this timestamp is stored"):
        store(again, second)
    assert [ts for _, ts, _ in settled(again)] == STORED
    assert settled(again) == before
    store(again, build.build_fake(50))  # and binlogs in the same batch are stored
    reach(again, 50)


def test_the_same_binlog_is_accepted_again(again: PumpStorage) -> None:
    before = settled(again)
    bare = Binlog(tp=commit(10, 11).tp, start_ts=10, commit_ts=11, ddl_job_id=0, ddl_schema_state=0)
    # without content, as the pump writes its proofs
    store(again, prewrite(20), commit(20, 31), bare, commit(10, 11), build.build_fake(40))
    store(again, build.build_fake(50))
    reach(again, 50)
    assert settled(again)[: len(before)] == before
    assert again.counters.late_commits == 0


def test_a_binlog_with_rows_replaces_a_fake(again: PumpStorage) -> None:
    store(again, prewrite(25), commit(25, 40))
    store(again, build.build_fake(50))
    reach(again, 50)
    assert [(start, ts) for start, ts, _ in settled(again)] == [(10, 11), (30, 30), (20, 31), (25, 40), (50, 50)]


def test_of_two_binlogs_at_one_timestamp_in_a_batch_the_first_is_stored(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    answers = [storage.append(one.SerializeToString()) for one in (prewrite(10), commit(10, 20), build.build_fake(20))]
    assert [type(answer.exception(60)) for answer in answers] == [type(None), type(None), Permanent]
    assert [start for start, _, _ in pulled(storage, 1)] == [10]
    storage.close()


class Full(Files):
    """A disk that is full for a while."""

    full = False

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        if self.full:
            raise OSError(28, "No space left on device")
        return super().append(file, data)


def test_the_timestamp_of_a_binlog_that_was_not_stored_is_free(tmp_path: Path) -> None:
    files = Full()
    storage = PumpStorage(tmp_path, files=files)
    store(storage, build.build_fake(5))
    files.full = True
    for lost in (prewrite(10, b"never stored"), prewrite(5)):
        with pytest.raises(Transient):
            store(storage, lost)
    files.full = False
    store(storage, prewrite(10), commit(10, 11))
    with pytest.raises(Permanent, match="another binlog"):
        store(storage, commit(7, 11))
    reach(storage, 11)
    storage.close()


@pytest.mark.long
def test_while_the_index_is_behind_an_old_timestamp_is_refused_for_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.groupcommit._GENERATION", 1)
    monkeypatch.setattr("binlake.pump_service.pump.groupcommit._MOST", 3)
    storage = PumpStorage(tmp_path)
    write, stands = PumpIndex.write, []

    def stand(index: PumpIndex, puts: object, **more: object) -> None:
        if stands:
            raise plyvel.Error("stands")
        write(index, puts, **more)

    monkeypatch.setattr(PumpIndex, "write", stand)
    stands.append(True)
    for ts in range(10, 40):
        store(storage, build.build_fake(ts))
    with pytest.raises(Transient, match="the index is behind"):
        store(storage, commit(3, 10))
    stands.clear()
    reach(storage, 39)
    store(storage, commit(3, 10))  # over a fake
    with pytest.raises(BinlakeError, match="another binlog"):
        store(storage, commit(4, 10))
    assert storage.index.find_pointer(10) > Pointer(0, 0)
    storage.close()
