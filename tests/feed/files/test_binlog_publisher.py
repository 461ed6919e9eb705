"""Binlog files of a feed are the same wherever a run is killed; the test's reader knows only the framing."""

from __future__ import annotations

import gzip
import os
import signal
import struct
import subprocess
import sys
import textwrap
import zlib
from dataclasses import replace
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pytest
from support.feedmessages import Change, commit_ts, messages_of, window_of
from support.memorystore import Killed, MemoryStore

from binlake.binlogfile.folder import INDEX_PATH as PATH
from binlake.binlogfile.folder import parse_name, read_index
from binlake.binlogfile.framing import DamagedFile
from binlake.binlogfile.reading import BinlogTransaction, read_items
from binlake.common.filestore import LocalStore
from binlake.config.sinkuri import StorageSection
from binlake.errors import Permanent
from binlake.feed.files.binlogs import BinlogPublisher
from binlake.feed.files.publisher import Read
from binlake.feed.manifest import EncodeManifest
from binlake.wire import pb_binlog_pb2 as pb

STORAGE = StorageSection("file", "/nowhere", file_size=200)
SECONDS = range(1, 21)
WINDOWS = [(0, 5), (5, 6), (6, 12), (12, 13), (13, 20)]
FEED = "demo.files"


def window(bounds: tuple[int, int], parts: int = 1, mark: str = "") -> tuple[EncodeManifest, Read]:
    """A window of binlogs: one per second, the third of which is a DDL."""
    changes = []
    for second in SECONDS:
        ts, text = commit_ts(second), f"{second}{mark}{'x' * (second % 4) * 20}"
        body = pb.Binlog(tp=pb.DDL if second == 3 else pb.DML, commit_ts=ts, ddl_query=text.encode())
        changes.append(Change(second, body.SerializeToString().decode("latin1")))
    manifest, read = window_of(*bounds, changes, parts)
    return manifest, lambda after: (_binary(part) for part in read(after))


def _binary(part: pa.Table) -> pa.Table:
    """The messages in the form that encode uses for a protocol with whole transactions."""
    ops = ["ddl" if ts == commit_ts(3) else "transaction" for ts in part.column("commit_ts").to_pylist()]
    values = [value.decode().encode("latin1") for value in part.column("value").to_pylist()]
    for name, column in (("op", pa.array(ops, pa.string())), ("value", pa.array(values, pa.binary()))):
        part = part.set_column(part.schema.get_field_index(name), name, column)
    return part


def publish(
    store: MemoryStore | LocalStore, windows: list[tuple[int, int]], storage: StorageSection = STORAGE, parts: int = 1,
    feed: str = FEED, mark: str = "", join_bytes: int = 100,
) -> int:  # fmt: skip
    sent = 0
    for bounds in windows:
        with BinlogPublisher(storage, feed, store=store, join_bytes=join_bytes) as publisher:
            sent += publisher.publish_window(*window(bounds, parts, mark))
    return sent


def publish_undisturbed(storage: StorageSection = STORAGE) -> MemoryStore:
    store = MemoryStore()
    assert publish(store, WINDOWS, storage) == len(SECONDS)
    return store


def binlogs(store: MemoryStore) -> list[pb.Binlog]:
    """The payloads found by a reader that knows only names and framing, as the original's reparo."""
    found = []
    for name in sorted(path for path in store.files if path != PATH):
        content, at = store.files[name], 0
        if name.endswith(".tar.gz"):
            content = gzip.decompress(content)
        while at < len(content):
            magic, size = struct.unpack_from("<IQ", content, at)
            payload = content[at + 12 : at + 12 + size]
            [crc] = struct.unpack_from("<I", content, at + 12 + size)
            assert (magic, crc) == (471532804, google_crc32c.value(payload))
            found.append(pb.Binlog.FromString(payload))
            at += 16 + size
    return found


# S0-08
def test_everything_is_written_once_and_in_order() -> None:
    store = publish_undisturbed()
    found = binlogs(store)
    assert [one.commit_ts for one in found] == [commit_ts(second) for second in SECONDS]
    assert [one.commit_ts for one in found if one.tp == pb.DDL] == [commit_ts(3)]
    assert [item.commit_ts for item in read_items(store)] == [one.commit_ts for one in found]
    names = [parse_name(path) for path in sorted(store.files) if path != PATH]
    assert [one.index for one in names if one] == list(range(len(names)))
    assert len(names) > 3
    writes = store.writes
    assert publish(store, WINDOWS) == 0
    assert store.writes == writes


def test_index_says_which_file_holds_which_commits() -> None:
    store = publish_undisturbed()
    index = read_index(store)
    assert index is not None
    assert (index.feed, index.lo, index.hi) == (FEED, commit_ts(0), commit_ts(20))
    assert sum(file.records for file in index.files) == len(SECONDS)
    for file, following in zip(index.files, [*index.files[1:], None], strict=True):
        content = store.files[file.name]
        assert (file.size, file.crc) == (len(content), zlib.crc32(content))
        assert file.first <= file.last
        assert following is None or file.last < following.first
    # A new file follows only a full file, or one that no window continues.
    assert all(file.size >= 100 for file in index.files[:-1])
    assert {path for path in store.files if path != PATH} == {file.name for file in index.files}


def test_small_windows_share_a_file() -> None:
    store = MemoryStore()
    publish(store, WINDOWS, replace(STORAGE, file_size=1 << 20), join_bytes=1 << 20)
    assert len(store.files) == 2
    assert len(binlogs(store)) == len(SECONDS)


# S3-14
def test_files_end_after_the_transaction_that_reaches_their_size() -> None:
    whole = publish_undisturbed()
    for parts in (2, 5, 30):
        store = MemoryStore()
        publish(store, WINDOWS, parts=parts)
        assert store.files == whole.files
    store = MemoryStore()
    publish(store, [(0, 20)])
    index = read_index(store)
    assert index is not None
    for file in index.files[:-1]:
        *_, last = binlogs_of(store, file.name)
        assert file.size >= 200 > file.size - 16 - len(last.SerializeToString())


def binlogs_of(store: MemoryStore, name: str) -> list[pb.Binlog]:
    alone = MemoryStore()
    alone.files = {name: store.files[name]}
    return binlogs(alone)


# S2-01, R-31
@pytest.mark.parametrize("late", [False, True])
def test_kill_at_any_write_gives_the_same_files(late: bool) -> None:
    storage = replace(STORAGE, retention_days=1)
    whole = publish_undisturbed(storage)
    assert whole.writes >= 12
    for fails in range(1, whole.writes + 1):
        store = MemoryStore()
        store.fails, store.late = fails, late
        with pytest.raises(Killed):
            publish(store, WINDOWS, storage)
        index = read_index(store)
        shown = [] if index is None else [item.commit_ts for item in read_items(store)]
        assert shown == [commit_ts(second) for second in SECONDS if index and commit_ts(second) <= index.hi]
        publish(store, WINDOWS, storage, parts=3)
        assert store.files == whole.files, f"killed at write {fails}"


def test_started_window_encoded_differently_is_written_once() -> None:
    """The feed's section changed meanwhile: encode made the window again, here with fewer files."""
    before = MemoryStore()
    publish(before, WINDOWS[:2])
    small = publish_undisturbed()
    for fails in range(before.writes + 1, small.writes + 1):
        store = MemoryStore()
        store.fails = fails
        with pytest.raises(Killed):
            publish(store, WINDOWS)
        store.fails = 0
        publish(store, WINDOWS, replace(STORAGE, file_size=1 << 20), mark=" again")
        assert [one.commit_ts for one in binlogs(store)] == [commit_ts(second) for second in SECONDS], fails


def test_kill_while_writing_keeps_the_old_file(tmp_path: Path) -> None:
    """kill -9 in the middle of rewriting a file: the former content stays."""
    store, whole = (LocalStore(tmp_path / name) for name in ("killed", "whole"))
    publish(store, WINDOWS[:1])
    publish(whole, WINDOWS)
    [first, *_] = whole.list("")[1:]
    shown = [item.commit_ts for item in read_items(store)]
    program = f"""
        import os, signal, shutil
        from pathlib import Path
        from binlake.common.filestore import LocalStore

        def half(source, target, size):
            target.write(source.read(30))
            target.flush()
            os.kill(os.getpid(), signal.SIGKILL)

        shutil.copyfileobj = half
        LocalStore(Path({str(tmp_path / "killed")!r})).put({first!r}, {whole.get(first)!r})
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    assert any(name.endswith(".part") for name in os.listdir(tmp_path / "killed"))
    assert [item.commit_ts for item in read_items(store)] == shown
    publish(store, WINDOWS)
    assert {path: store.get(path) for path in store.list("")} == {path: whole.get(path) for path in whole.list("")}


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressed_files_hold_the_same(compression: str) -> None:
    storage = replace(STORAGE, compression=compression)
    store = publish_undisturbed(storage)
    items = list(read_items(store))
    assert [item.commit_ts for item in items] == [commit_ts(second) for second in SECONDS]
    plain = list(read_items(publish_undisturbed()))
    assert [one.message for one in items if isinstance(one, BinlogTransaction)] == [
        one.message for one in plain if isinstance(one, BinlogTransaction)
    ]
    if compression == "gzip":
        assert [one.commit_ts for one in binlogs(store)] == [item.commit_ts for item in items]
    again = MemoryStore()
    publish(again, WINDOWS, storage, parts=7)
    assert again.files == store.files


def test_files_past_their_retention_are_deleted_except_the_newest() -> None:
    day = 86_400
    store, storage = MemoryStore(), replace(STORAGE, retention_days=2, file_size=1)

    def write(second: int) -> None:
        body = pb.Binlog(tp=pb.DML, commit_ts=commit_ts(second)).SerializeToString()
        manifest, _ = window((second - 1, second))
        [part] = [_binary(messages_of([Change(second, body.decode("latin1"))]))]
        with BinlogPublisher(storage, FEED, store=store) as publisher:
            publisher.publish_window(manifest, lambda _: iter([part]))

    def list_held() -> tuple[list[int], int]:
        index = read_index(store)
        assert index is not None
        assert {path for path in store.files if path != PATH} == {file.name for file in index.files}
        return [file.file.index for file in index.files], index.lo

    for second in (1, day, 2 * day):
        write(second)
    assert list_held()[0] == [0, 1, 2]
    write(3 * day)
    # The rest is complete after the last deleted commit.
    assert list_held() == ([1, 2, 3], max(commit_ts(1), commit_ts(3 * day - 1)))
    write(30 * day)
    assert list_held()[0] == [4]
    with BinlogPublisher(storage, FEED, store=store) as publisher:
        publisher.publish_window(window((40 * day, 50 * day))[0], lambda _: iter(()))
    assert list_held()[0] == [4]


def test_empty_window_claims_the_folder_and_moves_the_checkpoint() -> None:
    store = MemoryStore()
    assert publish(store, [(20, 30)]) == 0
    assert list(store.files) == [PATH]
    assert list(read_items(store)) == []
    with pytest.raises(Permanent, match=r"other=demo\.files"):
        publish(store, WINDOWS, feed="demo.other")


def test_folder_has_one_time_zone() -> None:
    # its TIMESTAMPs are texts without a zone
    store = MemoryStore()
    for _ in range(2):
        with BinlogPublisher(STORAGE, FEED, time_zone="Asia/Tokyo", store=store) as publisher:
            publisher.publish_window(*window(WINDOWS[0]))
    index = read_index(store)
    assert index is not None
    assert index.time_zone == "Asia/Tokyo"
    before = dict(store.files)
    with pytest.raises(Permanent, match=r"another time zone .*theirs=Asia/Tokyo the feed's=UTC"):
        publish(store, WINDOWS)
    assert store.files == before
    # a folder from before the zone was recorded is continued
    store.put(PATH, replace(index, time_zone="").to_json())
    publish(store, WINDOWS[1:2])
    index = read_index(store)
    assert index is not None
    assert index.time_zone == "UTC"


def test_files_of_a_drainer_are_not_continued() -> None:
    store = MemoryStore()
    store.files["binlog-0000000000000000-20261101000000"] = b""
    with pytest.raises(Permanent, match=r"other=not Binlake's\] .*stay readable"):
        publish(store, WINDOWS)


def test_damaged_last_file_is_not_continued() -> None:
    store = MemoryStore()
    publish(store, WINDOWS[:2], join_bytes=200)
    [last] = [path for path in sorted(store.files) if path != PATH][-1:]
    content = store.files[last]
    for damaged in (content[:-1], content[:-1] + b"\0", b""):
        store.files[last] = damaged
        before = dict(store.files)
        with pytest.raises(DamagedFile, match=f"it differs from its index .*{last}"):
            publish(store, WINDOWS, join_bytes=200)
        assert store.files == before
