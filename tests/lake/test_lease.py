"""The lock of a lake in an object store: one holder, dead and stopped holders, late commits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.objectstores import ObjectStore

from binlake.errors import LeaseHeld, Transient
from binlake.lake import lease, store
from binlake.lake.access import Access, find_access, register_access
from binlake.lake.lock import hold_lake_lock, lock_holder
from binlake.lake.opentable import open_table
from binlake.lake.paths import LakePaths
from binlake.lake.tables import DDL
from binlake.mirror.replica import Replica
from binlake.spark_jobs.job.lake import ensure_tables

pytestmark = pytest.mark.process


@pytest.fixture
def paths(object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> LakePaths:
    """A lake in a new bucket, whose leases end after a second."""
    for name, value in object_store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(lease, "LEASE_S", 1.0)
    monkeypatch.setattr(lease, "RENEW_S", 0.1)
    monkeypatch.setattr(lease, "_POLL_S", 0.05)
    bucket = f"lease-{time.time_ns()}"
    object_store.create(bucket)
    root = f"{object_store.locate(bucket)}/lakes/live"
    register_access(root, Access(object_store.build_endpoint(f"http://127.0.0.1:{object_store.port}")))
    return LakePaths(root)


def die_holding(paths: LakePaths, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the lock as a process that then dies: it neither renews nor releases it."""
    with monkeypatch.context() as patch, ExitStack() as stack:
        patch.setattr(lease._Renewal, "_renew", lambda _: None)
        patch.setattr(lease._Renewal, "stop", lambda _: None)
        stack.enter_context(hold_lake_lock(paths, name))


def test_of_many_threads_one_holds_the_lock_at_a_time(paths: LakePaths) -> None:
    inside, most, lock = [0], [0], threading.Lock()

    def work() -> None:
        for _ in range(3):
            with hold_lake_lock(paths, "merge"):
                with lock:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                with lock:
                    inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


def test_a_holder_that_renews_is_waited_for_and_named(paths: LakePaths) -> None:
    with hold_lake_lock(paths, "merge"):
        assert lock_holder(paths, ["landing", "merge"]).startswith(f"merge: pid {os.getpid()} on ")
        started = time.monotonic()
        with pytest.raises(LeaseHeld, match=f"pid {os.getpid()}"), hold_lake_lock(paths, "merge", wait_s=2.5):
            raise AssertionError("two hold the lock")
        assert time.monotonic() - started > 2.5 > 2 * lease.LEASE_S
    assert lock_holder(paths, ["merge"]) == ""


def test_a_dead_holders_lock_is_taken_over_and_the_tables_are_fenced(
    paths: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_tables(paths)
    versions = {name: open_table(paths.locate_table(name)).version() for name in ("mutation", "ddl", "binlog")}
    die_holding(paths, "merge", monkeypatch)
    with hold_lake_lock(paths, "merge", wait_s=0):
        later = {name: open_table(paths.locate_table(name)).version() for name in versions}
    assert later == {"mutation": versions["mutation"] + 1, "ddl": versions["ddl"] + 1, "binlog": versions["binlog"]}
    with hold_lake_lock(paths, "merge"):  # released in the meantime, so there is nothing to fence
        assert open_table(paths.locate_table("ddl")).version() == later["ddl"]


def test_a_renewal_whose_answer_is_lost_keeps_the_lease(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    put, get, lost, unread = lease._write, lease._read, threading.Event(), threading.Event()

    def get_at_the_second_try(*args: object) -> object:
        if threading.current_thread().name.startswith("lease ") and not unread.is_set():
            unread.set()
            raise Transient("the store does not answer")
        return get(*args)  # type: ignore[arg-type]

    def put_and_lose_one_answer(*args: object) -> object:
        written = put(*args)  # type: ignore[arg-type]
        if not lost.is_set() and args[3] is not None:
            lost.set()
            raise Transient("the answer was lost")
        return written

    monkeypatch.setattr(lease, "_write", put_and_lose_one_answer)
    monkeypatch.setattr(lease, "_read", get_at_the_second_try)
    with hold_lake_lock(paths, "merge"):
        assert lost.wait(60)
        assert unread.wait(60)
        with pytest.raises(LeaseHeld), hold_lake_lock(paths, "merge", wait_s=2):
            raise AssertionError("two hold the lock")
    assert lock_holder(paths, ["merge"]) == ""


def test_a_lost_lease_is_an_error_at_the_end_of_its_block(paths: LakePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    renew = lease._Renewal._renew
    go_on = threading.Event()
    monkeypatch.setattr(lease._Renewal, "_renew", lambda self: (go_on.wait(60), renew(self)))

    def take_over() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(lease._Renewal, "_renew", renew)
            with hold_lake_lock(paths, "merge"):
                pass
        go_on.set()

    with pytest.raises(Transient, match=f"taken over by pid {os.getpid()} on "), hold_lake_lock(paths, "merge"):
        take_over()


_WRITER = """
import sys
from binlake.lake import lease
from binlake.lake.lock import hold_lake_lock
from binlake.lake.opentable import open_table
from binlake.lake.paths import LakePaths
from binlake.lake.parts import write_parts
from binlake.lake.access import Access, register_access
from binlake.lake.tables import DDL
from binlake.spark_jobs.job.lake import build_local_table, commit_parts

root, endpoint, opens = sys.argv[1:]
register_access(root, Access(endpoint))
paths = LakePaths(root)
lease.LEASE_S, lease.RENEW_S = 1.0, 60.0
with hold_lake_lock(paths, "merge"):
    opened = open_table(paths.locate_table("ddl")) if opens == "before" else None
    print("opened", flush=True)
    sys.stdin.readline()
    try:
        commit_parts(paths, DDL, [], [], {"run": "late"}, opened=opened)
        print("committed", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


@pytest.mark.parametrize("opens", [pytest.param("before", marks=pytest.mark.soak), "after"])
def test_a_stopped_holder_that_wakes_up_cannot_commit(paths: LakePaths, opens: str) -> None:
    """It opens the table before it is stopped, or after it has woken up and before its thread has tried to renew."""
    ensure_tables(paths)
    command = [sys.executable, "-c", _WRITER, paths.root, find_access(paths.root).endpoint, opens]
    writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    try:
        assert next(line for line in writer.stdout if line == "opened\n")
        writer.send_signal(signal.SIGSTOP)
        with hold_lake_lock(paths, "merge"):
            taken_over = open_table(paths.locate_table(DDL.name)).version()
        writer.send_signal(signal.SIGCONT)
        printed, _ = writer.communicate("go on\n", timeout=60)
    finally:
        writer.kill()
        writer.communicate()
    assert printed.startswith("Transient "), printed
    assert writer.returncode, "a lost lease must end the block with an error"
    assert open_table(paths.locate_table(DDL.name)).version() == taken_over


def test_a_mirror_in_creation_when_its_lease_is_lost_is_not_emptied(
    paths: LakePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """delta-rs opens a table again after it has created it, so it may see what another holder has committed."""
    monkeypatch.setattr(lease, "RENEW_S", 60.0)
    place, rows = paths.locate_mirror("d", "t"), pa.table({"a": [1, 2]})
    options, create = store.build_delta_options(place), DeltaTable.create

    def create_and_sleep(*asked: Any, **more: Any) -> DeltaTable:
        create(*asked, **more)
        with monkeypatch.context() as patch:
            patch.setattr(lease, "_held", set())  # as in another process
            with hold_lake_lock(paths, "mirror"):
                write_deltalake(place, rows, mode="append", storage_options=options)
        return DeltaTable(place, storage_options=options)

    monkeypatch.setattr(DeltaTable, "create", create_and_sleep)
    with pytest.raises(Transient, match="taken over"), hold_lake_lock(paths, "mirror"):
        Replica(place, 30)._overwrite(pa.RecordBatchReader.from_batches(rows.schema, []), 5)
    assert DeltaTable(place, storage_options=options).to_pyarrow_table() == rows


def test_a_store_that_does_not_answer_is_a_clear_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    register_access("s3://bucket/none", Access("http://127.0.0.1:9"))
    paths = LakePaths("s3://bucket/none")
    with pytest.raises(Transient, match="object store does not answer") as refused, hold_lake_lock(paths, "merge"):
        raise AssertionError("there is no lock")
    assert "lake.storage" in str(refused.value)
