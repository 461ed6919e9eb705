"""Relay files are durable before anything is applied, whole or refused, and deleted once the checkpoint passes them."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.replication_files import write_replication
from support.tabledefs import col, primary, table
from support.windows import NAME, Window

from binlake.config import Replication, load_replication
from binlake.errors import ConfigError, LeaseHeld, LostRange, Transient
from binlake.target import expect_tables
from binlake.target.relay import RelayLog, files
from binlake.target.relay.files import hold_folder_lock, list_files

MIB = 1 << 20


def relay(folder: Path, limit: int = 10 * MIB) -> RelayLog:
    return RelayLog(files.FolderStorage(folder, folder / "relay"), limit)


def write(log: RelayLog, window: Window) -> None:
    log.write_ahead(window.manifest(), window, lambda: None)


def read(log: RelayLog, window: Window) -> Window:
    """The window as the files contain it."""
    found = log.find_window((window.lo, window.hi), window.manifest().compute_digest())
    batches = [
        b for plan in found.list_segments() for phase in (1, 2, 3) for b in found.read_batches(plan.number, phase)
    ]
    return Window(window.lo, window.hi, found.list_segments(), batches)


def list_names(log: RelayLog) -> list[str]:
    return [file.path.name for file in list_files(log.storage.folder)]


def two_segments() -> Window:
    found = Window(414529105591271429, 414529105591271999).put((1, "a"), (2, "ü🐬\\0")).log("one")
    after = expect_tables(
        [table("t", col("id", not_null=True), col("v"), keys=(primary("id"),), db="app")],
        "mariadb",
        databases={"app": True},
    )
    found.ddl(414529105591271500, "ALTER TABLE t ADD v INT", [("app", "t")], after, repeatable=False)
    return found.delete(1).put((3, "c"), verify=True)


def with_sizes(lo: int, hi: int, *sizes: int) -> Window:
    found = Window(lo, hi)
    for size in sizes:
        found.put((1, "x" * size))
    return found


def test_window_is_read_as_it_was_written(tmp_path: Path) -> None:
    # S3-09: the same stream of statements for the same code; commit_ts keep all digits
    log, window = relay(tmp_path), two_segments()
    # In mode auto the lake counts the text of a segment; in other modes nothing does.
    window.plans[1] = replace(window.plans[1], bytes=7)
    write(log, window)
    found = read(log, window)
    assert found.written == window.written
    for got, written in zip(found.plans, window.plans, strict=True):
        assert got.bytes == written.bytes
        assert (got.ddl, got.ddl_commit_ts, got.end_ts) == (written.ddl, written.ddl_commit_ts, written.end_ts)
        assert (got.touched, got.repeatable, got.expected_after) == (
            written.touched,
            written.repeatable,
            written.expected_after,
        )
    assert log.find_window((window.lo, window.hi), window.manifest().compute_digest()).manifest == window.manifest()


def test_empty_window_is_written_too(tmp_path: Path) -> None:
    log, window = relay(tmp_path), Window(1, 2)
    write(log, window)
    assert read(log, window).written == []


def test_file_is_closed_at_its_limit_after_a_whole_batch(tmp_path: Path) -> None:
    # S3-14: ten batches of 300 KB, then one of 3 MB, limit 1 MiB
    log = relay(tmp_path, MIB)
    window = with_sizes(0, 10, *[300_000] * 10, 3_000_000)
    write(log, window)
    sizes = [file.path.stat().st_size for file in list_files(log.storage.folder)]
    assert all(size >= MIB for size in sizes[:-1])
    assert max(sizes) > 3_000_000
    assert len(sizes) == 3
    assert read(log, window).written == window.written


def test_files_before_the_checkpoint_are_deleted_except_the_newest(tmp_path: Path) -> None:
    # S3-15, S3-16
    log = relay(tmp_path)
    for number in range(10):
        write(log, with_sizes(number * 10, number * 10 + 10, 5))
    log.delete_applied(60)
    assert [file.index for file in list_files(log.storage.folder)] == [7, 8, 9, 10]
    log.delete_applied(1 << 60)
    assert [file.index for file in list_files(log.storage.folder)] == [10]
    write(log, with_sizes(100, 110, 5))
    assert [file.index for file in list_files(log.storage.folder)] == [10, 11]


def test_complete_window_is_not_written_again(tmp_path: Path) -> None:
    log, window = relay(tmp_path), two_segments()
    write(log, window)
    before = list_names(log)
    write(log, window)
    assert list_names(log) == before


def test_failed_sync_of_the_folder_is_repeated_before_the_window_counts_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S3-08: the first try wrote and renamed the files, but failed to sync their folder
    log, window, synced = relay(tmp_path), two_segments(), []
    sync = files.sync_folder

    def fail(folder: Path) -> None:
        if folder == log.storage.folder:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(files, "sync_folder", fail)
    with pytest.raises(Transient, match="cannot be written"):
        write(log, window)
    monkeypatch.setattr(files, "sync_folder", lambda folder: (synced.append(folder), sync(folder)))
    before = list_names(log)
    write(log, window)
    assert list_names(log) == before != []
    assert {log.storage.folder, log.storage.folder.parent} <= set(synced)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_missing_file_is_named_with_its_range(tmp_path: Path, part: int) -> None:
    # S3-13
    log, window = relay(tmp_path, 1000), with_sizes(10, 20, 1000, 1000, 1000)
    write(log, window)
    lost = list_files(log.storage.folder)[part].path
    lost.unlink()
    with pytest.raises(LostRange, match="10-20") as caught:
        read(log, window)
    # The name of the last file is unknown; the file before it is named instead.
    assert lost.name in str(caught.value) or (part == 2 and "missing after" in str(caught.value))
    write(log, window)
    assert read(log, window).written == window.written


def test_damaged_newer_try_does_not_hide_a_whole_older_one(tmp_path: Path) -> None:
    # S3-13: the head of the newer try is unreadable, or its end; then the older one is damaged as well
    log, window = relay(tmp_path, 1000), with_sizes(10, 20, 1000, 1000)
    write(log, window)
    older = [(file.path, file.path.read_bytes()) for file in list_files(log.storage.folder)]
    for path, _ in older:
        path.rename(path.with_suffix(".kept"))
    (log.storage.folder / "relay-0000000000000002-0-10.log").touch()
    write(log, window)
    newer = [file.path for file in list_files(log.storage.folder) if file.hi == 20]
    for path, _ in older:
        path.with_suffix(".kept").rename(path)
    os.truncate(newer[0], 5)
    assert read(log, window).written == window.written
    newer[0].unlink()
    assert read(log, window).written == window.written
    os.truncate(older[0][0], 5)
    with pytest.raises(LostRange) as caught:
        read(log, window)
    assert caught.value.message == f"the relay file {newer[0].name} is missing"


def test_damaged_older_try_does_not_hide_a_whole_newer_one(tmp_path: Path) -> None:
    # S3-13, S3-09
    log, window = relay(tmp_path, 1000), with_sizes(10, 20, 1000, 1000)
    write(log, window)
    first = list_files(log.storage.folder)
    os.truncate(first[0].path, 5)
    write(log, window)
    assert read(log, window).written == window.written
    # The readable rest of the failed try is deleted; a file without a head is kept, because its owner is unknown.
    assert [file.index for file in list_files(log.storage.folder)] == [1, 3, 4]
    os.truncate(list_files(log.storage.folder)[-1].path, 40)
    with capture_logs() as logs, pytest.raises(LostRange, match="damaged") as caught:
        read(log, window)
    assert list_files(log.storage.folder)[-1].path.name in str(caught.value)
    assert [entry["event"] for entry in logs] == ["relay_file_set_aside"] * 2 + ["relay_try_not_whole"]


def test_unreadable_folder_is_reported_as_binlakes_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3-08, S3-13: a share became unreachable
    log, window = relay(tmp_path), two_segments()
    write(log, window)

    def fail_stale(_: Path) -> Iterator[Path]:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "iterdir", fail_stale)
    with pytest.raises(LostRange, match="cannot be read: Stale"):
        read(log, window)
    with pytest.raises(Transient, match="Stale"):
        write(log, window)
    with capture_logs() as logs:
        log.delete_applied(1 << 60)
    assert [entry["event"] for entry in logs] == ["relay_files_not_deleted"]


def test_first_error_of_a_writer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = relay(tmp_path)

    def stop() -> None:
        monkeypatch.setattr(Path, "glob", fail_stale)
        raise Transient("asked to stop")

    def fail_stale(*_: object) -> Iterator[Path]:
        raise OSError(116, "Stale file handle")

    with pytest.raises(Transient, match="asked to stop"):
        log.write_ahead(two_segments().manifest(), two_segments(), stop)


def test_missing_files_are_reported_with_the_range(tmp_path: Path) -> None:
    # S3-13
    with pytest.raises(LostRange, match="no relay file") as caught:
        read(relay(tmp_path), with_sizes(10, 20, 5))
    assert "10-20" in str(caught.value)


@pytest.mark.parametrize("cut", [1, 4, 9, 40])
def test_truncated_file_is_refused(tmp_path: Path, cut: int) -> None:
    # S3-13: an interrupted copy
    log, window = relay(tmp_path), with_sizes(10, 20, 100)
    write(log, window)
    path = list_files(log.storage.folder)[0].path
    os.truncate(path, path.stat().st_size - cut)
    with pytest.raises(LostRange, match="damaged: a torn record"):
        read(log, window)


def test_every_changed_byte_is_detected(tmp_path: Path) -> None:
    # S3-13: in frames, payloads and checksums
    log, window = relay(tmp_path), with_sizes(10, 20, 10)
    write(log, window)
    path = list_files(log.storage.folder)[0].path
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with pytest.raises(LostRange, match="10-20"):
            read(log, window)


def test_window_with_the_opened_manifest_is_read(tmp_path: Path) -> None:
    # the same bounds were sealed twice, with different statements
    log, first, second = relay(tmp_path), with_sizes(10, 20, 10), with_sizes(10, 20, 30)
    write(log, first)
    write(log, second)
    assert read(log, first).written == first.written
    assert read(log, second).written == second.written
    third = with_sizes(10, 20, 40)
    with pytest.raises(LostRange, match="as the target opened it"):
        read(log, third)


def test_killed_writer_leaves_no_readable_window(tmp_path: Path) -> None:
    # S3-08: killed between two batches
    log, window = relay(tmp_path, 1000), with_sizes(10, 20, 1000, 1000, 1000)
    asked: list[int] = []

    def check() -> None:
        asked.append(1)
        if len(asked) == 3:
            raise Transient("asked to stop")

    with pytest.raises(Transient, match="asked to stop"):
        log.write_ahead(window.manifest(), window, check)
    assert list_names(log) == []
    assert list(log.storage.folder.glob("*.tmp")) == []
    (log.storage.folder / "relay-0000000000000001-10-20.tmp").write_bytes(b"left by a kill")
    write(log, window)
    assert list(log.storage.folder.glob("*.tmp")) == []
    assert read(log, window).written == window.written


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """Limit the size of files of this process to `size` bytes meanwhile."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    # S3-08
    log, window = relay(tmp_path), with_sizes(10, 20, *[100_000] * 4)
    with full_disk(200_000), pytest.raises(Transient, match="cannot be written: File too large"):
        write(log, window)
    assert [path.name for path in log.storage.folder.iterdir()] == [".lock"]


def test_second_writer_is_refused(tmp_path: Path) -> None:
    log = relay(tmp_path)
    log.storage.folder.mkdir()
    with hold_folder_lock(log.storage.folder), pytest.raises(LeaseHeld) as caught:
        write(log, two_segments())
    assert f"process {os.getpid()} on {socket.gethostname()}" in caught.value.hint


def configure(**more: object) -> Replication:
    target = {"target": {"db-type": "mariadb"}}
    return Replication.model_validate({"name": NAME, "lake": {"path": "/nowhere"}, **target, **more})


def test_relay_files_are_kept_in_the_configured_folder(tmp_path: Path) -> None:
    # S3-17, S3-19
    assert RelayLog.of(configure()) is None
    assert configure().relay.max_file_size == 10_485_760
    log = RelayLog.of(configure(relay={"log-dir": str(tmp_path)}))
    assert log is not None
    assert log.storage.folder == tmp_path / NAME / "127.0.0.1-3306-tidb_binlog"
    with pytest.raises(ConfigError, match="unknown scheme"):
        RelayLog.of(configure(relay={"log-dir": "nfs://host/relay"}))


def test_missing_folder_is_not_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # S3-17: a share that is not mounted
    own = configure(relay={"log-dir": str(tmp_path / "share")})
    with pytest.raises(ConfigError, match="does not exist") as caught:
        RelayLog.of(own)
    assert "mounted" in caught.value.hint
    (tmp_path / "share").mkdir()
    log, synced = RelayLog.of(own), []
    assert log is not None
    (tmp_path / "share").rmdir()
    with pytest.raises(Transient, match="cannot be written"):
        write(log, two_segments())
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "share").mkdir()
    sync = files.sync_folder
    monkeypatch.setattr(files, "sync_folder", lambda folder: (synced.append(folder), sync(folder)))
    write(log, two_segments())
    assert synced[:2] == [tmp_path / "share", tmp_path / "share" / NAME]
    assert log.storage.folder in synced


def test_two_targets_never_share_a_folder(tmp_path: Path) -> None:
    # S3-15: files that one target has passed must stay for the other
    targets = [
        {"host": "a", "port": 3306, "checkpoint-schema": "1-x"},
        {"host": "a-3306", "port": 1, "checkpoint-schema": "x"},
        {"host": "a", "port": 3306, "checkpoint-schema": "1%2Dx"},
        {"host": "a", "port": 3306, "checkpoint-schema": "../x"},
        {"host": "::1", "port": 3306, "checkpoint-schema": "tidb_binlog"},
    ]
    section = {"log-dir": str(tmp_path)}
    logs = [RelayLog.of(configure(relay=section, target={"db-type": "mariadb", **target})) for target in targets]
    folders = {log.storage.folder for log in logs if log is not None}
    assert len(folders) == len(targets)
    assert {folder.parent for folder in folders} == {tmp_path / NAME}
    first, second = (log for log in logs[:2] if log is not None)
    write(first, with_sizes(0, 10, 5))
    write(first, with_sizes(10, 20, 5))
    write(second, with_sizes(20, 30, 5))
    second.delete_applied(1 << 60)
    assert [file.index for file in list_files(first.storage.folder)] == [1, 2]


@pytest.mark.parametrize("size", ["0", "-1"])
def test_file_size_must_be_positive(tmp_path: Path, size: str) -> None:
    # S3-19
    path = write_replication(tmp_path, "shop", relay=f'log-dir = "/relay"\nmax-file-size = {size}')
    with pytest.raises(ConfigError, match=r"relay\.max-file-size"):
        load_replication(path)


def test_relay_without_a_sql_target_warns_and_writes_no_file(tmp_path: Path) -> None:
    # S3-18
    path = write_replication(tmp_path, "shop", target=None, relay='log-dir = "/relay"')
    with capture_logs() as logs:
        replication = load_replication(path)
    assert [entry["event"] for entry in logs] == ["relay_without_target"]
    assert RelayLog.of(replication) is None
