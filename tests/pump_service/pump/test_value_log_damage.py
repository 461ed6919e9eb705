"""The effects of bad disks and bad payloads on the value log: no acked binlog is lost, and nothing passes for a record.

Faults 2 and 6 of the pump under hostile input, R-01, S0-48.
"""

from __future__ import annotations

import io
import random
import shutil
from pathlib import Path

import plyvel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pump_helpers import commit, prewrite, reach, settled, store
from support.examples import examples
from value_log_files import OLD_FOOTER, OLD_HEADER, flip, old_record, payloads_of, segment

from binlake.errors import Permanent, Transient
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.record import END_MAGIC, MAGIC, Pointer
from binlake.pump_service.pump.storage import PumpStorage, StorageOptions
from binlake.wire import build


class CountingFiles(Files):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read(self, file: io.FileIO, at: int, size: int) -> bytes:
        data = super().read(file, at, size)
        self.read_bytes += len(data)
        return data


# -- payloads that look like records or footers


def test_a_payload_that_ends_like_a_footer_is_not_cut(tmp_path: Path) -> None:
    end = OLD_FOOTER.pack(7, END_MAGIC)
    tricky = build.build_fake(20).SerializeToString() + b"\xa2\x06" + bytes([len(end)]) + end  # field 100, unknown
    storage = PumpStorage(tmp_path)
    storage.append(build.build_fake(10).SerializeToString()).result()
    storage.append(tricky).result()
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    storage = PumpStorage(tmp_path)
    assert (payloads_of(storage)[-1], storage.max_ts, storage.watermark) == (tricky, 20, 20)
    storage.append(build.build_fake(30).SerializeToString()).result()
    storage.close()
    storage = PumpStorage(tmp_path)
    assert [ts for ts, _, _ in settled(storage)] == [10, 20, 30]
    storage.close()


def test_row_data_of_a_torn_write_is_never_read_as_a_record(tmp_path: Path) -> None:
    # A user's BLOB that holds a C for another client's open transaction.
    storage = PumpStorage(tmp_path)
    store(storage, prewrite(10))
    forged = old_record(commit(10, 15).SerializeToString())
    first = segment(tmp_path).read_bytes()
    # a true record of this very file, at another offset
    copied = first[first.index(prewrite(10).SerializeToString()) - 20 :]
    store(storage, prewrite(20, forged * 40 + copied + bytes(5000)))
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    with segment(tmp_path).open("r+b") as file:
        file.truncate(segment(tmp_path).stat().st_size - 2000)
    storage = PumpStorage(tmp_path)
    assert (storage.watermark, storage.count_unmatched()) == (0, (1, 10))
    assert payloads_of(storage) == [prewrite(10).SerializeToString()]
    store(storage, commit(10, 30))  # and new records follow the old ones
    reach(storage, 30)
    assert [ts for _, ts, _ in settled(storage)] == [30]
    storage.close()


@pytest.mark.parametrize("old", [False, True])
def test_planted_headers_cost_a_start_no_more_than_their_bytes(tmp_path: Path, old: bool) -> None:
    size = 1 << 20
    planted = b"".join(
        OLD_HEADER.pack(MAGIC, size - at - 32, 1) for at in range(0, size - 64, OLD_HEADER.size)
    )  # each claims all bytes that follow
    torn = old_record(prewrite(20, planted).SerializeToString())[:-9]
    if old:
        (tmp_path / "value").mkdir()
        segment(tmp_path).write_bytes(old_record(build.build_fake(10).SerializeToString()) + torn)
    else:
        storage = PumpStorage(tmp_path)
        store(storage, build.build_fake(10), prewrite(20, planted))
        storage.close()
        shutil.rmtree(tmp_path / "kv")
        path = next(path for path in sorted((tmp_path / "value").iterdir()) if path.stat().st_size > size)
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - 50)
    files = CountingFiles()
    try:
        PumpStorage(tmp_path, files=files).close()
    except Permanent as error:
        assert "accept-damage = 000000.vlog@" in str(error)  # noqa: PT017 - where it is not sure, it says so
    assert files.read_bytes < 30 * size


# -- disk faults


class KilledDisk(Files):
    """A disk and its page cache: after a kill everything written remains, after a power failure only what was synced.

    A sync covers data written since the file was opened by this process: older pages may be clean and lost (after a
    failed sync they are).
    """

    def __init__(self) -> None:
        self.durable: dict[str, int] = {}
        self.written_from: dict[str, int] = {}
        self.fail_sync = False

    def name(self, file: io.FileIO) -> str:
        return Path(f"/proc/self/fd/{file.fileno()}").readlink().name

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        self.written_from.setdefault(self.name(file), self.read_size(file))
        return super().append(file, data)

    def overwrite(self, path: Path, at: int, data: bytes) -> None:
        super().overwrite(path, at, data)
        self.written_from[path.name] = min(at, self.written_from.get(path.name, at))

    def sync(self, file: io.FileIO) -> None:
        if self.fail_sync:
            raise OSError(5, "Input/output error")
        super().sync(file)
        name = self.name(file)
        if self.written_from.get(name, 1 << 62) <= self.durable.get(name, 0):
            self.durable[name] = self.read_size(file)

    def next_life(self) -> None:
        """The process was killed; the page cache stays."""
        self.written_from, self.fail_sync = {}, False

    def fail_power(self, folder: Path) -> None:
        for path in (folder / "value").iterdir():
            if path.stat().st_size > self.durable.get(path.name, 0):
                with path.open("r+b") as file:
                    file.truncate(self.durable.get(path.name, 0))
        self.next_life()


@pytest.mark.parametrize("how", ["killed", "sync failed"])
def test_a_tail_in_the_page_cache_is_rewritten_durably_before_it_is_relied_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.follower._SYNC_S", 0.0)
    disk = KilledDisk()
    storage = PumpStorage(tmp_path, files=disk)
    store(storage, build.build_fake(10))
    before = segment(tmp_path).stat().st_size
    store(storage, build.build_fake(20))
    storage.close()
    if how == "sync failed":
        disk.next_life()
        storage, disk.fail_sync = PumpStorage(tmp_path, files=disk), True
        with pytest.raises(Permanent, match="fdatasync"):
            storage.append(build.build_fake(30).SerializeToString()).result()
        with pytest.raises(Permanent, match="cannot be written"):  # and this process never writes again
            storage.append(build.build_fake(40).SerializeToString()).result()
        assert "fdatasync" in storage.error
        storage.close()
    else:
        disk.durable[segment(tmp_path).name] = before  # the write of 20 was in progress when the process was killed
    with plyvel.DB(str(tmp_path / "kv")) as index:  # and its index was not synced yet
        for key in (b"!binlog!headPointer", b"!binlake!checkpoint", b"!binlog!maxCommitTS", b"!binlog!handlePointer"):
            index.delete(key)
    disk.next_life()
    storage = PumpStorage(tmp_path, files=disk)  # reads the tail from the page cache, and its index is synced
    watermark = storage.watermark
    assert watermark >= 20
    storage.close()
    disk.fail_power(tmp_path)
    storage = PumpStorage(tmp_path, files=disk)
    assert storage.watermark == watermark
    storage.close()


def test_a_flipped_bit_before_later_writes_is_reported_and_can_be_given_up(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path)
    for ts in (10, 20, 30):
        store(storage, build.build_fake(ts))
    reach(storage, 30)
    place = storage.index.find_pointer(20)
    assert place is not None
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    flip(segment(tmp_path), place.offset + 25)
    size = segment(tmp_path).stat().st_size
    with pytest.raises(Permanent, match=f"accept-damage = 000000.vlog@{place.offset}"):
        PumpStorage(tmp_path)
    assert segment(tmp_path).stat().st_size == size  # no file was changed
    storage = PumpStorage(tmp_path, StorageOptions(accepted_damage=frozenset([place])))
    assert [ts for ts, _, _ in settled(storage)] == [10, 30]
    assert storage.given_up > 0
    storage.close()


def test_a_flipped_bit_in_a_sealed_file_stops_a_rebuild_and_can_be_given_up(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path, StorageOptions(segment_bytes=200))
    for ts in range(10, 200, 10):
        store(storage, build.build_fake(ts))
    reach(storage, 190)
    place = storage.index.find_pointer(20)
    assert place is not None
    storage.close()
    shutil.rmtree(tmp_path / "kv")
    flip(segment(tmp_path, place.fid), place.offset + 25)
    with pytest.raises(Permanent, match=f"accept-damage = 000000.vlog@{place.offset}"):
        PumpStorage(tmp_path)
    storage = PumpStorage(tmp_path, StorageOptions(accepted_damage=frozenset([place])))
    assert [ts for ts, _, _ in settled(storage)] == [10, *range(30, 200, 10)]
    storage.close()


@pytest.mark.parametrize("byte", [0, 9, 30])
def test_a_damaged_file_head_is_reported(tmp_path: Path, byte: int) -> None:
    storage = PumpStorage(tmp_path)
    store(storage, build.build_fake(10))
    storage.close()
    flip(segment(tmp_path), byte)
    with pytest.raises(Permanent, match=r"the head of the file.*accept-damage = 000000.vlog@0"):
        PumpStorage(tmp_path)
    shutil.rmtree(tmp_path / "kv")
    storage = PumpStorage(tmp_path, StorageOptions(accepted_damage=frozenset([Pointer(0, 0)])))
    store(storage, build.build_fake(20))
    reach(storage, 20)
    assert [ts for ts, _, _ in settled(storage)] == [20]
    storage.close()


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_a_torn_write_loses_no_acked_binlog_and_invents_none(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    chance, folder = random.Random(seed), tmp_path_factory.mktemp("torn")
    storage, acked = PumpStorage(folder), list[bytes]()
    for write in range(chance.randint(1, 4)):
        acked += (batch := [_payload(chance, 100 * write + one) for one in range(1, chance.randint(2, 5))])
        storage._log.append(batch, 100 * write + 9)
    acked_end = segment(folder).stat().st_size
    torn = [_payload(chance, 1000 + one) for one in range(chance.randint(1, 6))]
    storage._log.append(torn, 1010)
    storage.close()
    data = bytearray(segment(folder).read_bytes())
    del data[chance.randint(acked_end, len(data)) :]
    for at in range(acked_end, len(data), 64):
        if chance.random() < 0.4:
            data[at : at + 64] = bytes(len(data[at : at + 64]))
    shutil.rmtree(folder / "kv")
    segment(folder).write_bytes(data)
    storage = PumpStorage(folder)
    stored_payloads = payloads_of(storage)
    assert stored_payloads[: len(acked)] == acked
    assert stored_payloads[len(acked) :] == torn[: len(stored_payloads) - len(acked)]
    storage.close()


def _payload(chance: random.Random, ts: int) -> bytes:
    return prewrite(ts, chance.randbytes(chance.randint(1, 300))).SerializeToString()


class NoFooters(Files):
    """A disk that refuses a footer, as if the process died between creating the new file and sealing the old one."""

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        if len(data) in (12, 20):
            raise OSError(28, "No space left on device")
        return super().append(file, data)


@pytest.mark.parametrize("torn", [0, 7])
def test_a_rotation_cut_by_a_crash_is_sealed_at_the_next_start(tmp_path: Path, torn: int) -> None:
    storage = PumpStorage(tmp_path, StorageOptions(segment_bytes=300_000), files=NoFooters())
    for ts in range(1, 5):
        store(storage, prewrite(ts, bytes(100_000)))
    assert "no new file" in storage.error
    storage.close()
    with segment(tmp_path).open("ab") as file:
        file.write(bytes(torn))
    PumpStorage(tmp_path).close()
    files = CountingFiles()
    storage = PumpStorage(tmp_path, files=files)
    assert files.read_bytes < 150_000  # of 400,000: the last record only
    assert storage.count_unmatched() == (4, 1)
    assert len(payloads_of(storage)) == 4
    storage.close()


def test_a_sealed_file_that_lost_its_end_is_reported(tmp_path: Path) -> None:
    storage = PumpStorage(tmp_path, StorageOptions(segment_bytes=200))
    for ts in range(10, 200, 10):
        store(storage, build.build_fake(ts))
    storage.close()
    flip(segment(tmp_path), segment(tmp_path).stat().st_size - 3)  # only its footer is lost: it is written again
    storage = PumpStorage(tmp_path)
    assert len(settled(storage)) == 19
    storage.close()
    with segment(tmp_path).open("r+b") as file:
        file.truncate(segment(tmp_path).stat().st_size - 20 - 25)
    with pytest.raises(Permanent, match=r"damaged.*000000\.vlog"):
        PumpStorage(tmp_path)


def test_a_full_disk_at_a_start_is_reported(tmp_path: Path) -> None:
    class Full(Files):
        def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
            del file, data
            raise OSError(28, "No space left on device")

    with pytest.raises(Transient, match="No space left"):
        PumpStorage(tmp_path, files=Full())
    PumpStorage(tmp_path).close()
