"""Commits to a table in an object store by one put: conflicts, lost answers, checkpoints, what others read."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from support.objectstores import ObjectStore
from support.s3proxy import S3Proxy, Trouble

from binlake.errors import LostRange, Transient
from binlake.lake import controlrows, logcopy, opentable, storewrite
from binlake.lake.access import Access, register_access
from binlake.lake.continuity import VERSIONS, require_all_windows
from binlake.lake.control import COMPACT_EVERY, TIDY_EVERY
from binlake.lake.controltables import WINDOW
from binlake.lake.lock import hold_lake_lock
from binlake.lake.objects import read_object
from binlake.lake.opentable import is_last_version, open_known, open_table
from binlake.lake.paths import LakePaths
from binlake.lake.store import build_delta_options
from binlake.lake.storetable import CHECKPOINT_EVERY, StoreTable, look_once
from binlake.lake.tables import DDL
from binlake.lake.windowlog import WindowEvent, WindowLog
from binlake.spark_jobs.job.lake import commit_parts, ensure_table

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def proxy(object_store: ObjectStore) -> Iterator[S3Proxy]:
    with S3Proxy(object_store.port) as started:
        yield started


@pytest.fixture
def paths(object_store: ObjectStore, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[LakePaths]:
    """A lake in a new bucket behind the proxy."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"stored-{time.time_ns()}"
    object_store.create(bucket)
    root = f"{object_store.locate(bucket)}/lakes/live"
    register_access(root, Access(object_store.build_endpoint(proxy.url)))
    yield LakePaths(root)
    proxy.set_trouble(Trouble())


def record(windows: WindowLog, number: int, stage: str = "land") -> None:
    windows.record(WindowEvent(stage, number, number + 1, "done", manifest="m"))


def as_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on this process knows no table, as a new one."""
    monkeypatch.setattr(opentable, "_stored", {})
    monkeypatch.setattr(controlrows, "_cached", {})


def read_whole(paths: LakePaths) -> DeltaTable:
    place = paths.locate_table(WINDOW.name)
    return DeltaTable(place, storage_options=build_delta_options(place))


def known(paths: LakePaths, name: str = WINDOW.name) -> StoreTable:
    table = open_known(paths.locate_table(name))
    assert isinstance(table, StoreTable)
    return table


def test_rows_are_the_same_for_this_process_a_new_one_and_delta_rs(
    paths: LakePaths, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past a checkpoint and a compaction; most appends take two requests."""
    windows, count = WindowLog(paths), COMPACT_EVERY + 8
    requests = []
    for number in range(count):
        proxy.take_requests()
        record(windows, number, ("land", "merge")[number % 2])
        requests.append([one.kind for one in proxy.take_requests()])
    assert requests.count(["GET", "PUT", "PUT"]) > count * 0.8  # unpinned, so it looks first
    assert sum(map(len, requests)) < 4.5 * count + 20
    assert len(windows.read_events()) == count
    whole = read_whole(paths)
    assert sorted(whole.to_pyarrow_table().column("lo").to_pylist()) == list(range(count))
    # The small files were joined: two of the compaction, and those after it.
    assert len(whole.file_uris()) < 16
    as_another_process(monkeypatch)
    proxy.take_requests()
    assert [event["lo"] for event in WindowLog(paths).read_events(stage="land")] == list(range(0, count, 2))
    read = proxy.take_requests()
    assert len(read) < 4 + TIDY_EVERY, "the log is read from the last checkpoint, and one object has most rows"


def test_statistics_of_rows_and_of_joined_files_are_those_of_delta(paths: LakePaths) -> None:
    windows = WindowLog(paths)
    record(windows, 1)
    for number in (5, 9):
        record(windows, number)
    for _ in range(COMPACT_EVERY - 2):
        known(paths).commit([], {})
    record(windows, 20)
    adds = known(paths).get_add_actions().to_pylist()
    assert {(add["num_records"], add["min.lo"], add["max.hi"], add["null_count.sink"]) for add in adds} >= {
        (1, 20, 21, 0)
    }
    assert sum(add["num_records"] for add in adds) == 4


def test_an_append_follows_a_commit_of_another_process_and_a_pinned_view_keeps_both(
    paths: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = WindowLog(paths, pinned=True)
    record(windows, 1)
    assert len(windows.read_events()) == 1
    mine = known(paths)
    with monkeypatch.context() as patch:
        as_another_process(patch)
        record(WindowLog(paths), 2)
    assert [event["lo"] for event in windows.read_events()] == [1]  # pinned
    record(windows, 3)
    assert [event["lo"] for event in windows.read_events()] == [1, 2, 3]
    assert mine.others == 1


def test_a_commit_whose_version_is_taken_is_refused_and_the_next_look_finds_the_other(
    paths: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the opening and the put another process commits; nothing is repeated on the newer version."""
    ensure_table(paths, DDL)
    with hold_lake_lock(paths, "merge"):
        opened = known(paths, DDL.name)
        with monkeypatch.context() as patch:
            as_another_process(patch)
            known(paths, DDL.name).commit([], {"operation": "WRITE"})
        with pytest.raises(Transient, match="ddl"):
            commit_parts(paths, DDL, [], [], {"run": "late"}, opened=opened)
        assert known(paths, DDL.name).version() == 1
        commit_parts(paths, DDL, [], [], {"run": "again"})
    assert open_table(paths.locate_table(DDL.name)).version() == 2


def test_a_checkpoint_that_cannot_be_written_fails_no_commit(paths: LakePaths, proxy: S3Proxy) -> None:
    windows = WindowLog(paths)
    record(windows, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("binlake.lake.logcopy.put_object", _fail)
        patch.setattr("binlake.lake.controlrows.put_object", _fail)
        for number in range(2, 12):
            record(windows, number)
    assert not [
        one for one in proxy.take_requests() if one.kind == "PUT" and ("checkpoint" in one.key or "_rows" in one.key)
    ]
    assert len(read_whole(paths).to_pyarrow_table()) == 11


def _fail(*_: object) -> None:
    raise Transient("the store does not answer")


@pytest.mark.parametrize("kind", ["loses", "late"])
def test_a_commit_whose_answer_is_lost_is_made_once(paths: LakePaths, proxy: S3Proxy, kind: str) -> None:
    windows = WindowLog(paths)
    record(windows, 1)
    proxy.set_trouble(Trouble(**{kind: 0.5}, only=r"_delta_log/\d+\.json$"))
    for number in range(2, 12):
        record(windows, number)
    proxy.set_trouble(Trouble())
    whole = read_whole(paths)
    assert sorted(whole.to_pyarrow_table().column("lo").to_pylist()) == list(range(1, 12))
    assert whole.version() == 10


def test_under_an_unbroken_lock_nobody_is_looked_for(paths: LakePaths, proxy: S3Proxy) -> None:
    ensure_table(paths, DDL)
    with hold_lake_lock(paths, "merge"):
        version = known(paths, DDL.name).version()
    proxy.take_requests()
    with hold_lake_lock(paths, "merge"):
        known(paths, DDL.name)
        assert not [one for one in proxy.take_requests() if "/ddl/" in one.key]
    known(paths, DDL.name)  # without the lock, another may write
    assert [one.kind for one in proxy.take_requests() if "/ddl/" in one.key] == ["GET"]
    assert version == known(paths, DDL.name).version()


def test_what_another_holder_of_the_lock_wrote_is_found(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    ensure_table(paths, DDL)
    with hold_lake_lock(paths, "merge"):
        version = known(paths, DDL.name).version()
    with monkeypatch.context() as patch:
        as_another_process(patch)
        patch.setattr("binlake.lake.lease._released", {})
        with hold_lake_lock(paths, "merge"):
            known(paths, DDL.name).commit([], {"operation": "WRITE"})
    with hold_lake_lock(paths, "merge"):
        assert known(paths, DDL.name).version() == version + 1


def test_commits_by_delta_rs_are_followed(paths: LakePaths) -> None:
    windows = WindowLog(paths)
    record(windows, 1)
    record(windows, 2)
    whole = open_table(paths.locate_table(WINDOW.name))
    whole.create_write_transaction([], "append", whole.schema())
    assert known(paths).version() == 2
    whole.delete("lo = 1")
    assert [event["lo"] for event in windows.read_events()] == [2]
    record(windows, 3)
    assert [event["lo"] for event in windows.read_events()] == [2, 3]


def test_a_table_with_rules_that_are_not_kept_here_is_left_to_delta_rs(paths: LakePaths) -> None:
    windows = WindowLog(paths)
    record(windows, 1)
    open_table(paths.locate_table(WINDOW.name)).alter.set_table_properties({"delta.appendOnly": "true"})
    assert not known(paths).takes_commits()
    record(windows, 2)
    assert '"engineInfo":"delta-rs' in read_object(paths.locate_table(WINDOW.name), logcopy.name_commit(2)).decode()
    assert len(windows.read_events()) == 2


def test_one_answer_looks_once(paths: LakePaths, proxy: S3Proxy) -> None:
    windows = WindowLog(paths)
    record(windows, 1)
    windows.read_events()
    proxy.take_requests()
    with look_once():
        assert len([windows.read_events() for _ in range(3)]) == 3
        assert len(proxy.take_requests()) == 1
    windows.read_events()
    windows.read_events()
    assert len(proxy.take_requests()) == 2


@pytest.mark.parametrize("commits", [3, 120], ids=["a short log", "a log with checkpoints"])
def test_what_was_listed_for_an_answer_is_not_listed_again_to_open_the_table(
    paths: LakePaths, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:  # 36: the request budget
    ensure_table(paths, DDL)
    place = paths.locate_table(DDL.name)
    for number in range(1, commits + 1):
        known(paths, DDL.name).commit([], {})
        if number % CHECKPOINT_EVERY == 0:
            known(paths, DDL.name).write_checkpoint()
    as_another_process(monkeypatch)
    proxy.take_requests()
    with look_once():
        assert is_last_version(place, commits)
        assert [one.kind for one in proxy.take_requests()] == ["LIST"]
        assert known(paths, DDL.name).version() == commits
    opened = proxy.take_requests()
    checkpoint = commits // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    assert len(opened) == commits - checkpoint + 1
    assert {one.kind for one in opened} == {"GET"}
    # Outside the answer, what was listed may be old.
    as_another_process(monkeypatch)
    with look_once():
        assert is_last_version(place, commits)
    other = StoreTable(place, opentable.load_table)
    other.look()
    other.commit([], {})
    assert known(paths, DDL.name).version() == commits + 1


@pytest.mark.parametrize("whole_bytes", [opentable.WHOLE_BYTES, 0], ids=["whole", "by columns"])
def test_small_files_that_may_match_are_got_whole_and_once(
    paths: LakePaths, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:  # 36: the request budget
    monkeypatch.setattr(opentable, "_held", {})
    monkeypatch.setattr(opentable.hold_whole, "__defaults__", (whole_bytes,))
    place = paths.locate_table("parts")
    for day in ("a b", "c%"):
        rows = pa.table({"day": [day, day], "n": [len(day), 7], "text": ["x" * 100, "y"]})
        options = build_delta_options(place)
        write_deltalake(place, rows, mode="append", partition_by=["day"], storage_options=options)
    table = open_known(place)
    found = []
    for where in (ds.field("day") == "c%", ds.field("n") > 0, ds.field("n") > 2):
        proxy.take_requests()
        rows = opentable.read_matching(table, ["day", "n"], where).sort_by([("day", "ascending"), ("n", "ascending")])
        assert {one.kind for one in proxy.take_requests()} <= {"GET"}
        found.append([(row["day"], row["n"]) for row in rows.to_pylist()])
    assert found[0] == [("c%", 2), ("c%", 7)]
    assert found[1] == [("a b", 3), ("a b", 7), ("c%", 2), ("c%", 7)]
    assert found[2] == [("a b", 3), ("a b", 7), ("c%", 7)]
    proxy.take_requests()
    opentable.read_matching(table, ["day", "text"], ds.field("n") > 0)
    asked = len(proxy.take_requests())
    assert (asked == 0) is (whole_bytes > 0)
    # The rows of a table of many files are left in the store.
    monkeypatch.setattr(opentable, "_held", {})
    monkeypatch.setattr(opentable, "_MOST_AT_ONCE", 1)
    assert opentable.read_matching(table, ["n"], ds.field("n") > 0).num_rows == 4
    assert opentable._held == {}
    # Few bytes are kept.
    monkeypatch.setattr(opentable, "_MOST_AT_ONCE", 2)
    monkeypatch.setattr(opentable, "_MOST_HELD_BYTES", 1)
    assert opentable.read_matching(table, ["n"], ds.field("n") > 0).num_rows == 4
    assert opentable._held == {}


def test_a_large_file_of_events_is_got_whole_before_its_row_groups_are_read(
    paths: LakePaths, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:  # 36: the request budget
    monkeypatch.setattr(controlrows, "SMALL_BYTES", 0)
    monkeypatch.setattr(opentable, "_held", {})
    windows = WindowLog(paths)
    record(windows, 1, "merge")
    record(windows, 2, "land")
    as_another_process(monkeypatch)
    again = WindowLog(paths)
    assert [event["lo"] for event in again.read_last_events(("land",), 1)] == [2]
    assert again.find_greatest_hi("merge") == 2
    assert again.list_landed() == [(2, 3)]
    data = [one.key for one in proxy.take_requests() if "/stage=" in one.key and one.kind == "GET"]
    assert len(data) == len(set(data)) == 2


def test_events_in_a_file_without_bounds_of_its_texts_are_found(
    paths: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:  # U-06
    """The first file has bounds of all columns, which delta-rs wrote; the second only those of numbers."""
    windows = WindowLog(paths)
    record(windows, 1)
    record(windows, 2)
    monkeypatch.setattr(controlrows, "SMALL_BYTES", 0)
    as_another_process(monkeypatch)
    assert WindowLog(paths).list_landed() == [(1, 2), (2, 3)]
    assert [event["lo"] for event in WindowLog(paths).read_events(state="done")] == [1, 2]


def test_a_log_with_a_hole_is_refused(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = WindowLog(paths)
    for number in range(4):
        record(windows, number)
    monkeypatch.setattr(logcopy, "list_objects", lambda *_: [logcopy.name_commit(one) for one in (0, 1, 3)])
    as_another_process(monkeypatch)
    with pytest.raises(LostRange, match="missing"):
        known(paths)


def test_a_table_that_does_not_exist(paths: LakePaths) -> None:
    with pytest.raises(TableNotFoundError):
        open_known(paths.locate_table("none"))
    assert WindowLog(paths).read_events() == []


def test_copies_of_logs_are_deleted_with_their_table_and_those_of_dead_processes(
    paths: LakePaths, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logcopy, "_folders", {})
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, alive = tmp_path / f"{logcopy._PREFIX}{2**22 + 1}-a", tmp_path / f"{logcopy._PREFIX}{os.getppid()}-b"
    dead.mkdir()
    alive.mkdir()
    record(WindowLog(paths), 1)
    known(paths)
    (own,) = {*tmp_path.iterdir()} - {alive}
    assert len(list(own.iterdir())) == 1
    opentable._stored.clear()
    controlrows._cached.clear()
    assert list(own.iterdir()) == []


def test_joining_leaves_files_to_another_process_that_came_first(
    paths: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = WindowLog(paths)
    for number in range(3):
        record(windows, number)

    def refuse(*_: object) -> None:
        raise CommitFailedError("taken")

    table = known(paths)
    monkeypatch.setattr(table, "commit", refuse)
    with pytest.raises(CommitFailedError):
        storewrite.StoreWriter(table, WINDOW, windows._table.schema).join()
    monkeypatch.undo()


def test_a_reader_that_follows_for_long_takes_a_new_copy(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logcopy, "_MOST_COMMITS", 10)
    windows = WindowLog(paths)
    record(windows, 0)
    reader = StoreTable(paths.locate_table(WINDOW.name), opentable.load_table)
    reader.look()
    for number in range(1, 20):
        record(windows, number)
        reader.look()
        assert reader.get_add_actions().num_rows == number + 1
    copy = reader._copy
    assert copy is not None
    assert len(list((copy._folder / "_delta_log").iterdir())) < 14


def test_whether_a_version_is_the_last_is_seen_without_opening_the_table(
    paths: LakePaths, proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one request. A window whose commit is missing, or came back by a RESTORE, is found all the same."""
    windows = WindowLog(paths)
    ensure_table(paths, DDL)
    for _ in range(3):
        known(paths, DDL.name).commit([], {})
    record(windows, 1, "land")
    windows.record(WindowEvent("merge", 1, 2, "done", detail={VERSIONS: {DDL.name: 3}}))

    def look(*, glances: bool = True) -> list[str]:
        as_another_process(monkeypatch)
        proxy.take_requests()
        require_all_windows(paths, windows, ("merge",), glances=glances)
        return [one.kind for one in proxy.take_requests() if "/ddl/" in one.key]

    assert look() == ["LIST"]
    assert len(look(glances=False)) > 2
    known(paths, DDL.name).commit([], {"operation": "WRITE"})
    assert len(look()) > 2
    known(paths, DDL.name).commit([], {"operation": "RESTORE", "operationParameters": {"version": 1}})
    with pytest.raises(LostRange, match="was restored to an older version"):
        look()
    windows.record(WindowEvent("merge", 2, 3, "done", detail={VERSIONS: {DDL.name: 6}}))
    with pytest.raises(LostRange, match="has lost the commit of a window"):
        look()
