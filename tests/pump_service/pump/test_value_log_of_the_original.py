"""Files that an original pump wrote: they are read, and nothing is added to them (MISSION S0-48)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pump_helpers import commit, prewrite, reach, settled, store
from value_log_files import OLD_FOOTER, old_record, payloads_of, segment

from binlake.errors import Permanent
from binlake.pump_service.pump.record import END_MAGIC, Pointer
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build
from binlake.wire.binlog_pb2 import Binlog


def old_directory(folder: Path, *files: bytes) -> None:
    (folder / "value").mkdir()
    for fid, data in enumerate(files):
        segment(folder, fid).write_bytes(data)


def old_records(*binlogs: Binlog) -> bytes:
    return b"".join(old_record(binlog.SerializeToString()) for binlog in binlogs)


def test_old_files_are_read_and_new_records_go_to_a_new_file(tmp_path: Path) -> None:
    many = [binlog for ts in range(10, 900, 10) for binlog in (prewrite(ts), commit(ts, ts + 1))]
    old_directory(tmp_path, old_records(*many) + OLD_FOOTER.pack(891, END_MAGIC), old_records(prewrite(1000)))
    storage = PumpStorage(tmp_path)
    store(storage, commit(1000, 1001))
    reach(storage, 1001)
    before = settled(storage)
    assert [ts for _, ts, _ in before] == [*range(11, 901, 10), 1001]
    assert storage.index.find_pointer(1001).fid == 2
    assert segment(tmp_path, 1).read_bytes() == old_records(prewrite(1000)) + OLD_FOOTER.pack(1000, END_MAGIC)
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    storage = PumpStorage(tmp_path)
    assert settled(storage) == before
    storage.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_an_old_payload_that_ends_like_a_footer_is_not_cut(tmp_path: Path, sealed: bool) -> None:
    end = OLD_FOOTER.pack(7, END_MAGIC)
    tricky = build.build_fake(20).SerializeToString() + b"\xa2\x06" + bytes([len(end)]) + end
    old_directory(tmp_path, old_records(build.build_fake(10)) + old_record(tricky) + end * sealed)
    storage = PumpStorage(tmp_path)
    assert (payloads_of(storage)[-1], storage.max_ts) == (tricky, 20)
    storage.close()
    storage = PumpStorage(tmp_path)
    assert (payloads_of(storage)[-1], storage.max_ts, storage.watermark) == (tricky, 20, 20)
    storage.close()


def test_a_torn_tail_of_an_old_file_is_cut_unless_something_like_a_record_follows(tmp_path: Path) -> None:
    whole, torn = old_records(build.build_fake(10)), old_records(prewrite(20, bytes(500)))[:-50]
    old_directory(tmp_path, whole + torn)
    storage = PumpStorage(tmp_path)
    assert (storage.watermark, storage.count_unmatched()) == (10, (0, 0))
    storage.close()
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    # an old pump continued writing after a torn tail
    old_directory(tmp_path, whole + torn + old_records(build.build_fake(30)))
    with pytest.raises(Permanent, match=f"000000.vlog@{len(whole)}"):
        PumpStorage(tmp_path)
    accepted = StorageOptions(accepted_damage=frozenset([Pointer(0, len(whole))]))
    storage = PumpStorage(tmp_path, accepted)
    assert [ts for ts, _, _ in settled(storage)] == [10, 30]
    storage.close()
