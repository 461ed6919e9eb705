"""The value log: the original's bytes; whatever happens to its files, no acked binlog is lost and none is invented."""

from __future__ import annotations

import errno
import io
import weakref
from pathlib import Path

import pytest

from binlake.errors import LostRange, Permanent, Transient, WireError
from binlake.pump_service.pump.directory import Files
from binlake.pump_service.pump.record import FOOTER, HEAD, RECORD, Pointer, RecordFrame, frame_of
from binlake.pump_service.pump.recovery import KnownSynced
from binlake.pump_service.pump.vlog import LogOptions, ValueLog
from binlake.wire import build

# tidb-binlog 1.6
C_BYTES = bytes.fromhex("08011081 8080c8d007 188280a0ced007 22026b31 3800 4000".replace(" ", ""))
P_BYTES = bytes.fromhex(
    "0800108180 80c8d0071800 22026b31 2a11 0817120d082d1207080208040202613800 38004000".replace(" ", "")
)
PREWRITE_VALUE = bytes.fromhex("0817120d082d12070802080402026138 00".replace(" ", ""))
FAKE_BYTES = bytes.fromhex("0802108280a0ced007188280a0ced00738004000")


def log_frame(data: bytes, fid: int = 0) -> RecordFrame:
    """How the records of a Binlake file are framed."""
    frame = frame_of(fid, data[: HEAD.size])
    assert frame is not None
    return frame


def test_builders_produce_the_originals_bytes() -> None:
    prewrite = build.build_prewrite(262144000001, b"k1", PREWRITE_VALUE)
    assert prewrite.SerializeToString() == P_BYTES
    assert build.build_commit(prewrite, 262157107202).SerializeToString() == C_BYTES
    assert build.build_fake(262157107202).SerializeToString() == FAKE_BYTES
    assert build.build_rollback(prewrite).commit_ts == 0


def test_reads_by_pointer_check_magic_and_crc(tmp_path: Path) -> None:
    log = ValueLog(tmp_path)
    first, second = log.append([b"one", b"x" * 10_000], 5)
    assert (log.read(first), log.read(second)) == (b"one", b"x" * 10_000)
    with pytest.raises(WireError, match="no record starts here"):
        log.read(Pointer(0, first.offset + 1))
    with pytest.raises(WireError, match="cut off"):
        log.read(log.end)
    with (tmp_path / "000000.vlog").open("r+b") as file:
        file.seek(first.offset + RECORD.size + 1)
        file.write(b"!")
    with pytest.raises(WireError, match="crc"):
        log.read(first)


def test_rotation_seals_with_the_greatest_ts_and_continues(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, LogOptions(segment_bytes=150))
    places = [log.append([bytes([n]) * 60], 10 + n)[0] for n in range(4)]
    log.close()
    assert [place.fid for place in places] == [0, 0, 1, 1]
    data = (tmp_path / "000000.vlog").read_bytes()
    assert log_frame(data).decode_footer(data, len(data)) == 11
    again = ValueLog(tmp_path, LogOptions(segment_bytes=150))
    assert again.max_ts == 13
    assert [payload[0] for _, payload in again.scan_from(places[1])] == [1, 2, 3]
    assert again.end.fid == 2  # the last file was sealed by the rotation


def test_a_clean_stop_seals_a_large_file_and_leaves_a_small_one_open(tmp_path: Path) -> None:
    log = ValueLog(tmp_path)
    log.append([build.build_fake(9).SerializeToString()], 9)
    log.close()
    again = ValueLog(tmp_path)
    assert (again.end.fid, again.max_ts) == (0, 9)
    again.append([b"\x10\x01" + b"\x2a\x80\x80\x04" + bytes(65536)], 9)
    again.close()
    assert ValueLog(tmp_path).end == Pointer(1, HEAD.size)


class FaultyFiles(Files):
    """A disk that fails on request: `room` bytes can be written, `sync_error` is what a sync raises."""

    def __init__(self) -> None:
        self.room: int | None = None
        self.sync_error: OSError | None = None

    def append(self, file: io.FileIO, data: bytes | memoryview) -> int:
        if self.room is None:
            return super().append(file, data)
        if not self.room:
            raise OSError(28, "No space left on device")
        taken = super().append(file, bytes(data[: self.room]))
        self.room -= taken
        return taken

    def sync(self, file: io.FileIO) -> None:
        if self.sync_error is not None:
            raise self.sync_error
        super().sync(file)


def test_a_failed_write_is_undone(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = ValueLog(tmp_path, files=files)
    log.append([b"kept"], 1)
    files.room = 20
    with pytest.raises(Transient, match="No space left"):
        log.append([b"refused"], 2)
    files.room = None
    log.append([b"after"], 3)
    assert [payload for _, payload in log.scan_from(Pointer(0, 0))] == [b"kept", b"after"]


def test_after_a_failed_sync_nothing_is_ever_acked_again(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = ValueLog(tmp_path, files=files)
    files.sync_error = OSError(5, "Input/output error")
    with pytest.raises(Permanent, match="fdatasync"):
        log.append([b"a"], 1)
    files.sync_error = None
    with pytest.raises(Permanent, match="cannot be written"):
        log.append([b"b"], 2)
    assert "Input/output" in log.failed
    assert log.error == log.failed


def test_a_removed_file_stays_readable_while_open_and_is_a_lost_range_afterwards(tmp_path: Path) -> None:
    log = ValueLog(tmp_path, LogOptions(segment_bytes=50))
    first, second = (log.append([bytes([n]) * 60], n)[0] for n in (1, 2))
    running = log.scan_from(first)
    assert next(running)[0] == first
    assert log.list_old_files() == [(0, 1), (1, 2)]
    log.remove([0])
    assert [place for place, _ in running] == [second]
    with pytest.raises(LostRange, match=r"000000\.vlog"):
        log.read(first)
    with pytest.raises(ValueError, match="current"):
        log.remove([log.end.fid])


def test_a_start_reads_only_records_after_the_known_position(tmp_path: Path) -> None:
    log = ValueLog(tmp_path)
    log.append([build.build_fake(ts).SerializeToString() for ts in (5, 6)], 6)
    known = log.append([build.build_fake(7).SerializeToString()], 7)[0]
    with (tmp_path / "000000.vlog").open("r+b") as file:
        file.seek(HEAD.size)
        file.write(b"never read")
    assert ValueLog(tmp_path, known=KnownSynced(known, 6)).max_ts == 7


def test_a_batch_larger_than_one_buffer_is_written_piece_by_piece(tmp_path: Path) -> None:
    log = ValueLog(tmp_path)
    payloads = [b"a" * (3 << 20), b"b" * (3 << 20), b"c"]
    places = log.append(payloads, 1)
    assert [log.read(place) for place in places] == payloads
    assert [payload for _, payload in log.scan_from(Pointer(0, 0))] == payloads


def test_a_pointer_into_a_removed_file_is_a_lost_range(tmp_path: Path) -> None:
    with pytest.raises(LostRange, match=r"000007\.vlog"):
        ValueLog(tmp_path).read(Pointer(7, 0))


class RefusingFiles(Files):
    """A disk that refuses the operations in `refused`; it counts the open files."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self.opened: weakref.WeakSet[io.FileIO] = weakref.WeakSet()

    def open(self, path: Path, *, create: bool = False) -> io.FileIO:
        if "open" in self.refused:
            raise OSError(errno.EMFILE, "Too many open files")
        file = super().open(path, create=create)
        self.opened.add(file)
        return file

    def sync_directory(self, directory: Path) -> None:
        if "directory" in self.refused:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_directory(directory)


@pytest.mark.parametrize("refused", ["directory", "open"])
def test_a_failed_rotation_is_reported_and_retried(tmp_path: Path, refused: str) -> None:
    files = RefusingFiles()
    log = ValueLog(tmp_path, LogOptions(segment_bytes=150), files=files)
    files.refused.add(refused)
    stored = [bytes([65 + n]) * 60 for n in range(4)]
    for payload in stored:
        log.append([payload], 1)  # durable, and acked
    assert "no new file" in log.error
    assert log.compute_room_left() > 0  # batches are still batches
    files.refused.clear()
    log.append([b"in the old file still"], 1)
    assert log.error == ""
    (place,) = log.append([b"in the new one"], 1)
    assert place == Pointer(1, HEAD.size)
    expected = [*stored, b"in the old file still", b"in the new one"]
    assert [payload for _, payload in log.scan_from(Pointer(0, 0))] == expected
    log.close()
    # one footer, at the end of the file: nothing that looks like damage
    data = (tmp_path / "000000.vlog").read_bytes()
    footer = log_frame(data).encode_footer(1, len(data) - FOOTER.size)
    assert data.count(footer) == 1
    assert data.endswith(footer)


def test_the_number_of_open_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("binlake.pump_service.pump.vlog._OPEN_FILES", 5)
    files = RefusingFiles()
    log = ValueLog(tmp_path, LogOptions(segment_bytes=20), files=files)
    places = [log.append([bytes([n + 1]) * 20], n)[0] for n in range(30)]
    assert [log.read(place)[0] for place in places] == list(range(1, 31))
    assert len(files.opened) <= 5
    running = log.scan_from(places[0])
    next(running)
    assert [log.read(place)[0] for place in places] == list(range(1, 31))
    assert len([*running]) == 29  # a reader keeps its file open
    log.close()
    again = ValueLog(tmp_path, LogOptions(segment_bytes=20), files=files)
    assert len(files.opened) <= 5
    files.refused.add("open")
    with pytest.raises(Transient, match="ulimit"):
        again.read(places[0])
    again.close()


def test_a_full_disk_at_close_leaves_the_file_unsealed_and_whole(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = ValueLog(tmp_path, files=files)
    log.append([b"x" * 60_000], 1)
    end = log.end
    files.room = 5
    log.close()
    assert ValueLog(tmp_path).end == end
