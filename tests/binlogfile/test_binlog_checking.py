"""`binlake files`: verify finds all problems of a folder, and list shows the content of each file."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import pytest

from binlake.binlogfile.checking import list_files, verify_files
from binlake.binlogfile.folder import INDEX_PATH as PATH
from binlake.binlogfile.folder import BinlogIndex, IndexedFile
from binlake.binlogfile.framing import pack_record
from binlake.cli import run
from binlake.common.filestore import LocalStore
from binlake.wire import pb_binlog_pb2 as pb

BEGIN = 1795000000000 << 18
FILES = {
    "binlog-0000000000000000-20261101000000": [10, 12],
    "binlog-0000000000000001-20261102000000": [20],
    "binlog-0000000000000002-20261103000000": [30, 32, 34],
}
NAMES = list(FILES)


def content(stamps: list[int]) -> bytes:
    return b"".join(pack_record(pb.Binlog(tp=pb.DML, commit_ts=ts).SerializeToString()) for ts in stamps)


def folder(at: Path, *, indexed: bool = True, since: int = 0) -> LocalStore:
    store, files = LocalStore(at), []
    for name, offsets in FILES.items():
        stamps = [since + offset for offset in offsets]
        data = content(stamps)
        store.put(name, data)
        crc = zlib.crc32(data)
        files.append(IndexedFile(name, stamps[0], stamps[-1], len(data), len(stamps), crc))
    if indexed:
        store.put(PATH, BinlogIndex("demo.backup", since + 5, since + 40, tuple(files)).to_json())
    return store


def problems(store: LocalStore) -> list[str]:
    report = verify_files(store)
    assert report.is_intact == (not [*report.problems, *(one for file in report.files for one in file.problems)])
    return [*report.problems, *(f"{NAMES.index(file.name)}: {one}" for file in report.files for one in file.problems)]


@pytest.mark.parametrize("indexed", [False, True])
def test_intact_folder_has_no_problems(tmp_path: Path, indexed: bool) -> None:
    store = folder(tmp_path, indexed=indexed)
    assert problems(store) == []
    assert [(file.first, file.last, file.records) for file in verify_files(store).files] == [
        (10, 12, 2), (20, 20, 1), (30, 34, 3),
    ]  # fmt: skip
    assert [file.first for file in list_files(store).files] == [10, 20, 30]


def test_every_fault_is_found_at_once(tmp_path: Path) -> None:
    store = folder(tmp_path)
    first, second, third = (tmp_path / name for name in NAMES)
    data = bytearray(first.read_bytes())
    data[14] ^= 1
    first.write_bytes(data)
    second.unlink()
    third.write_bytes(third.read_bytes()[:-1])
    (tmp_path / "binlog-0000000000000000-20270101000000").write_bytes(b"")
    size = len(content(FILES[NAMES[2]]))
    assert problems(store) == [
        f"binlog-0000000000000000-20270101000000 has the number of {NAMES[0]}, which Binlake wrote",
        "0: a binlog file is damaged: a record has a wrong checksum at byte 0",
        "1: a file does not exist",
        f"2: it has {size - 1} bytes, but the index says {size}",
    ]


def test_replaced_or_moved_records_are_found(tmp_path: Path) -> None:
    """A record's checksum does not detect that it was moved, nor would a file checksum by the same polynomial."""
    store = folder(tmp_path)
    (tmp_path / NAMES[2]).write_bytes(content([30, 34, 32]))
    assert problems(store) == ["2: its bytes do not match the checksum in the index"]
    data = content([11, 9])
    file = IndexedFile(NAMES[1], 11, 11, len(data), 3, zlib.crc32(data))
    index = BinlogIndex("demo.backup", 5, 40, (list_index(store).files[0], file))
    store.put(NAMES[1], data)
    store.put(PATH, index.to_json())
    assert problems(store) == [
        "1: commit_ts 9 comes after 11 at byte 20",
        "1: the number of its records is 2, but the index says 3",
        "1: it begins at 11, but the previous file ends at 12",
    ]


def test_a_commit_may_be_in_two_files(tmp_path: Path) -> None:
    """Rows with the commit_ts of a DDL come after it, and a file may end between them."""
    store, files = LocalStore(tmp_path), []
    for name, stamps in zip(NAMES[:2], ([10, 12, 12], [12, 12, 20]), strict=True):
        data = content(stamps)
        store.put(name, data)
        files.append(IndexedFile(name, stamps[0], stamps[-1], len(data), len(stamps), zlib.crc32(data)))
    store.put(PATH, BinlogIndex("demo.backup", 5, 40, tuple(files)).to_json())
    seen: list[int] = []
    assert verify_files(store, lambda item: seen.append(item.commit_ts)).is_intact
    assert seen == [10, 12, 12, 12, 12, 20]


def list_index(store: LocalStore) -> BinlogIndex:
    return BinlogIndex.from_json(store.get(PATH) or b"")


def test_drainer_files_with_repetitions_and_gaps(tmp_path: Path) -> None:
    store = folder(tmp_path, indexed=False)
    store.put(NAMES[1], content([12, 20]))
    assert problems(store) == []
    store.delete(NAMES[1])
    (tmp_path / NAMES[0]).write_bytes(content([10])[:-2])
    gap = f"files 1 to 1 are missing, after {NAMES[0]}"
    assert problems(store) == [gap, "0: a binlog file is damaged: a record is cut short at byte 0"]
    report = list_files(folder(tmp_path, indexed=False))
    assert [(file.first, file.records, file.problems) for file in report.files] == [
        (10, None, []), (20, None, []), (30, None, []),
    ]  # fmt: skip


def test_two_files_with_one_number_are_named(tmp_path: Path) -> None:
    store = folder(tmp_path, indexed=False)
    again = "binlog-0000000000000001-20261102000001"
    store.put(again, content([21]))
    assert (
        list_files(store).problems == verify_files(store).problems == [f"{NAMES[1]} and {again} have the same number"]
    )


def test_command_lists_and_verifies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder(tmp_path, since=BEGIN)
    assert run(["files", "list", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in NAMES)
    assert f"feed demo.backup: the range ({BEGIN + 5}, {BEGIN + 40}] is complete" in shown
    for ts, names in ((9, []), (12, NAMES[:1]), (19, []), (33, NAMES[2:]), (35, [])):
        assert run(["files", "list", f"file://{tmp_path}", "--at", str(BEGIN + ts), "--output", "json"]) == 0
        assert [file["name"] for file in json.loads(capsys.readouterr().out)["files"]] == names, ts
    assert run(["files", "verify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("whole") == 3
    (tmp_path / NAMES[1]).write_bytes(b"\0" * 40)
    assert run(["files", "verify", str(tmp_path), "--output", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["held"] == {"feed": "demo.backup", "lo": str(BEGIN + 5), "hi": str(BEGIN + 40)}
    assert not report["whole"]
    assert [len(file["problems"]) for file in report["files"]] == [0, 1, 0]
    assert report["files"][2]["last"] == str(BEGIN + 34)
    for action in ("list", "verify"):
        assert run(["files", action, str(tmp_path / "nowhere")]) == 1
        assert "there are no binlog files" in capsys.readouterr().err
    for words in ([], ["--replication", "demo.toml"], [str(tmp_path), "--replication", "demo.toml", "--feed", "f"]):
        assert run(["files", "list", *words]) == 1
        assert "no files are given" in capsys.readouterr().err
