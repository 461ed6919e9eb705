"""How a pump's storage opens after a stop, a crash, a loss, or another program's run (MISSION S0.d)."""

from __future__ import annotations

import shutil
import struct
import tarfile
from itertools import islice
from pathlib import Path

import plyvel
import pytest
from pump_helpers import commit, prewrite, reach, settled, store, until
from support.pump_calls import pull

from binlake.errors import Permanent, WireError
from binlake.pump_service.pump.directory import DataDirectory
from binlake.pump_service.pump.record import Pointer
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import binlog_pb2 as pb
from binlake.wire import build

FIXTURE = Path(__file__).parents[2] / "fixtures" / "wire" / "pump-data.tar.gz"


def test_a_lost_index_is_rebuilt_from_the_value_log(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    store(storage, prewrite(10), commit(10, 11), prewrite(20))
    reach(storage, 11)
    before = settled(storage)
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    again = PumpStorage(tmp_path)
    assert (settled(again), again.count_unmatched(), again.max_ts) == (before, (1, 20), 20)
    again.close()


def test_the_head_covers_only_synced_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A power failure may lose entries that LevelDB did not sync: the value log must be read again from before them.
    monkeypatch.setattr("binlake.pump_service.pump.follower._SYNC_S", 3600.0)
    storage = PumpStorage(tmp_path)
    store(storage, build.build_fake(10), build.build_fake(20))
    reach(storage, 20)
    assert storage.index.head == Pointer(0, 0)
    storage.close()
    with plyvel.DB(str(tmp_path / "kv")) as index:
        assert Pointer.from_bytes(index.get(b"!binlog!headPointer")) > Pointer(0, 0)


def test_a_restart_continues_with_open_prewrites(tmp_path: Path) -> None:
    for expected, more in (
        ((0, 0), [prewrite(10), prewrite(20), commit(20, 30)]),
        ((1, 10), []),
        ((1, 10), [commit(10, 25)]),
    ):
        storage = PumpStorage(tmp_path, StorageOptions(segment_bytes=64))
        assert storage.count_unmatched() == expected
        store(storage, *more)
        storage.close()
    storage = PumpStorage(tmp_path)
    assert ([ts for _, ts, _ in settled(storage)], storage.counters.late_commits) == ([25, 30], 0)
    storage.close()


def test_a_directory_has_one_process_and_a_new_disk_a_new_uuid(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    with pytest.raises(Permanent, match="another process holds the data directory"):
        PumpStorage(tmp_path)
    first = storage.directory.store_uuid
    storage.close()
    again = PumpStorage(tmp_path)
    assert again.directory.store_uuid == first
    again.close()
    shutil.rmtree(tmp_path)  # the volume is lost, the node id is not
    fresh = PumpStorage(tmp_path)
    assert fresh.directory.store_uuid != first
    fresh.close()


def test_a_data_directory_of_an_original_pump_is_served(tmp_path: Path) -> None:
    """goleveldb's files open in plyvel and the watermark continues from the original's own.

    The directory holds C without P (they were written so): each ends the pull, naming the C, and all others are
    complete.
    """
    with tarfile.open(FIXTURE) as archive:
        archive.extractall(tmp_path)  # Debian's Python 3.11.2 has no `filter` yet
    directory = tmp_path / "pump-data"
    with plyvel.DB(str(directory / "kv")) as index:
        (originals_watermark,) = struct.unpack("<q", index.get(b"!binlog!maxCommitTS"))
    storage = PumpStorage(directory)
    records = [pb.Binlog.FromString(payload) for _, payload in storage._log.scan_from(Pointer(0, 0))]
    assert storage.watermark == originals_watermark
    assert all(storage.index.find_pointer(b.start_ts if b.tp == pb.Prewrite else b.commit_ts) for b in records)

    prewrites = {b.start_ts: b for b in records if b.tp == pb.Prewrite}
    expected = {b.commit_ts: b.SerializeToString() for b in records if b.start_ts == b.commit_ts}
    for done in (b for b in records if b.tp == pb.Commit and b.start_ts in prewrites):
        done.prewrite_value = prewrites[done.start_ts].prewrite_value
        done.ddl_query = prewrites[done.start_ts].ddl_query
        for name in ("prewrite_value", "ddl_query"):
            if not prewrites[done.start_ts].HasField(name):
                done.ClearField(name)
        expected[done.commit_ts] = done.SerializeToString()
    payloads, after = {}, 0
    while after < originals_watermark:
        try:
            for _, ts, payload in pull(storage, after, lambda: storage.watermark <= max(payloads, default=0)):
                payloads[ts] = payload
            after = originals_watermark
        except WireError as error:
            after = int(error.where["commit_ts"])
    assert list(payloads.items()) == sorted(one for one in expected.items() if 0 < one[0] <= originals_watermark)
    assert len(payloads) > 100
    storage.close()


def test_a_start_reads_only_records_after_the_head(tmp_path: Path) -> None:
    # Even if a P at the beginning blocks: the sorter's state is in the index, not only in the log.
    storage = PumpStorage(tmp_path, StorageOptions(segment_bytes=5000))
    store(storage, prewrite(1))
    for start in range(10, 3000, 10):
        storage.append(prewrite(start).SerializeToString())
        store(storage, commit(start, start + 1))
    until(lambda: storage.count_unmatched() == (1, 1), "all but the first are matched")
    storage.close()
    storage = PumpStorage(tmp_path)
    assert (storage.recovered, storage.watermark, storage.count_unmatched()) == (0, 0, (1, 1))
    store(storage, commit(1, 3005))
    reach(storage, 3005)
    assert [ts for _, ts, _ in settled(storage)] == [*range(11, 3000, 10), 3005]
    assert (storage.counters.late_commits, storage.counters.early_commits) == (0, 0)
    storage.close()


def test_a_sorter_state_saved_for_another_head_is_not_used(tmp_path: Path) -> None:
    # An original pump that ran here meanwhile moved the pointers, but does not know our state.
    storage = PumpStorage(tmp_path)
    store(storage, prewrite(10), build.build_fake(20))
    until(lambda: storage.count_unmatched() == (1, 10), "it waits")
    storage.close()
    with plyvel.DB(str(tmp_path / "kv")) as index:
        index.put(b"!binlog!headPointer", Pointer(0, 0).to_bytes())
    storage = PumpStorage(tmp_path)
    assert (storage.recovered, storage.count_unmatched()) == (2, (1, 10))
    storage.close()


def test_a_value_log_that_lost_its_end_is_not_served(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    store(storage, build.build_fake(10), build.build_fake(20))
    storage.close()
    with (tmp_path / "value" / "000000.vlog").open("r+b") as file:
        file.truncate((tmp_path / "value" / "000000.vlog").stat().st_size - 1)
    with pytest.raises(Permanent, match="stored binlogs are lost"):
        PumpStorage(tmp_path)
    shutil.rmtree(tmp_path / "kv")
    storage = PumpStorage(tmp_path)
    assert storage.watermark == 10
    storage.close()


def test_damage_inside_the_log_is_reported_with_its_position_and_never_skipped(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    for start in range(10, 400, 10):
        store(storage, prewrite(start), commit(start, start + 1))
    reach(storage, 391)
    place = storage.index.find_pointer(200)
    assert place is not None
    storage.close()
    with (tmp_path / "value" / "000000.vlog").open("r+b") as file:
        file.seek(place.offset + 30)
        file.write(b"\xff")
    storage = PumpStorage(tmp_path)
    found = pull(storage, 0, lambda: False)
    assert [ts for _, ts, _ in islice(found, 19)] == list(range(11, 200, 10))
    with pytest.raises(WireError, match=f"offset={place.offset}"):
        next(found)
    storage.close()


def test_closing_a_directory_twice_closes_no_other_file(tmp_path: Path) -> None:
    directory = DataDirectory(tmp_path / "pump")
    directory.close()
    with (tmp_path / "other").open("w", encoding="utf-8") as other:  # it gets the file number that became free
        directory.close()
        other.write("still mine")
    assert (tmp_path / "other").read_text(encoding="utf-8") == "still mine"


def test_after_a_clean_stop_a_start_reads_nothing_again(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    store(storage, *(build.build_fake(ts) for ts in range(1, 2001)))
    storage.close()
    assert sum(path.stat().st_size for path in (tmp_path / "kv").glob("*.log")) < 2048  # of 2,000 keys in LevelDB's log
    again = PumpStorage(tmp_path)
    assert (again.recovered, again.watermark) == (0, 2000)
    again.close()
